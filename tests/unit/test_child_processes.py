"""Child processes: their streams, exit codes and ends, under the event loop of `serve` and that of tests."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from threading import Thread
from threading import enumerate as threads

import pytest
import uvloop

from pallas_gateway import child_processes
from pallas_gateway.child_processes import ChildProcess
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.stdio_processes import children
from tests.support.waiting import cancelled, eventually

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


def in_each_event_loop(test: Callable[[], Awaitable[None]]) -> Callable[..., None]:
    """Make a test of a coroutine function; after it nothing of its processes is left."""

    async def checked() -> None:
        await child_processes.end(await python(""), 1)  # libuv opens a file of its own with the first pipe
        before = snapshot()
        await test()
        await assert_nothing_left(before)
        await eventually(lambda: not any("wait for process" in one.name for one in threads()), what="no thread")

    @pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        asyncio.run(checked(), loop_factory=make)

    return run


async def python(source: str) -> ChildProcess:
    arguments = ("-I", "-S", "-c", source)
    return await child_processes.start(sys.executable, arguments, environ={}, directory=None, longest_line=2**16)


@in_each_event_loop
async def test_a_process_reads_its_input_and_has_an_exit_code() -> None:
    process = await python("import sys; print(sys.stdin.readline().upper(), flush=True); sys.exit(3)")
    process.stdin.write(b"hello\n")
    await process.stdin.drain()
    assert await process.stdout.readline() == b"HELLO\n"
    assert [await process.wait(), await process.wait()] == [3, 3]
    await child_processes.end(process, 0.1)


@in_each_event_loop
async def test_a_process_that_ignores_signals_and_reads_nothing_is_killed() -> None:
    process = await python(DEAF)
    assert await process.stdout.readline() == b"ready\n"
    process.stdin.write(bytes(2**20))
    await child_processes.end(process, 0.1)
    assert await process.wait() == -9


@in_each_event_loop
async def test_a_command_that_is_missing_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        await child_processes.start("no-such-program", [], environ={}, directory=None, longest_line=1)


@in_each_event_loop
async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    starting = asyncio.create_task(python(DEAF))
    await asyncio.sleep(0)
    await cancelled(starting)


async def test_stderr_is_appended_to_a_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    file = tmp_path / "stderr.log"
    for text in ("one", "two"):
        start = partial(child_processes.start, environ={}, directory=None, longest_line=2**16, stderr=str(file))
        process = await start(sys.executable, ("-I", "-S", "-c", f"import sys; print('{text}', file=sys.stderr)"))
        assert await process.wait() == 0
        await child_processes.end(process, 1)
    assert file.read_text() == "one\ntwo\n"
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_file_for_stderr_that_cannot_be_written_is_the_reason_of_a_failed_start(tmp_path: Path) -> None:
    file = str(tmp_path / "absent" / "stderr.log")
    start = child_processes.start("sleep", ("9",), environ={}, directory=None, longest_line=2**16, stderr=file)
    with pytest.raises(OSError, match=r"No such file") as caught:
        await start
    why = child_processes.why_not_started("sleep", None, caught.value, file)
    assert why == f"the file '{file}' for its stderr cannot be written: No such file or directory"


async def test_a_process_for_which_no_thread_can_be_started_is_a_failed_start_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = children()
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", no_thread)
        with pytest.raises(OSError, match="no thread can be started") as caught:
            await python(DEAF)
    assert children() == before
    why = child_processes.why_not_started("python", None, caught.value)
    assert why == "command 'python' cannot be started: no thread can be started"
