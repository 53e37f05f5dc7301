"""A worker's side of its channel, with a test in place of the parent."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.process.workers.channel import frame_of_call
from pallas_gateway.process.workers.start import Rereading, Start
from pallas_gateway.process.workers.worker_side import WorkerSide
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Joined:
    """A worker's side, its parent's end of the channel, and the event that ends the worker."""

    side: WorkerSide
    parent: socket.socket
    stop: asyncio.Event

    async def may_close(self) -> None:
        await asyncio.wait_for(self.side.until_all_stopped(), 20)


@asynccontextmanager
async def joined(folder: Path, worker: int = 1) -> AsyncGenerator[Joined]:
    ours, theirs = socket.socketpair()
    configuration: Any = SimpleNamespace(deployment=SimpleNamespace(gateway=SimpleNamespace(drain_seconds=0.1)))
    rereading = Rereading(None, Overrides(), watch=False)
    log = os.open(os.devnull, os.O_WRONLY)
    start = Start(configuration, rereading, worker, (), theirs.detach(), log, folder, 0, b"key", "0a1b2c3d")
    stop = asyncio.Event()
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        async with WorkerSide(start, stop, asyncio.Event()) as side:
            yield Joined(side, ours, stop)
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
        ours.close()
        os.close(log)


async def test_a_message_that_cannot_be_read_is_logged_and_those_after_it_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(tmp_path) as it:
        failing, close = frame_of_call("worker", "cancel", "too few values"), frame_of_call("worker", "close")
        it.parent.sendall(failing + struct.pack("!Q", 4) + b"none" + close)
        await it.may_close()
        assert not it.stop.is_set()
    assert caplog.messages[:2] == ["worker message failed", "worker message unreadable"]


async def test_a_channel_that_fails_ends_its_worker_which_is_no_orphan(tmp_path: Path) -> None:
    async with joined(tmp_path) as it:
        it.side._channel._reader.set_exception(RuntimeError("by a test"))
        await eventually(it.stop.is_set, what="a stop")
        await it.may_close()
        assert not it.side.is_orphan


async def test_a_worker_without_a_parent_stops_and_uses_no_more_states(tmp_path: Path) -> None:
    async with joined(tmp_path) as it:
        using = asyncio.create_task(it.side.shared.parts.sessions.waiting_calls._uses.use("ticket", 60))
        await asyncio.sleep(0)
        it.parent.close()
        await it.may_close()
        assert it.stop.is_set()
        assert it.side.is_orphan
        with pytest.raises(StatesUnavailableError):
            await using


def test_a_worker_that_is_blocked_ends_without_its_parent_nevertheless() -> None:
    reading, writing = os.pipe()
    program = (
        "import sys, time; from pallas_gateway.process.workers.worker_side import end_after_parent\n"
        "end_after_parent(int(sys.argv[1]), lambda: 0.1); print('blocked', flush=True); time.sleep(3600)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(writing)]
    with subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.PIPE, env=environ) as blocked:
        os.close(writing)
        try:
            assert blocked.stdout is not None
            assert blocked.stdout.readline() == b"blocked\n"
            assert blocked.poll() is None
            os.close(reading)
            assert blocked.wait(20) == 1
        finally:
            blocked.kill()


@pytest.mark.parametrize(("worker", "is_first"), [(1, True), (2, False), (3, False)])
async def test_one_of_the_workers_checks_health(worker: int, is_first: bool, tmp_path: Path) -> None:
    async with joined(tmp_path, worker) as it:
        assert it.side.shared.is_first == is_first
