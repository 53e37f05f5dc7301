"""The clock of the tests' event loop counts no time in which the loop could not run."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support import fair_time
from tests.support.fair_time import SLACK_SECONDS, FairLoop, hastened


@dataclass
class Machine:
    """Its clocks; the test moves them."""

    wall: float = 100.0
    used: float = 1.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(fair_time, "monotonic", lambda: machine.wall)
    monkeypatch.setattr(fair_time, "thread_time", lambda: machine.used)
    return machine


@pytest.fixture
def loop(machine: Machine) -> Iterator[FairLoop]:
    """A loop on the clocks of the machine."""
    del machine
    one = FairLoop()
    yield one
    one.close()


def test_every_test_has_this_loop() -> None:
    async def kind() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert asyncio.run(kind()) is FairLoop


async def test_async_tests_have_it_too() -> None:
    assert type(asyncio.get_running_loop()) is FairLoop


def test_a_turn_counts_its_cpu_time_only(machine: Machine, loop: FairLoop) -> None:
    began = loop.time()
    machine.wall, machine.used = 110.0, 1.5
    assert loop.time() - began == pytest.approx(0.5 + SLACK_SECONDS)
    loop.end_turn()
    assert loop.time() - began == pytest.approx(0.5 + SLACK_SECONDS)


def test_a_turn_of_a_thread_that_has_a_cpu_counts_as_long_as_it_lasts(machine: Machine, loop: FairLoop) -> None:
    began = loop.time()
    machine.wall, machine.used = 101.0, 2.0
    assert loop.time() - began == 1.0


@pytest.mark.parametrize(
    ("timeout", "took", "counted"),
    [(2.0, 30.0, 2.0 + SLACK_SECONDS), (2.0, 0.5, 0.5), (0, 9.0, SLACK_SECONDS), (None, 3.0, 3.0)],
)
def test_a_wait_counts_no_longer_than_its_time_limit(
    timeout: float | None, took: float, counted: float, machine: Machine, loop: FairLoop
) -> None:
    before = loop.time()
    began = loop.end_turn()
    machine.wall += took
    loop.begin_turn(began, timeout)
    assert loop.time() - before == pytest.approx(counted)


def test_a_time_limit_does_not_end_while_the_loop_stands_still(machine: Machine, loop: FairLoop) -> None:
    """A limit of one second ends neither by a turn nor by a wait that another process has made long."""

    async def limited() -> str:
        async with asyncio.timeout(1):
            machine.wall += 60.0
            await asyncio.sleep(0)
            machine.wall += 60.0
            return "in time"

    assert loop.run_until_complete(limited()) == "in time"


async def test_hastened_work_waits_for_no_time_limit() -> None:
    limits = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def limited() -> list[str]:
        return [await ended(limit) for limit in limits]

    async def ended(limit: asyncio.Future[None]) -> str:
        try:
            async with asyncio.timeout(200):
                await limit
        except TimeoutError:
            return "over"
        return "in time"

    assert await hastened(limited(), 50) == ["over", "over"]


async def test_a_step_waits_for_what_the_last_one_has_set_off() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FairLoop)

    async def limited() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(200):
                await asyncio.Event().wait()
        over = loop.time()
        for _ in range(20):  # turns that count as long as those of a busy machine
            loop.skip(SLACK_SECONDS)
            await asyncio.sleep(0)
        return loop.time() - over

    assert await hastened(limited(), 50) < 50


async def test_hastened_work_that_waits_for_more_than_time_fails() -> None:
    waiting = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(AssertionError, match="not done after 600 s"):
        await hastened(waiting, 50)
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_what_hastened_work_raises_is_raised() -> None:
    async def broken() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await hastened(broken())
