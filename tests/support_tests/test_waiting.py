"""The waits themselves: they see what happens, and say what did not."""

import asyncio
import time

import pytest

from tests.support.waiting import Changes, Gate, eventually, stopwatch, tick


async def test_eventually_returns_the_first_truthy_value() -> None:
    seen: list[int] = []
    asyncio.get_running_loop().call_soon(seen.append, 7)

    assert await eventually(lambda: seen) == [7]


async def test_eventually_awaits_an_async_predicate() -> None:
    async def answer() -> str:
        return "yes"

    assert await eventually(answer) == "yes"


async def test_eventually_names_what_never_came() -> None:
    with pytest.raises(AssertionError, match="rain did not come true"):
        await eventually(lambda: False, 0.01, what="rain")


async def test_a_stopwatch_counts_what_is_waited_for() -> None:
    loop = asyncio.get_running_loop()
    async with stopwatch() as watch:
        began = loop.time()
        await eventually(lambda: watch.seconds >= 0.1, what="a tenth of a second")
        assert loop.time() - began >= 0.1


async def test_a_stopwatch_does_not_count_what_keeps_the_loop_from_running() -> None:
    async with stopwatch() as watch:
        await tick()
        time.sleep(0.2)  # noqa: ASYNC251  as a machine that stands still
        await tick()
    assert watch.seconds < 0.1


async def test_whoever_waits_for_a_change_is_woken_by_it_alone() -> None:
    changes, count = Changes(), [0]
    waiting = asyncio.create_task(changes.until(lambda: count[0] == 2, 5, what="two"))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        count[0] += 1
        changes.announce()

    await waiting


async def test_a_change_that_never_comes_is_named() -> None:
    with pytest.raises(AssertionError, match="two: not within"):
        await Changes().until(lambda: False, 0.01, what="two")


async def test_gate_holds_everybody_until_it_opens() -> None:
    gate = Gate()
    calls = [asyncio.create_task(gate.enter(name)) for name in ("a", "b")]
    await gate.wait_for_entered(2)
    assert gate.waiting == 2
    assert gate.passed == []

    gate.open()
    await asyncio.gather(*calls)

    assert gate.passed == ["a", "b"]
    assert gate.waiting == 0


async def test_gate_lets_through_as_many_as_it_is_told() -> None:
    gate = Gate()
    calls = [asyncio.create_task(gate.enter(name)) for name in ("a", "b")]
    await gate.wait_for_entered(2)

    gate.let_through(1)
    await calls[0]

    assert gate.passed == ["a"]
    calls[1].cancel()
    await gate.wait_for_cancelled()
    assert gate.cancelled == ["b"]


async def test_an_open_gate_holds_nobody() -> None:
    gate = Gate()
    gate.open()

    await gate.enter("late")

    assert gate.passed == ["late"]
