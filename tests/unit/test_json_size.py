"""Bodies that would be much larger in memory than on the wire are known before they are parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.json_size import MOST_VALUES, ValueCounter, has_too_many_values

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


def seen_in(pieces: list[bytes], *, is_events: bool = False) -> int:
    """Return the values that are seen in pieces of a document, or in the largest of many events."""

    def is_exceeded(most: int) -> bool:
        counter = ValueCounter(most, is_events=is_events)
        return any(counter.exceeds(piece) for piece in pieces)

    return next(most for most in range(1000) if not is_exceeded(most))


@given(json_values, st.integers(1, 9), st.booleans())
def test_pieces_of_any_length_hold_the_values_of_the_whole(value: object, size: int, is_events: bool) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    seen_at_most = next(most for most in range(200) if not has_too_many_values(body, most))

    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert count(value) - 1 <= seen_in(pieces, is_events=is_events) <= max(count(value) * 2, seen_at_most)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_each_event_of_a_stream_is_counted_for_itself(end: str, size: int) -> None:
    stream = f'event: message{end}data: [[1],"a,b"]{end}{end}'.encode() * 20

    assert seen_in([stream[at : at + size] for at in range(0, len(stream), size)], is_events=True) == 3


@pytest.mark.parametrize("line", [': "', '"x"', r"\\", r"\"", "event: '\"", "\\"])
def test_no_line_of_an_event_hides_the_values_of_others(line: str) -> None:
    stream = f"data: [1,\n{line}\ndata: 2,\n{line}\ndata: 3]\n\n".encode()

    assert seen_in([stream], is_events=True) >= 3
    assert seen_in([stream[at : at + 1] for at in range(len(stream))], is_events=True) >= 3
