"""Child processes that speak over their pipes: their start, their end, and the reason why one cannot be started.

They run without a shell. Their stderr is discarded, because it may show configured secrets.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator, Mapping, Sequence

PIECE = 2**16
"""Bytes of output that are read at once. A program that prints faster than it is read has to wait after two of them."""


async def start(
    command: str, arguments: Sequence[str], *, environ: Mapping[str, str], directory: str | None, longest_line: int
) -> Process:
    """Start a process with pipes for its input and output.

    Raises:
        OSError, ValueError: it cannot be started; see `why_not_started`.
    """
    return await asyncio.create_subprocess_exec(
        command,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environ),
        cwd=directory,
        limit=longest_line,
        start_new_session=True,  # so that its own child processes end with it
    )


def why_not_started(command: str, directory: str | None, error: OSError | ValueError) -> str:
    """Return the reason as a clause; `error` is that of `start`."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if directory is not None and error.filename == directory:
            return f"its working directory '{directory}' is not there"
        return f"command '{command}' not found"
    if isinstance(error, PermissionError):
        return f"command '{command}' may not be run"
    return f"command '{command}' cannot be started: {getattr(error, 'strerror', None) or 'it is malformed'}"


async def lines(output: StreamReader, longest: int) -> AsyncGenerator[bytes]:
    """Yield the lines of the output of a process that was started with `longest_line=PIECE`.

    Raises:
        ValueError: a line has more than `longest` bytes.
    """
    parts: list[bytes] = []
    size = 0
    while piece := await output.read(PIECE):
        first, *others = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > longest:
            raise ValueError("a line is too long")
        for line in others:
            yield b"".join(parts)
            parts, size = [line], len(line)
    if size:
        yield b"".join(parts)


async def end(process: Process, leave_seconds: float) -> None:
    """End and reap the process with its child processes: close its input, then SIGTERM, then SIGKILL."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        if not await _is_gone(process, leave_seconds):
            _signal_all(process, signal.SIGTERM)
            await _is_gone(process, leave_seconds)
    finally:
        _signal_all(process, signal.SIGKILL)  # also if it has ended: its child processes may still run
        # One that has left the session may keep the pipes open, and would be read for ever.
        process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public name for it
    await process.wait()


async def _is_gone(process: Process, seconds: float) -> bool:
    """Return true if it ends within `seconds`; its output is read, because a full pipe would block it."""
    try:
        async with asyncio.timeout(seconds):
            while process.stdout is not None and await process.stdout.read(2**16):
                pass
            await process.wait()
    except TimeoutError:
        return False
    return True


def _signal_all(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
