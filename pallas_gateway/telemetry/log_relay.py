"""Log lines of a worker, written by its parent: one process owns the file, its rotation and stderr.

A worker formats its records itself, because only it knows the call they belong to and the secrets to hide. On the pipe
each is a frame: one byte for the output, four for the length, and the line in UTF-8.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from pallas_gateway.telemetry.log_outputs import FileOutput, FinishedLines, StderrOutput, formatted

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE, STDERR = b"F", b"E"
READ_BYTES = 1 << 20
_HEADER = struct.Struct(">cI")


class LogPipe:
    """A worker's end of its pipe.

    Args:
        descriptor: of the pipe, for writing; a full one is waited for.
        worker: the number that every record gets as its field `worker`.
    """

    def __init__(self, descriptor: int, worker: int) -> None:
        self.worker = worker
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def output(self, kind: bytes) -> logging.Handler:
        """A handler for one of the parent's outputs."""
        return _PipeOutput(self, kind)

    def send(self, kind: bytes, line: str) -> None:
        """Hand over one line.

        Raises:
            OSError: the parent is gone.
        """
        content = line.encode(errors="backslashreplace")
        frame = memoryview(_HEADER.pack(kind, len(content)) + content)
        with self._lock:  # a pipe takes long frames in parts, and threads log as well
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


class _PipeOutput(logging.Handler):
    def __init__(self, pipe: LogPipe, kind: bytes) -> None:
        super().__init__()
        self._pipe = pipe
        self._kind = kind

    def emit(self, record: logging.LogRecord) -> None:
        record.worker = self._pipe.worker
        line = formatted(self, record)
        try:
            self._pipe.send(self._kind, line)
        except OSError:
            if self._kind == STDERR and sys.__stderr__ is not None:
                with suppress(OSError, ValueError):
                    sys.__stderr__.write(f"{line}\n")  # nobody is left to write it


async def write_lines(pipe: asyncio.StreamReader) -> None:
    """Write the lines that a worker's pipe brings to the outputs of this process, until the worker has ended."""
    rest = b""  # in the end, a killed worker's last frame
    while received := await pipe.read(READ_BYTES):
        lines, rest = _taken_apart(rest + received)
        for kind in (STDERR, FILE):
            _write(kind, [line for of, line in lines if of == kind])


def _taken_apart(received: bytes) -> tuple[list[tuple[bytes, str]], bytes]:
    """Each whole frame's output and line, and what has come of the next one."""
    lines: list[tuple[bytes, str]] = []
    at = 0
    while len(received) - at >= _HEADER.size:
        kind, length = _HEADER.unpack_from(received, at)
        begin = at + _HEADER.size
        if begin + length > len(received):
            break
        at = begin + length
        lines.append((kind, received[begin:at].decode()))
    return lines, received[at:]


def _write(kind: bytes, lines: Sequence[str]) -> None:
    wanted = FileOutput if kind == FILE else StderrOutput
    for handler in logging.getLogger().handlers:
        if lines and isinstance(handler, wanted):
            handler.handle(FinishedLines(lines))
