"""The chain of an audit log: each line holds the SHA-256 of the line before it.

The head of a file is read from its end, so that a huge file takes no longer than a small one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, override

if TYPE_CHECKING:
    from pallas_gateway.calls.trail import Facts

    type Value = str | int | float | bool | None
    type Entry = Facts
    from pathlib import Path

FIELDS = (
    "action",
    "outcome",
    "caller",
    "address",
    "owner",
    "new_owner",
    "agent",
    "api",
    "call_id",
    "parent",
    "grant",
    "rule",
    "reason",
    "kind",
    "tool",
    "seconds",
    "tokens",
    "left_out",
    "problems",
    "worker",
    "version",
    "threads",
)
"""Every field of a line, without `seq`, `prev` and `time`; docs/operate/audit.md has the meaning of each."""
LONGEST_VALUE = 300
"""Bytes of a text as it is written; a longer one is cut, and ends with a part of its SHA-256."""
LONGEST_LINE = 4095
"""Bytes of a line: with its newline it is written to a pipe in one piece."""
LARGEST_SEQUENCE = 10**18 - 1
SHORTEST_HASH = 12
"""Digits of a kept hash at the least."""
_SHORT_VALUE = 100
_DIGEST_DIGITS = 12
_LONGEST_CHARACTER = 12  # an emoji is two escapes of six
_NAMES = frozenset(FIELDS)
_HEAD = re.compile(rf"([0-9]{{1,18}}):([0-9a-f]{{{SHORTEST_HASH},64}})")
_HASH = re.compile("[0-9a-f]{64}")


class Head(NamedTuple):
    """The last line of a chain: its `seq`, and the SHA-256 of its bytes without the newline."""

    sequence: int
    hash: str

    @override
    def __str__(self) -> str:
        """Return `SEQ:HASH`."""
        return f"{self.sequence}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Parse `SEQ:HASH`; of the hash the first `SHORTEST_HASH` digits are enough.

        Raises:
            ValueError: the text has another form.
        """
        if (match := _HEAD.fullmatch(text.strip().lower())) is None:
            raise ValueError(f"a head is SEQ:HASH, with at least {SHORTEST_HASH} digits of the hash")
        return cls(int(match[1]), match[2])

    def is_of(self, kept: Head) -> bool:
        """Return True if this is the kept head, whose hash may be short."""
        return self.sequence == kept.sequence and self.hash.startswith(kept.hash)


BEGIN = Head(0, "0" * 64)
"""The head before the first line."""


class Link(NamedTuple):
    """The place of a line in its chain: its number, and the hash of the line before."""

    sequence: int
    previous: str


def next_line(head: Head, time: str, entry: Entry) -> tuple[bytes, Head]:
    """Return the line after `head` without a newline, in ASCII, and the head after it.

    Fields that are None are left out; hostile texts are cut and escaped.

    Raises:
        ValueError: the entry has a field that is not of `FIELDS`.
    """
    if not entry.keys() <= _NAMES:
        raise ValueError(f"no fields of the audit log: {sorted(entry.keys() - _NAMES)}")
    line = _line(head, time, entry, LONGEST_VALUE)
    if len(line) > LONGEST_LINE:
        line = _line(head, time, entry, _SHORT_VALUE)
    encoded = line.encode("ascii")
    return encoded, Head(head.sequence + 1, hash_of(encoded))


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def link_of(line: bytes) -> Link | None:
    """Return the link of a complete line, None for anything else."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    sequence, previous = document.get("seq"), document.get("prev")
    if (
        type(sequence) is int
        and 0 < sequence <= LARGEST_SEQUENCE
        and isinstance(previous, str)
        and _HASH.fullmatch(previous)
    ):
        return Link(sequence, previous)
    return None


def is_cut(line: bytes, head: Head | None = None) -> bool:
    """Return True if an incomplete line may be the beginning of the line after `head` (None: of any line).

    A file system may fill the rest of a line that a power failure cut with zeros.
    """
    begin = b'{"seq":' if head is None else _begin(head).encode()
    rest = line.rstrip(b"\0")
    return bool(line) and rest[: len(begin)] == begin[: len(rest)] and link_of(line) is None


def _begin(head: Head) -> str:
    return f'{{"seq":{head.sequence + 1},"prev":"{head.hash}","time":"'


def _line(head: Head, time: str, entry: Entry, longest: int) -> str:
    fields = [f',"{name}":{_json(value, longest)}' for name, value in entry.items() if value is not None]
    return f'{_begin(head)}{time}"{"".join(fields)}}}'


def _json(value: str | float, longest: int) -> str:
    if isinstance(value, str):
        short = value if len(value) <= longest else value[: longest + 1]
        encoded = _escaped(short)
        return encoded if short == value and len(encoded) <= longest + 2 else _cut(value, encoded, longest)
    return json.dumps(value) if isfinite(value) else f'"{value}"'


def _escaped(text: str) -> str:
    if not text.isascii():  # a lone surrogate is not text: some readers of JSON refuse it
        text = text.encode("utf-8", "backslashreplace").decode()
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


def _cut(value: str, encoded: str, longest: int) -> str:
    """Cut a text, and add a part of its hash: two long names must not look the same."""
    digest = hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_DIGITS]
    end = f"\\u2026#{digest}"
    kept = value[:longest]
    while len(encoded) - 2 > longest - len(end):
        over = len(encoded) - 2 - (longest - len(end))
        kept = kept[: -max(1, over // _LONGEST_CHARACTER)]
        encoded = _escaped(kept)
    return f'{encoded[:-1]}{end}"'


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
