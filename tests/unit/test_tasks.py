"""Tasks with an owner: none is lost, none takes another with it, and cancelling happens once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator

import pytest

from pallas_gateway import tasks
from pallas_gateway.tasks import TaskOwner, at_once, completed, give_way, in_parts
from tests.support.waiting import Gate, cancelled, tick


class Work:
    """Work that is held at a gate and whose clean-up takes some awaits."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.cancellations = 0
        self.cleaned_up = asyncio.Event()

    async def __call__(self) -> str:
        try:
            await self.gate.enter()
        except asyncio.CancelledError:
            self.cancellations += 1
            try:
                await tick()
                await tick()
            except asyncio.CancelledError:
                self.cancellations += 1
                raise
            self.cleaned_up.set()
            raise
        return "done"


async def failing() -> None:
    raise ValueError("broken")


async def test_a_task_is_counted_while_it_runs() -> None:
    async with TaskOwner() as owner:
        work = Work()
        task = owner.spawn(work(), name="work")
        assert len(owner) == 1
        work.gate.open()
        assert await task == "done"
        await owner.wait_until_idle()
        assert len(owner) == 0


@pytest.mark.parametrize("report", [False, True])
async def test_a_failing_task_leaves_its_siblings_alone_and_is_logged_once_if_nobody_awaits_it(
    report: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with TaskOwner() as owner:
        work = Work()
        sibling = owner.spawn(work(), name="sibling", report=report)
        failed = owner.spawn(failing(), name="failing", report=report)
        await asyncio.wait({failed})
        await work.gate.wait_for_entered()
        work.gate.open()
        assert await sibling == "done"

    records = [record for record in caplog.records if record.name in {"pallas.tasks", "asyncio"}]
    said = [(record.levelname, record.message, vars(record)["task"]) for record in records]
    assert said == ([("ERROR", "background task failed", "failing")] if report else [])
    assert all(record.exc_info for record in records)


async def test_closing_lets_what_runs_finish() -> None:
    work = Work()
    async with TaskOwner() as owner:
        task = owner.spawn(work(), name="work")
        asyncio.get_running_loop().call_soon(work.gate.open)
    assert task.result() == "done"


async def test_closing_cancels_what_does_not_finish_in_time_and_waits_for_its_clean_up() -> None:
    work = Work()
    async with TaskOwner(close_seconds=0.05) as owner:
        task = owner.spawn(work(), name="work")
        await work.gate.wait_for_entered()
    assert task.cancelled()
    assert (work.cancellations, work.cleaned_up.is_set(), len(owner)) == (1, True, 0)


async def test_closing_does_not_wait_for_ever_for_work_that_refuses_to_end() -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with asyncio.timeout(20), TaskOwner(close_seconds=0.02) as owner:
        task = owner.spawn(stubborn(), name="stubborn")
        await tick()
    assert not task.done()
    released.set()
    await task


async def test_cancelling_all_ends_all() -> None:
    async with TaskOwner() as owner:
        works = [Work(), Work()]
        tasks = [owner.spawn(work(), name="work") for work in works]
        for work in works:
            await work.gate.wait_for_entered()
        await owner.cancel_all()
        assert all(task.cancelled() for task in tasks)
        assert len(owner) == 0


async def test_waiting_until_idle_waits_for_what_is_started_meanwhile() -> None:
    async with TaskOwner() as owner:
        first, second = Work(), Work()
        owner.spawn(first(), name="first")
        idle = asyncio.create_task(owner.wait_until_idle())
        await first.gate.wait_for_entered()
        owner.spawn(second(), name="second")
        first.gate.open()
        await second.gate.wait_for_entered()
        await tick()
        assert not idle.done()
        second.gate.open()
        await asyncio.wait_for(idle, 20)


@pytest.mark.parametrize("wait", [asyncio.shield, completed])
async def test_whoever_awaits_a_task_has_its_error(wait: Callable[[asyncio.Task[None]], Awaitable[None]]) -> None:
    async with TaskOwner() as owner:
        with pytest.raises(ValueError, match="broken"):
            await wait(owner.spawn(failing(), name="failing"))


async def test_a_task_cancelled_by_somebody_else_is_forgotten_after_its_clean_up() -> None:
    async with TaskOwner() as owner:
        work = Work()
        task = owner.spawn(work(), name="work")
        await work.gate.wait_for_entered()
        task.cancel()
        await owner.wait_until_idle()
        assert len(owner) == 0
    assert (work.cancellations, work.cleaned_up.is_set()) == (1, True)


async def test_a_task_that_is_completed_outlives_its_caller_who_waits_for_it() -> None:
    work = Work()
    async with TaskOwner() as tasks:
        task = tasks.spawn(work(), name="work")
        caller = asyncio.create_task(completed(task))
        await work.gate.wait_for_entered()
        caller.cancel()
        await tick()
        still_waits = not caller.done()
        work.gate.open()
        await asyncio.wait({caller}, timeout=10)
    assert still_waits
    assert caller.cancelled()
    assert (task.result(), work.cancellations) == ("done", 0)


async def test_a_caller_waits_no_longer_than_it_was_told_to_and_the_task_goes_on() -> None:
    work = Work()
    async with TaskOwner() as tasks:
        task = tasks.spawn(work(), name="work")
        with pytest.raises(TimeoutError, match="work is not done"):
            await completed(task, seconds=0.01)
        caller = asyncio.create_task(completed(task, seconds=0.01))
        await tick()
        await cancelled(caller)
        assert not task.done()
        work.gate.open()
        assert await completed(task) == "done"


async def test_a_task_that_its_owner_cancelled_is_no_cancellation_of_the_caller() -> None:
    work, tasks = Work(), TaskOwner()
    task = tasks.spawn(work(), name="work")
    await work.gate.wait_for_entered()
    caller = asyncio.create_task(completed(task))
    await tick()
    await tasks.cancel_all()
    with pytest.raises(TimeoutError):
        await caller


async def test_an_owner_whose_closing_is_cancelled_cancels_its_tasks() -> None:
    work, tasks = Work(), TaskOwner()
    task = tasks.spawn(work(), name="work")
    await work.gate.wait_for_entered()
    closing = asyncio.create_task(tasks.__aexit__())
    await tick()
    await cancelled(closing)
    assert task.cancelled()
    assert work.cleaned_up.is_set()


async def test_other_work_runs_after_long_parts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, given = iter([1.0, 1.00001, 1.0003, 2.0, 2.0003, 3.0]), list[float]()

    def work() -> Generator[None, None, str]:
        yield
        yield
        yield
        return "done"

    async def noted(began: float) -> None:
        given.append(began)

    monkeypatch.setattr(tasks, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(tasks, "give_way", noted)
    assert (at_once(work()), await in_parts(work())) == ("done", "done")
    assert given == [1.0, 2.0]


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([1.0001], id="a short part does not wait"),
        pytest.param([1.001, 1.00101], id="an idle event loop"),
        pytest.param([1.0004, 1.0014, 1.0024, 1.00241], id="until the event loop is idle"),
        pytest.param([1.0003, 1.0013, 1.0023, 1.0033], id="at most ten times the duration of the part"),
        pytest.param([3.0, 3.004, 3.008], id="at most 5 ms"),
    ],
)
async def test_long_work_gives_way(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter(times)
    monkeypatch.setattr("pallas_gateway.tasks.perf_counter", lambda: next(read))
    loop, turns = asyncio.get_running_loop(), list[int]()

    def other_work() -> None:
        turns.append(1)
        loop.call_soon(other_work)

    loop.call_soon(other_work)
    await give_way(1.0)

    assert list(read) == []
    assert len(turns) == len(times) - 1
