"""Server processes: started, waited for, watched through /proc, ended. Linux only."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

HOST = "127.0.0.1"
REPOSITORY = Path(__file__).parent.parent
START_SECONDS = 180.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")
"""The rest of the environment would make runs on two machines differ: proxies, keys, where the trust store is."""


@dataclass(frozen=True)
class Process:
    """A running server, its children included."""

    pid: int
    port: int
    log: Path
    seconds_to_ready: float

    @property
    def cpu_seconds(self) -> float:
        """CPU time so far, of the whole tree."""
        return sum(_of_each(self.pid, _cpu_seconds))

    @property
    def memory_kb(self) -> int:
        """Proportional set size of the whole tree: what would be free without it."""
        return sum(_of_each(self.pid, _memory_kb))

    @property
    def descriptors(self) -> int:
        """Open file descriptors of the whole tree."""
        return sum(_of_each(self.pid, _descriptors))


def free_port() -> int:
    """A port that was free a moment ago, for servers that cannot be handed a socket or be asked for theirs."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(
    command: Sequence[str | Path],
    *,
    folder: Path,
    name: str,
    port: int | None = None,
    ready_path: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Process]:
    """Run a server for the block.

    Args:
        command: what to start.
        folder: where to; its log goes there as well.
        name: of the log.
        port: the one `command` was told; None if the program says it on its first line.
        ready_path: a path that answers 200 once the server is ready; None: ready once the port accepts.
        environment: beside the few variables every program needs.

    Raises:
        RuntimeError: it ended or was not ready in time; quotes its log.
    """
    log = folder / f"{name}.log"
    began = monotonic()
    child = _start(command, folder, log, environment or {}, says_port=port is None)
    try:
        if port is None:
            port = await asyncio.to_thread(_said_port, child, log)
        await _until_ready(child, log, port, ready_path)
        yield Process(child.pid, port, log, monotonic() - began)
    finally:
        await asyncio.to_thread(_end, child)


def python(*arguments: str | Path) -> list[str | Path]:
    """A command for this interpreter."""
    return [sys.executable, *arguments]


def _start(
    command: Sequence[str | Path], folder: Path, log: Path, environment: Mapping[str, str], *, says_port: bool
) -> subprocess.Popen[bytes]:
    passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    with log.open("wb") as errors:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**passed_on, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if says_port else errors,
            stderr=errors,
            start_new_session=True,
        )


def _said_port(child: subprocess.Popen[bytes], log: Path) -> int:
    if child.stdout is None:
        raise RuntimeError("its output goes elsewhere")
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"did not start: {_tail(log)}")
    return int(line)


async def _until_ready(child: subprocess.Popen[bytes], log: Path, port: int, path: str | None) -> None:
    deadline = monotonic() + START_SECONDS
    while not await _is_ready(port, path):
        if child.poll() is not None or monotonic() > deadline:
            raise RuntimeError(f"not ready: {_tail(log)}")
        await asyncio.sleep(_POLL_SECONDS)


async def _is_ready(port: int, path: str | None) -> bool:
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _end(child: subprocess.Popen[bytes]) -> None:
    """End its process group, which start_new_session made its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            os.killpg(child.pid, number)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    if child.stdout is not None:
        child.stdout.close()


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    found = [root]
    for pid in found:  # grows while it is walked
        with _unless_ended():
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
    return found


def _of_each[T](root: int, read: Callable[[int], T]) -> list[T]:
    """What `read` returns for the process and its descendants, without those that have ended since they were found."""
    values = [read(root)]
    for pid in tree(root)[1:]:
        with _unless_ended():
            values.append(read(pid))
    return values


def _unless_ended() -> AbstractContextManager[None]:
    return suppress(FileNotFoundError, ProcessLookupError)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS  # of itself, and of its children that have ended


def _memory_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
