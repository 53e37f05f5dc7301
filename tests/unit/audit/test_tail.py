"""The end of a file is found whatever it holds, and each of its lines is looked at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.audit.chain import BEGIN, Head, hash_of, next_line
from pallas_gateway.audit.tail import NoAuditLogError, Tail, tail_of

if TYPE_CHECKING:
    from pathlib import Path

LINE, _ = next_line(BEGIN, "2026-11-24T05:00:00.000Z", {"action": "call"})
HEAD = Head(1, hash_of(LINE))


def tail(file: Path, content: bytes, block_bytes: int) -> Tail:
    file.write_bytes(content)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return tail_of(descriptor, block_bytes)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("block_bytes", [1, 2, 7, len(LINE), len(LINE) + 1, len(LINE) + 2, 65_536])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", Tail(None, is_torn=False)),
        (LINE, Tail(HEAD, is_torn=True)),
        (LINE + b"\n", Tail(HEAD, is_torn=False)),
        (b"other\n" + LINE + b"\n\n" + LINE[:30], Tail(HEAD, is_torn=True)),
        (LINE[:30], Tail(None, is_torn=True)),
        (LINE[:30] + b"\n\n" + LINE[:9] + b"\0\0\n", Tail(None, is_torn=False)),
    ],
)
def test_the_last_complete_line_is_the_head(tmp_path: Path, content: bytes, found: Tail, block_bytes: int) -> None:
    assert tail(tmp_path / "log", content, block_bytes) == found


@pytest.mark.parametrize("content", [b"1\n" * 100_000, b"{}\n" * 100_000, b"x" * 200_000])
def test_a_file_of_other_content_is_read_once(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NoAuditLogError):
        tail(tmp_path / "log", content, 64)
