"""Child processes: their streams, exit codes and ends, under the event loop of `serve` and that of tests."""

from __future__ import annotations

import asyncio
import sys
from threading import enumerate as threads
from typing import TYPE_CHECKING

import pytest
import uvloop

from pallas_gateway import child_processes
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pallas_gateway.child_processes import ChildProcess

    type Run = Callable[[Callable[[], Awaitable[None]]], None]

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function in an event loop; afterwards nothing of its processes is left."""

    async def checked(use: Callable[[], Awaitable[None]]) -> None:
        await child_processes.end(await python(""), 1)  # libuv opens a file of its own with the first pipe
        before = snapshot()
        await use()
        await assert_nothing_left(before)
        await eventually(lambda: not any("wait for process" in one.name for one in threads()), what="no thread")

    return lambda use: asyncio.run(checked(use), loop_factory=request.param)


async def python(source: str) -> ChildProcess:
    arguments = ("-I", "-S", "-c", source)
    return await child_processes.start(sys.executable, arguments, environ={}, directory=None, longest_line=2**16)


def test_a_process_reads_its_input_and_has_an_exit_code(run: Run) -> None:
    async def use() -> None:
        process = await python("import sys; print(sys.stdin.readline().upper(), flush=True); sys.exit(3)")
        process.stdin.write(b"hello\n")
        await process.stdin.drain()
        assert await process.stdout.readline() == b"HELLO\n"
        assert [await process.wait(), await process.wait()] == [3, 3]
        await child_processes.end(process, 0.1)

    run(use)


def test_a_process_that_ignores_signals_and_reads_nothing_is_killed(run: Run) -> None:
    async def use() -> None:
        process = await python(DEAF)
        assert await process.stdout.readline() == b"ready\n"
        process.stdin.write(bytes(2**20))
        await child_processes.end(process, 0.1)
        assert await process.wait() == -9

    run(use)


def test_a_command_that_is_missing_leaves_nothing(run: Run) -> None:
    async def use() -> None:
        with pytest.raises(FileNotFoundError):
            await child_processes.start("no-such-program", [], environ={}, directory=None, longest_line=1)

    run(use)


def test_a_start_that_is_cancelled_leaves_nothing(run: Run) -> None:
    async def use() -> None:
        starting = asyncio.create_task(python(DEAF))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()

    run(use)
