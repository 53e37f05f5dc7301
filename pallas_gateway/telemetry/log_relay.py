"""The pipe by which a worker's log lines reach its parent, which owns the file, its rotation and stderr.

A worker formats its own records, because only it knows their call and the secrets to hide. A frame on the pipe is one
byte for the output, four for the length, and the line in UTF-8.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import override

from pallas_gateway.telemetry.log_outputs import FileOutput, FinishedLines, StderrOutput, formatted

FILE, STDERR = b"F", b"E"
READ_BYTES = 1 << 20
_HEADER = struct.Struct(">cI")


class LogPipe:
    """A worker's end of its pipe.

    Args:
        descriptor: the pipe's end for writing; a write to a full pipe blocks.
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
        with self._lock:  # a long frame is written in parts, and threads log too
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


class _PipeOutput(logging.Handler):
    def __init__(self, pipe: LogPipe, kind: bytes) -> None:
        super().__init__()
        self._pipe = pipe
        self._kind = kind

    @override
    def emit(self, record: logging.LogRecord) -> None:
        record.worker = self._pipe.worker
        line = formatted(self, record)
        try:
            self._pipe.send(self._kind, line)
        except OSError:
            if self._kind == STDERR and sys.__stderr__ is not None:
                with suppress(OSError, ValueError):
                    sys.__stderr__.write(f"{line}\n")  # the parent is gone


async def write_lines(pipe: asyncio.StreamReader) -> None:
    """Write the lines of a worker's pipe to the outputs of this process, until the worker has ended."""
    rest = b""  # an incomplete frame; at the end, the last one of a killed worker
    while received := await pipe.read(READ_BYTES):
        lines, rest = _split_frames(rest + received)
        for kind in (STDERR, FILE):
            _write(kind, [line for of, line in lines if of == kind])


def _split_frames(received: bytes) -> tuple[list[tuple[bytes, str]], bytes]:
    """Output and line of each complete frame, and the begun next one."""
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
