"""The end of a file is found whatever it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pallas_gateway.features.audit.chain import BEGIN, Head, hash_of, next_line
from pallas_gateway.features.audit.tail import MOST_BYTES, Tail, UnusableFileError, tail_of_file

if TYPE_CHECKING:
    from pathlib import Path

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
