"""Bodies that would be much larger in memory than on the wire are known before they are parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.json_size import MOST_VALUES, has_too_many_values

texts = st.text(st.sampled_from('a",[]{}\\:u\n\u2028é'), max_size=8)
json_values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def count(value: object) -> int:
    """Values in `value`, itself included; an object's keys are none."""
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("one", [b"{}", b"[]", b'"a"', b"1", b'{"a":1}', rb'"\""', rb'"\\"', '"é"'.encode()])
def test_more_values_than_allowed_are_too_many_whatever_they_are(one: bytes) -> None:
    assert has_too_many_values(b"[" + b",".join([one] * (MOST_VALUES + 1)) + b"]")
    assert not has_too_many_values(b"[" + b",".join([one] * (MOST_VALUES // 4)) + b"]")


@pytest.mark.parametrize("commas", [0, 1, 999, 1000, 1001, 5000])
def test_values_are_counted_wherever_they_are(commas: int) -> None:
    body = b"[" + b"A" * 5000 + b"," * commas + b"B" * 5000 + b"]"

    assert has_too_many_values(body, commas)
    assert not has_too_many_values(body, commas + 1)


@pytest.mark.parametrize("text", ["{" * MOST_VALUES, ",[" * MOST_VALUES, '{"a":\\,' * MOST_VALUES, "[" * MOST_VALUES])
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    body = json.dumps({"message": text, "next": ["x", text]}).encode()
    assert not has_too_many_values(body)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_another_encoding_hides_nothing(encoding: str) -> None:
    values = "[" + ",".join(['"\u2200"'] * (MOST_VALUES + 1)) + "]"
    assert has_too_many_values(values.encode(encoding))


@given(json_values)
def test_never_fewer_values_are_seen_than_there_are(value: object) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    seen_at_most = next(most for most in range(200) if not has_too_many_values(body, most))
    assert count(value) - 1 <= seen_at_most
