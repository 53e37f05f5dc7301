"""Child processes that speak over their pipes: their start, their end, and the reason why one cannot be started.

They run without a shell. Their stderr, which may show configured secrets, is discarded unless a file is given for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, suppress
from socket import socketpair
from subprocess import DEVNULL, Popen
from threading import Thread

PIECE = 2**16
"""Bytes of output that are read at once. A program that prints faster than it is read has to wait after two of them."""


class ChildProcess:
    """A running process with streams for its input and output, which `end` closes.

    asyncio's subprocesses are not used: under uvloop they `fork`, which copies the page tables of the gateway and stops
    the event loop for several milliseconds. `Popen` uses `vfork`.
    """

    def __init__(self, process: Popen[bytes], stdin: StreamWriter, stdout: StreamReader, output: StreamWriter) -> None:
        self.pid = process.pid
        self.stdin = stdin
        self.stdout = stdout
        self._output = output
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        Thread(target=_reap, args=(process, self._exit), name=f"wait for process {self.pid}", daemon=True).start()

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def close(self) -> None:
        """Close the streams, and discard what the process has not read."""
        self.stdin.transport.abort()
        self._output.transport.abort()


async def start(  # noqa: PLR0913  the parts of a process
    command: str,
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    directory: str | None,
    longest_line: int,
    stderr: str | int | None = None,
) -> ChildProcess:
    """Start a process with sockets for its input and output, as uvloop does.

    `stderr` is a file to which its stderr is appended, or its descriptor.

    Raises:
        OSError, ValueError: it cannot be started; see `why_not_started`.
    """
    with ExitStack() as on_failure, ExitStack() as opened:
        if isinstance(stderr, str):
            stderr = os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
            os.set_blocking(stderr, True)  # only its opening must not wait, for the reader of a pipe
            opened.callback(os.close, stderr)
        (ours_in, its_in), (ours_out, its_out) = socketpair(), socketpair()
        with its_in, its_out:
            on_failure.callback(ours_in.close)
            on_failure.callback(ours_out.close)
            _, stdin = await asyncio.open_unix_connection(sock=ours_in)
            on_failure.callback(stdin.transport.abort)
            stdout, output = await asyncio.open_unix_connection(sock=ours_out, limit=longest_line)
            on_failure.callback(output.transport.abort)
            process = Popen(  # noqa: ASYNC220, S603  the configured command; `vfork` takes less than a thread
                [command, *arguments],
                stdin=its_in.fileno(),
                stdout=its_out.fileno(),
                stderr=DEVNULL if stderr is None else stderr,
                env=dict(environ),
                cwd=directory,
                start_new_session=True,  # so that its own child processes end with it
            )
            on_failure.callback(process.wait)
            on_failure.callback(process.kill)
            try:
                child = ChildProcess(process, stdin, stdout, output)
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, "no thread can be started") from error
        on_failure.pop_all()
    return child


def _reap(process: Popen[bytes], exit_code: asyncio.Future[int]) -> None:
    code = process.wait()
    with suppress(RuntimeError):  # the event loop has been closed
        exit_code.get_loop().call_soon_threadsafe(exit_code.set_result, code)


def why_not_started(command: str, directory: str | None, error: OSError | ValueError, stderr: str | None = None) -> str:
    """Return the reason as a clause; `error` is that of `start`."""
    if stderr is not None and isinstance(error, OSError) and error.filename == stderr:
        return f"the file '{stderr}' for its stderr cannot be written: {error.strerror}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if directory is not None and error.filename == directory:
            return f"its working directory '{directory}' is not there"
        return not_found(command)
    if isinstance(error, PermissionError):
        return f"command '{command}' may not be run"
    return f"command '{command}' cannot be started: {getattr(error, 'strerror', None) or 'it is malformed'}"


def not_found(command: str) -> str:
    """Return that there is no such program, as a clause."""
    hint = " (arguments belong in `args`)" if len(command.split()) > 1 else ""
    return f"command '{command}' not found{hint}"


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


async def end(process: ChildProcess, leave_seconds: float) -> None:
    """End and reap the process with its child processes: close its input, then SIGTERM, then SIGKILL."""
    process.stdin.close()
    try:
        if not await _is_gone(process, leave_seconds):
            _signal_all(process, signal.SIGTERM)
            await _is_gone(process, leave_seconds)
    finally:
        _signal_all(process, signal.SIGKILL)  # also if it has ended: its child processes may still run
        process.close()  # a child process that has left the session may keep them open, and would be read for ever
    await process.wait()


async def _is_gone(process: ChildProcess, seconds: float) -> bool:
    """Return true if it ends within `seconds`; its output is read, because a full pipe would block it."""
    try:
        async with asyncio.timeout(seconds):
            while await process.stdout.read(2**16):
                pass
            await process.wait()
    except TimeoutError:
        return False
    return True


def _signal_all(process: ChildProcess, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
