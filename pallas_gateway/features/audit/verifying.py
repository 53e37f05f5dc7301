"""Verification of an audit log: every line of its files in their order, and heads that were kept elsewhere."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import override

from pallas_gateway.features.audit.chain import BEGIN, LONGEST_LINE, Head, hash_of, is_cut, link_of

CUT = "was cut by a crash or a full disk; it is not in the chain"
FOREIGN = "is not a line of an audit log"
MOST_FINDINGS = 50
"""Findings that are kept: a file of other content may have one in each of its lines."""
_LONGEST_READ = 4 * LONGEST_LINE
_GZIP = ".gz"


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """A fault of an audit log, or a note about it, with its place as `FILE:LINE`."""

    place: str
    message: str
    is_fault: bool = True

    @override
    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.place}: {self.message}"


def verify(files: Iterable[Path], kept: Sequence[Head] = ()) -> Verification:
    """Verify files in the order of their rotation.

    Args:
        files: may be compressed by gzip.
        kept: heads that were kept elsewhere.

    Raises:
        OSError: a file cannot be read.
    """
    verification = Verification(kept)
    for path in files:
        with path.open("rb") as file:
            content = gzip.GzipFile(fileobj=file) if path.suffix == _GZIP else file
            try:
                for number, line in enumerate(_lines(content), 1):
                    verification.take(line, f"{path}:{number}")
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise OSError(None, f"the compressed file is damaged: {error}", str(path)) from error
            except OSError as error:  # of a read, which does not know the name
                raise OSError(error.errno, error.strerror, str(path)) from error
    verification.end()
    return verification


class Verification:
    """The verification of one chain, line by line.

    Attributes:
        head: the last line; None before the first one.
        findings: the first `MOST_FINDINGS`.
        faults: number of all findings that are faults.
        left_out: number of findings that were not kept.
    """

    def __init__(self, kept: Sequence[Head]) -> None:
        self.findings: list[ChainFinding] = []
        self.faults = self.left_out = 0
        self.head: Head | None = None
        self._kept = kept
        self._matched: set[Head] = set()
        self._first: list[tuple[str, bytes]] = []
        self._place = "audit log"

    def take(self, line: bytes, place: str) -> None:
        """Take the next line, without its newline."""
        self._place = place
        if len(line) > LONGEST_LINE:
            self._fault(place, f"is longer than any line of an audit log ({LONGEST_LINE} bytes)")
        elif (link := link_of(line)) is None:
            self._take_incomplete(line, place)
        else:
            if self.head is None:
                self._begin(Head(link.sequence - 1, link.previous), place)
            elif (fault := _break(self.head, Head(link.sequence - 1, link.previous))) is not None:
                self._fault(place, fault)
            self.head = Head(link.sequence, hash_of(line))
            self._match(self.head)

    def end(self) -> None:
        """Look for the kept heads, after all lines."""
        if self.head is None:
            self._note_first(BEGIN)
        for one in self._kept:
            if one not in self._matched:
                self._fault(self._place, self._why_unmatched(one))

    def _take_incomplete(self, line: bytes, place: str) -> None:
        if self.head is None and is_cut(line) and len(self._first) < MOST_FINDINGS:
            self._first.append((place, line))
        elif self.head is not None and is_cut(line, self.head):
            self._note(place, CUT)
        else:
            self._fault(place, FOREIGN)

    def _begin(self, before: Head, place: str) -> None:
        """Begin with the head before the first complete line: the files may begin later than the log."""
        self._match(before)
        if before.sequence > 0 and not self._matched:
            missing = f"lines 1 to {before.sequence} are missing" if before.sequence > 1 else "line 1 is missing"
            self._fault(place, f"{missing}: name the files before, or a kept head: --expect {before.sequence}:HASH")
        elif before.sequence > 0:
            message = f"follows the kept head of line {before.sequence}; the lines before are not in these files"
            self._note(place, message)
        elif before != BEGIN:
            self._fault(place, "is numbered 1 and refers to a line before it")
        self._note_first(before)

    def _note_first(self, before: Head) -> None:
        """Judge incomplete lines at the beginning of the log."""
        for place, line in self._first:
            if is_cut(line, before):
                self._note(place, CUT)
            else:
                self._fault(place, FOREIGN)

    def _match(self, head: Head) -> None:
        self._matched.update(one for one in self._kept if head.is_of(one))

    def _why_unmatched(self, kept: Head) -> str:
        last = self.head.sequence if self.head is not None else 0
        if kept.sequence > last:
            return f"the log ends with line {last}; the kept head is of line {kept.sequence}: lines are missing"
        return f"line {kept.sequence} is not the one of the kept head: it or a line before it was changed or removed"

    def _fault(self, place: str, message: str) -> None:
        self.faults += 1
        self._add(ChainFinding(place, message))

    def _note(self, place: str, message: str) -> None:
        self._add(ChainFinding(place, message, is_fault=False))

    def _add(self, finding: ChainFinding) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        else:
            self.left_out += 1


def _break(head: Head, before: Head) -> str | None:
    """Return why a line does not follow `head`; `before` is the head that it names. None if it follows."""
    if before == head:
        return None
    if before.sequence == head.sequence:
        return f"refers to another line {head.sequence} than the one before it: that one was changed"
    if before.sequence == head.sequence + 1:
        return f"line {before.sequence} is missing"
    if before.sequence > head.sequence:
        return f"lines {head.sequence + 1} to {before.sequence} are missing"
    if before == BEGIN:
        return f"a new chain begins after line {head.sequence}"
    return f"line {before.sequence + 1} follows line {head.sequence}: the order was changed, or a line was added"


def _lines(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield the lines of a file without newlines; of a line that is too long its beginning."""
    while line := file.readline(_LONGEST_READ):
        is_whole = line.endswith(b"\n")
        yield line[:-1] if is_whole else line
        while not is_whole and (rest := file.readline(_LONGEST_READ)):
            is_whole = rest.endswith(b"\n")
