"""The parent of several workers, with programs that only behave like workers."""

import asyncio
import errno
import io
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.process.workers import worker_process
from pallas_gateway.process.workers.manager import WorkerManager, WorkersError
from pallas_gateway.process.workers.start import Plan, Rereading, Start
from pallas_gateway.process.workers.worker_process import (
    LAST_PAUSE_SECONDS,
    SETTLED_SECONDS,
    WorkerProcess,
    restart_seconds,
)
from pallas_gateway.telemetry import logs
from tests.support import fake_worker, forked
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.patient_gateway import fork_workers
from tests.support.waiting import cancelled, eventually

type Fleet = Callable[..., AbstractAsyncContextManager[Run]]


REREADING = Rereading(None, Overrides(), watch=False)
COMMAND = (sys.executable, "-P", str(Path(fake_worker.__file__)))
AT_ONCE = lambda *_: (1, 0.0)  # noqa: E731


@pytest.fixture(autouse=True)
def forked_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes are forked, not started, which takes a tenth of the CPU."""
    if forked.IS_POSSIBLE:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", asyncio.create_subprocess_exec)  # what is put back
        fork_workers(forked.Forked, COMMAND)


def configuration(drain_seconds: float = 0.1, **more: Any) -> Any:
    """What a fleet looks at of one; a real one would have each fake import what checks it."""
    gateway = GatewaySettings(drain_seconds=drain_seconds)
    return SimpleNamespace(deployment=SimpleNamespace(gateway=gateway), tls_files=None, **more)


class Run:
    def __init__(
        self,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
        stack: ExitStack,
        command: Sequence[str] = COMMAND,
        on_ready: Callable[[str], Any] | None = None,
        *,
        watch: bool = False,
        **limits: Any,
    ) -> None:
        self.folder, self.caplog = folder, caplog
        self.sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        self.sockets[0].setblocking(False)
        self.port = self.sockets[0].getsockname()[1]
        self.announced: list[str] = []
        self.stopping: list[bool] = []
        self.stop = asyncio.Event()
        descriptors = tuple(one.fileno() for one in self.sockets)
        rereading = replace(REREADING, watch=watch)
        start = Start(configuration(), rereading, 0, descriptors, channel=-1, log=-1, folder=folder, restarts=0)
        plan = Plan(
            2,
            (*command, str(folder)),
            lambda: {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start,
            self.sockets,
        )
        self.fleet = WorkerManager(
            plan,
            [],
            on_ready=on_ready or self.announced.append,
            on_stop=lambda: self.stopping.append(True),
            **limits,
        )
        self.running = asyncio.create_task(self.fleet.run(self.stop))

    def heard(self, number: int, what: str = "heard") -> list[str]:
        file = self.folder / f"{what}-{number}"
        return file.read_text().splitlines() if file.exists() else []

    def starts(self, number: int) -> list[str]:
        """The restarts that each process with this number was told to count."""
        return self.heard(number, "starts")

    async def until_announced(self) -> None:
        await eventually(lambda: self.announced or self.running.done(), what="an announcement")

    async def ends(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.running), 20)

    def logged(self, message: str = "worker ended") -> dict[str, Any]:
        """The fields of the only line with this message."""
        [record] = [one for one in self.caplog.records if one.message == message]
        return vars(record)

    async def stops(self) -> None:
        self.stop.set()
        await self.ends()


@pytest.fixture
def fleet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Fleet:
    """Starts a fleet of two fakes, by what the processes of each do one after the other."""

    @asynccontextmanager
    async def started(
        one: Sequence[str] = ("serves",), two: Sequence[str] = ("serves",), **options: Any
    ) -> AsyncGenerator[Run]:
        (tmp_path / "plan.json").write_text(json.dumps({"1": list(one), "2": list(two)}))
        with ExitStack() as stack:
            run = Run(tmp_path, caplog, stack, **options)
            try:
                yield run
            finally:
                run.stop.set()
                await asyncio.wait({run.running}, timeout=20)
                run.running.exception()

    return started


async def test_the_announcement_is_made_once_when_every_worker_is_ready(fleet: Fleet) -> None:
    async with fleet() as run:
        assert not run.fleet.was_complete
        await run.until_announced()
        assert run.fleet.was_complete
        await eventually(lambda: run.fleet.summary == "2 workers, each: 2 of 2 agents ready", what="the summary")
        await run.stops()
    assert run.announced in (["announced by 1\n"], ["announced by 2\n"])
    assert run.stopping == [True]


async def test_all_stop_then_close_and_the_port_refuses_when_they_have(fleet: Fleet) -> None:
    async with fleet() as run:
        await run.until_announced()
        await run.stops()
        assert "worker.close" in run.heard(1)
        assert "worker.close" in run.heard(2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", run.port), timeout=5)


async def test_who_waits_to_be_accepted_at_the_end_is_told_that_the_gateway_stops(fleet: Fleet) -> None:
    async with fleet() as run:
        await run.until_announced()
        with socket.create_connection(("127.0.0.1", run.port), timeout=20) as late:  # fakes accept nobody
            late.sendall(b"GET / HTTP/1.1\r\n\r\n")
            run.stop.set()
            said = (await asyncio.to_thread(late.recv, 4096)).decode()
        await run.ends()
    assert said.startswith("HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"one": ["fails"], "two": ["fails"]}, f"worker . could not start: {fake_worker.FAILURE}$"),
        ({"one": ["crashes"], "two": ["crashes"]}, "could not start: exit code 3"),
        ({"command": ("/nowhere/python",)}, "No such file"),
    ],
    ids=["says why", "ends by itself", "is not there"],
)
async def test_a_worker_that_cannot_start_ends_the_fleet_with_its_reason(
    options: dict[str, Any], why: str, fleet: Fleet
) -> None:
    async with fleet(**options) as run:
        with pytest.raises(WorkersError, match=why):
            await run.ends()
    assert run.announced == []


async def test_one_that_is_killed_at_its_start_is_tried_again(fleet: Fleet) -> None:
    async with fleet(["is_killed", "serves"]) as run:
        await run.until_announced()
        assert run.announced


async def test_one_that_ends_is_replaced_at_once_and_the_next_start_counts_it(fleet: Fleet) -> None:
    async with fleet(["dies", "serves"]) as run:
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        await run.until_announced()
    assert run.starts(1) == ["0", "1"]
    assert run.logged().items() >= {"levelno": logging.ERROR, **{"worker": 1, "exit_code": 3, "pause": 0.0}}.items()


async def test_a_restart_that_nobody_lived_to_count_is_counted_by_the_next(fleet: Fleet) -> None:
    async with fleet(["dies", "is_killed", "serves"], restart=AT_ONCE) as run:
        await run.until_announced()
        await eventually(lambda: len(run.starts(1)) == 3, what="a third start")
    assert run.starts(1) == ["0", "1", "2"]


def test_the_first_early_death_costs_no_time_and_each_further_one_more_up_to_a_limit() -> None:
    deaths, pauses = 0, []
    for _ in range(8):
        deaths, pause = restart_seconds(deaths, 0.5)
        pauses.append(pause)
    assert pauses == [0, 1, 2, 4, 8, LAST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LAST_PAUSE_SECONDS]
    assert restart_seconds(deaths, SETTLED_SECONDS) == (1, 0)


async def test_a_stop_does_not_wait_for_the_next_try(fleet: Fleet) -> None:
    async with fleet(["dies"], restart=lambda *_: (1, 3600.0)) as run:
        await run.until_announced()
        await run.stops()


async def test_a_cancelled_request_is_handed_to_the_others_and_not_back(fleet: Fleet) -> None:
    async with fleet(two=["cancels"]) as run:
        await eventually(lambda: "worker.cancel" in run.heard(1), what="a cancellation")
        assert "worker.cancel" not in run.heard(2)


async def test_a_worker_that_leaves_too_many_messages_unread_is_replaced(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "MOST_BACKLOG", 100_000)
    async with fleet(["hangs", "serves"], ["floods"]) as run:
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        await eventually(lambda: run.fleet._workers[2].summary == "2 of 2 agents ready", what="the end of the flood")
    assert run.logged().items() >= {"worker": 1, "signal": "SIGKILL", "error": "it did not read its messages"}.items()


async def test_a_worker_without_a_channel_is_replaced_after_the_time_of_a_stop(fleet: Fleet) -> None:
    async with fleet(["closes", "serves"], stop_seconds=0.1) as run:
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        assert run.starts(2) == ["0"]
    assert run.logged().items() >= {"worker": 1, "signal": "SIGKILL", "error": "its channel ended before it"}.items()


async def test_a_worker_whose_channel_fails_is_replaced_and_the_others_serve_on(fleet: Fleet) -> None:
    async with fleet(restart=AT_ONCE) as run:
        await run.until_announced()
        run.fleet._workers[1]._reader.set_exception(RuntimeError("by a test"))
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        assert not run.running.done()
        assert run.starts(2) == ["0"]
    assert run.logged().items() >= {"worker": 1, "error": "its channel failed: by a test"}.items()


@pytest.mark.parametrize("moment", range(12))
async def test_a_worker_whose_start_is_cancelled_leaves_neither_a_process_nor_a_descriptor(
    tmp_path: Path, moment: int
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"1": ["serves"]}))
    start = Start(configuration(), REREADING, 1, (), channel=-1, log=-1, folder=tmp_path, restarts=0)
    command = (sys.executable, str(Path(fake_worker.__file__)), str(tmp_path))  # started, not forked
    worker = WorkerProcess(command, {"PYTHONPATH": os.pathsep.join(sys.path)}, start)

    async def run() -> None:
        async with worker:
            await asyncio.Event().wait()

    await (await asyncio.create_subprocess_exec("true")).wait()  # whatever the first child of a loop leaves open
    before, others = snapshot(), children()  # of tests whose fixtures live as long as the session
    running = asyncio.create_task(run())
    for _ in range(moment):
        await asyncio.sleep(0)
    await cancelled(running)
    await assert_nothing_left(before)
    await eventually(lambda: children() <= others, what="the end of the process")


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


async def test_another_that_cannot_be_started_is_tried_again_while_the_others_serve_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = asyncio.create_subprocess_exec, list[str]()

    async def lacks_memory_once(*command: Any, **options: Any) -> Any:
        tries.append("again")
        if len(tries) == 3:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return await real(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", lacks_memory_once)
    async with fleet(restart=AT_ONCE) as run:
        await run.until_announced()
        run.fleet._workers[1].kill()
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        assert run.starts(2) == ["0"]
    assert run.starts(1) == ["0", "1"]
    assert (
        run.logged("worker start failed").items() >= {"worker": 1, "error": "[Errno 12] Cannot allocate memory"}.items()
    )


async def test_workers_serve_on_whatever_comes_of_the_announcement(fleet: Fleet) -> None:
    async with fleet(on_ready=lambda _: os.write(-1, b"no such file")) as run:
        await eventually(lambda: "worker manager callback failed" in run.caplog.messages, what="a failure")
        assert not run.running.done()
        await run.stops()


async def test_one_that_says_what_cannot_be_read_serves_on(fleet: Fleet) -> None:
    async with fleet(["babbles"]) as run:
        await run.until_announced()
        assert (run.starts(1), run.starts(2)) == (["0"], ["0"])
        await run.stops()
    assert "worker message unreadable" in run.caplog.messages
    assert "worker ended" not in run.caplog.messages


async def test_one_that_somebody_stops_alone_may_close_and_is_replaced(fleet: Fleet) -> None:
    async with fleet() as run:
        await run.until_announced()
        run.fleet._workers[1].signal(signal.SIGTERM)
        await eventually(lambda: len(run.starts(1)) == 2, what="a second start")
        assert run.heard(2) == ["worker.note_end_of"]  # so that calls of the other one go on
    assert run.logged()["exit_code"] == 0


async def test_one_that_does_not_stop_is_killed(fleet: Fleet) -> None:
    async with fleet(["hangs"], stop_seconds=0.2) as run:
        await run.until_announced()
        await run.stops()
    assert [vars(one)["worker"] for one in run.caplog.records if one.message == "worker killed at stop"] == [1]


async def test_one_that_has_reloaded_by_itself_gets_the_drain_of_the_present_files(fleet: Fleet) -> None:
    async with fleet(["hangs"], stop_seconds=0.2, watch=True) as run:
        run.fleet.reread = lambda: run.fleet.use(configuration(drain_seconds=3600.0))
        await run.until_announced()
        run.stop.set()
        await eventually(lambda: run.fleet._stop_seconds > 3600, what="a longer drain")
        run.fleet.kill()
        await run.ends()
    assert "worker killed at stop" not in run.caplog.messages


async def test_one_that_says_nothing_for_too_long_is_replaced(fleet: Fleet) -> None:
    async with fleet(["hangs", "serves"], hang_seconds=0.4) as run:
        await eventually(lambda: len(run.starts(1)) >= 2, what="a second start")
    assert "hanging worker killed" in {one.message for one in run.caplog.records}


async def test_a_new_configuration_is_announced_to_those_that_run_and_given_to_later_ones(fleet: Fleet) -> None:
    async with fleet() as run:
        await run.until_announced()
        run.fleet.use(configuration(changed=True))
        run.fleet.reload()
        await eventually(lambda: run.heard(1) == run.heard(2) == ["SIGHUP"], what="both told")
        assert run.fleet.configuration == configuration(changed=True)


@pytest.fixture
def restored_logging() -> Generator[None]:
    """`set_up` closes what it replaces, and these handlers are pytest's."""
    root, pallas = logging.getLogger(), logging.getLogger("pallas")
    handlers, levels = list(root.handlers), (root.level, pallas.level)
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    pallas.setLevel(levels[1])


async def test_lines_of_all_workers_are_written_whole_by_the_parent(
    fleet: Fleet, tmp_path: Path, restored_logging: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stderr)
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": ""})
    async with fleet(["logs"], ["logs"]) as run:
        await run.until_announced()
        await run.stops()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    for worker in (1, 2):
        own = [line for line in lines if line["worker"] == worker]
        assert [line["number"] for line in own[:-1]] == list(range(200))
        assert len(own[-1]["long"]) == 300_000
    assert stderr.getvalue().splitlines().count("to stderr") == 2
