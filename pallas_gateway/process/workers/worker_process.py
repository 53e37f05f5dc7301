"""One worker as its parent sees it: a process, its channel, its log lines, and how it ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, override

from pallas_gateway.process.workers.channel import Channel
from pallas_gateway.process.workers.start import written
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.log_relay import write_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.process.workers.start import Start

MOST_BACKLOG = 128 << 20
"""Bytes that may wait for a worker that does not read, before it is replaced."""
LAST_LINES_SECONDS = 2.0
"""Time for which the log pipe of an ended worker is read; its own child processes may hold it open."""
SETTLED_SECONDS = 60.0
"""A worker that ran this long did not fail because of its start."""
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The end of a worker: with an exit code or by a signal; with neither, it could not be started."""

    code: int | None
    signal: str | None
    was_ready: bool
    seconds: float
    why: str | None = None

    @property
    def fields(self) -> dict[str, object]:
        how = {"exit_code": self.code, "signal": self.signal, "error": self.why}
        return {name: value for name, value in how.items() if value is not None}

    @override
    def __str__(self) -> str:
        """Return the reason, the signal or the exit code."""
        return self.why or (f"it was ended by {self.signal}" if self.signal else f"exit code {self.code}")


class WorkerProcess:
    """A running worker; an async context manager that kills it at the end of its block.

    Args:
        command: the program to run, which reads its `Start` from stdin.
        environ: its environment.
        start: its `channel` and `log` are set here.

    Attributes:
        heard_at: when it has last responded, by `monotonic`.
        summary: its state in one line.
        was_ready: every agent was tried.
        has_stopped: its calls have ended and its agents are closed; it refuses calls until it may close.
        has_closed: it accepts no more connections.
        why: the reason of its end, if it is known.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], start: Start) -> None:
        self.number = start.worker
        self.name = secrets.token_hex(4)
        self.heard_at = monotonic()
        self.summary = "starting"
        self.was_ready = self.has_stopped = self.has_closed = False
        self.why: str | None = None
        self._command = command
        self._environ = environ
        self._start = start
        self._started_at = monotonic()
        self._tasks = TaskOwner(close_seconds=LAST_LINES_SECONDS)

    @property
    def configuration(self) -> Configuration:
        return self._start.configuration

    @property
    def pid(self) -> int:
        return self._process.pid

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, closing(theirs):
            undo.callback(ours.close)
            reading, writing = os.pipe()
            undo.callback(os.close, reading)
            with os.fdopen(writing, "wb", 0):
                start = replace(self._start, channel=theirs.fileno(), log=writing, process=self.name)
                handed_over = written(start)
                self._reader, self._writer = await asyncio.open_connection(sock=ours)
                undo.callback(self._writer.close)
                # Last, because it cannot be undone. The worker's stdout is stderr: only the parent prints results.
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=subprocess.PIPE,
                    stdout=2,
                    env=dict(self._environ),
                    pass_fds=start.descriptors,
                )
            undo.pop_all()
        self._tasks.spawn(self._write_lines(reading), name="log lines of a worker", report=True)
        self._tasks.spawn(self._hand_over(handed_over), name="start of a worker", report=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._process.returncode is None:
                self.kill()
                await self._process.wait()
            await self._tasks.__aexit__()
        finally:
            self._writer.close()

    async def listen(self, services: Mapping[str, object]) -> None:
        """Carry out its calls until its channel has ended. If that ends by an error, the worker is killed."""
        self._channel = Channel(self._reader, self._writer, services, self._kill_if_it_does_not_read)
        try:
            await self._channel.listen()
        except Exception as error:  # noqa: BLE001  of any kind; it is logged with the end of the worker
            self.why = f"its channel failed: {error}"
            self.kill()

    async def ended(self, seconds: float) -> WorkerEnd:
        """Wait for its end, which is forced after `seconds`, and return how it ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self.why = "its channel ended before it"
            self.kill()
        code = await self._process.wait()
        by = signal.Signals(-code).name if code < 0 else None
        return WorkerEnd(None if by else code, by, self.was_ready, monotonic() - self._started_at, self.why)

    def tell(self, service: str, method: str, *values: Any) -> None:
        """Call a method of it, unless it is gone. If it has left too much unread, it is killed."""
        self._channel.tell(service, method, *values)

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _kill_if_it_does_not_read(self) -> None:
        if self._channel.unread > MOST_BACKLOG:
            self.why = "it did not read its messages"
            self.kill()

    async def _hand_over(self, start: bytes) -> None:
        if (stdin := self._process.stdin) is None:
            return
        with suppress(OSError):  # it has ended; `ended` returns the reason
            stdin.write(start)
            await stdin.drain()
        stdin.close()

    async def _write_lines(self, descriptor: int) -> None:
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, os.fdopen(descriptor, "rb", 0)
        )
        try:
            await write_lines(lines)
        finally:
            transport.close()


def restart_seconds(deaths: int, lived_seconds: float) -> tuple[int, float]:
    """Return the number of early ends in a row, this one included, and the pause in seconds before a new start.

    There is none at first, and a longer one after each early end.
    """
    if lived_seconds >= SETTLED_SECONDS:
        deaths = 0
    if deaths == 0:
        return 1, 0.0
    return deaths + 1, min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(deaths - 1, 10))
