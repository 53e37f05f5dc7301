"""The waits themselves: they say what did not happen."""

import asyncio
import time

import pytest

from tests.support.waiting import Changes, eventually, stopwatch, tick


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


async def test_a_change_that_never_comes_is_named() -> None:
    with pytest.raises(AssertionError, match="two: not within"):
        await Changes().until(lambda: False, 0.01, what="two")
