"""Lines of the audit log: one JSON object each, in ASCII, whatever the names in it are."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.features.audit.chain import (
    BEGIN,
    FIELDS,
    LONGEST_LINE,
    LONGEST_VALUE,
    MOST_BYTES,
    Head,
    Tail,
    UnusableFileError,
    hash_of,
    is_cut,
    link_of,
    next_line,
    tail_of_file,
)

TIME = "2026-11-24T05:00:00.000Z"
HOSTILE = (
    "two\nlines\r\n",
    "\x1b[31mred\x1b[0m\x07",
    "\u202eleft\u2066",
    "\u2028\u2029\x85",
    "\ud800 alone",
    "x" * 1_000_000,
    "\U0001f600" * 1_000_000,
    '"},{"seq":1',
    "\x00\x7f\\",
    "key:ci-1",
)


def parsed(line: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(line)
    return document


def test_a_line_holds_its_number_the_hash_of_the_line_before_and_the_fields() -> None:
    first, head = next_line(BEGIN, TIME, {"action": "start", "outcome": "ok", "agent": None})
    second, after = next_line(head, TIME, {"action": "call", "seconds": 1.25, "tokens": 3})

    assert parsed(first) == {"seq": 1, "prev": "0" * 64, "time": TIME, "action": "start", "outcome": "ok"}
    assert parsed(second)["prev"] == hashlib.sha256(first).hexdigest() == head.hash
    assert (parsed(second)["seconds"], parsed(second)["tokens"]) == (1.25, 3)
    assert after == Head(2, hashlib.sha256(second).hexdigest())


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_in_any_field_stays_in_one_short_printable_line(name: str, value: str) -> None:
    line, _ = next_line(BEGIN, TIME, {name: value})

    assert line.isascii()
    assert line.decode().isprintable()
    assert len(line) < LONGEST_VALUE + 200
    assert parsed(line).keys() == {"seq", "prev", "time", name}
    parsed(line)[name].encode()  # no lone surrogate


def test_hostile_texts_in_all_fields_fit_into_one_write_to_a_pipe() -> None:
    line, _ = next_line(BEGIN, TIME, dict.fromkeys(FIELDS, "\U0001f600\n" * 1000))

    assert len(line) <= LONGEST_LINE
    assert parsed(line).keys() == {"seq", "prev", "time", *FIELDS}


def test_long_names_that_begin_alike_stay_different() -> None:
    one, other = (next_line(BEGIN, TIME, {"caller": "a" * 5000 + end})[0] for end in "12")

    assert parsed(one)["caller"] != parsed(other)["caller"]
    assert parsed(one)["caller"].startswith("aaaa")


def test_text_that_fits_is_not_changed() -> None:
    text = "é" * (LONGEST_VALUE // 6)
    assert parsed(next_line(BEGIN, TIME, {"caller": text})[0])["caller"] == text


def test_numbers_that_json_does_not_have_are_texts() -> None:
    assert parsed(next_line(BEGIN, TIME, {"seconds": float("nan")})[0])["seconds"] == "nan"


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no fields of the audit log: \['message'\]"):
        next_line(BEGIN, TIME, {"message": "content"})


@given(st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.text(), st.integers(), st.floats(), st.booleans())))
def test_every_line_is_linked_and_each_beginning_of_it_counts_as_cut(entry: dict[str, Any]) -> None:
    _, head = next_line(BEGIN, TIME, {"action": "start"})
    line, _ = next_line(head, TIME, entry)

    assert link_of(line) == (2, head.hash)
    assert all(is_cut(line[:length], head) and is_cut(line[:length]) for length in range(1, len(line)))
    assert not is_cut(line, head)
    assert is_cut(line[:40] + bytes(4096), head)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"seq":true,"prev":"' + b"0" * 64 + b'"}',
        b'{"seq":' + b"9" * 400 + b',"prev":"' + b"0" * 64 + b'"}',
        b'{"seq":1,"prev":7}',
        b"[" * 100_000,
    ],
)
def test_other_content_is_no_line(line: bytes) -> None:
    assert link_of(line) is None
    assert not is_cut(line, BEGIN)


@pytest.mark.parametrize("text", ["", "1", "1:", "x:" + "0" * 64, "1:abc", "-1:" + "0" * 64, "1:" + "0" * 65])
def test_a_head_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="a head is SEQ:HASH"):
        Head.parse(text)


def test_a_kept_head_may_have_a_part_of_the_hash() -> None:
    head = Head(7, hashlib.sha256(b"").hexdigest())

    assert Head.parse(f" {head}\n") == head
    assert head.is_of(Head.parse(f"7:{head.hash[:12].upper()}"))
    assert not head.is_of(Head.parse("7:" + "0" * 12))


LINE, _ = next_line(BEGIN, "2026-11-24T05:00:00.000Z", {"action": "call"})
HEAD = Head(1, hash_of(LINE))


def tail(file: Path, content: bytes) -> Tail:
    file.write_bytes(content)
    return tail_of_file(file)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", Tail(None, is_torn=False)),
        (LINE, Tail(HEAD, is_torn=True)),
        (LINE + b"\n", Tail(HEAD, is_torn=False)),
        (b"other\n" + LINE + b"\n\n" + LINE[:30], Tail(HEAD, is_torn=True)),
        (LINE[:30], Tail(None, is_torn=True)),
        (b"other\n" * MOST_BYTES + LINE, Tail(HEAD, is_torn=True)),
        (LINE[:30] + b"\n\n" + LINE[:9] + b"\0\0\n", Tail(None, is_torn=False)),
    ],
)
def test_the_last_complete_line_is_the_head(tmp_path: Path, content: bytes, found: Tail) -> None:
    assert tail(tmp_path / "log", content) == found


@pytest.mark.parametrize("content", [b"{}\n", LINE[:30] + b"\n1\n", LINE + b"\n" + b"\n" * MOST_BYTES])
def test_a_file_of_other_content_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnusableFileError):
        tail(tmp_path / "log", content)
