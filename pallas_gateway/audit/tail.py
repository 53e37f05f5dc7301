"""The head of a file: read from its end, in blocks, so that a huge file takes no longer than a small one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pallas_gateway.audit.chain import BEGIN, Head, hash_of, is_cut, link_of

BLOCK_BYTES = 65_536
MOST_BYTES = 4 << 20
"""Of a file's end that are searched for a complete line."""
_LOOKED_AT = 100  # rotated files


class NoAuditLogError(OSError):
    """The file has other content than lines of an audit log."""


class Tail(NamedTuple):
    """The end of a file: the head of its chain (None without a complete line); if its last line has no newline."""

    head: Head | None
    is_torn: bool


def tail_of(descriptor: int, block_bytes: int = BLOCK_BYTES, most_bytes: int = MOST_BYTES) -> Tail:
    """Return the end of an open file.

    Raises:
        NoAuditLogError: it holds other content.
        OSError: it cannot be read.
    """
    size = position = os.fstat(descriptor).st_size
    rest = b""  # of a line whose begin is not read yet
    is_torn, has_other = False, False
    while position > 0 and size - position < most_bytes:
        start = max(0, position - block_bytes)
        content = os.pread(descriptor, position - start, start) + rest
        is_torn = is_torn if position < size else not content.endswith(b"\n")
        position = start
        rest, complete = (b"", content) if start == 0 else _divided(content)
        for line in reversed(complete.split(b"\n")):
            # Each line is looked at once, and parsed only if it may be one: this runs in the event loop.
            if line.startswith(b"{") and (link := link_of(line)) is not None:
                return Tail(Head(link.sequence, hash_of(line)), is_torn)
            has_other = has_other or (bool(line) and not is_cut(line))
    if position > 0 or has_other:
        raise NoAuditLogError(None, "the file has other content than an audit log")
    return Tail(None, is_torn)


def _divided(content: bytes) -> tuple[bytes, bytes]:
    """Return the end of a line whose begin is not read yet, and the lines after it."""
    end, newline, lines = content.partition(b"\n")
    return (end, lines) if newline else (content, b"")


def head_before(path: Path) -> Head:
    """Return the head of the file that was rotated away last: the latest one whose name begins with that of `path`."""
    for other in sorted(_rotated(path), key=_changed, reverse=True)[:_LOOKED_AT]:
        try:
            descriptor = os.open(other, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # a link, or not ours to read
        try:
            head = tail_of(descriptor).head
        except OSError:  # other content, such as a compressed log
            continue
        finally:
            os.close(descriptor)
        if head is not None:
            return head
    return BEGIN


def _rotated(path: Path) -> list[Path]:
    try:
        return [one for one in path.parent.iterdir() if one.name.startswith(path.name) and one.name != path.name]
    except OSError:
        return []


def _changed(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
