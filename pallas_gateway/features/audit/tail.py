"""The head of a file: read from its end, so that a huge file takes no longer than a small one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pallas_gateway.features.audit.chain import BEGIN, Head, hash_of, is_cut, link_of

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 1 << 18
"""Bytes at the end of a file that are searched for a complete line: room for 64 of the longest lines."""


class UnusableFileError(OSError):
    """Another gateway writes the file, or it has other content than lines of an audit log."""


class Tail(NamedTuple):
    """The end of a file: the head of its chain (None without a complete line); if its last line has no newline."""

    head: Head | None
    is_torn: bool


def open_file(path: Path, flags: int) -> int:
    """Open a regular file: no pipe, at which this could block, and no link, which could lead to files of others.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "the file is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")  # a pipe takes lines that no process reads
    return descriptor


def tail_of(descriptor: int) -> Tail:
    """Return the end of an open file.

    Raises:
        UnusableFileError: it holds other content.
        OSError: it cannot be read.
    """
    start = max(0, os.fstat(descriptor).st_size - MOST_BYTES)
    lines = os.pread(descriptor, MOST_BYTES, start).split(b"\n")
    is_torn = lines[-1] != b""
    for line in reversed(lines):
        if (link := link_of(line)) is not None:
            return Tail(Head(link.sequence, hash_of(line)), is_torn)
    if start > 0 or not all(is_cut(line) for line in lines if line):
        raise UnusableFileError(None, "the file has other content than an audit log")
    return Tail(None, is_torn)


def tail_of_file(path: Path) -> Tail:
    """Return the end of a file; see `open_file` and `tail_of`."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        return tail_of(descriptor)
    finally:
        os.close(descriptor)


def head_before(path: Path) -> Head:
    """Return the head of the file that was rotated away last: the latest one whose name begins with that of `path`."""
    with suppress(OSError):  # the folder cannot be listed
        rotated = [one for one in path.parent.iterdir() if one.name.startswith(path.name) and one.name != path.name]
        for one in sorted(rotated, key=lambda one: one.lstat().st_mtime_ns, reverse=True):
            with suppress(OSError):  # a link, or other content, such as a compressed log
                if (head := tail_of_file(one).head) is not None:
                    return head
    return BEGIN
