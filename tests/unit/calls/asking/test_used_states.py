"""States of which each is accepted once, by processes that share what was used."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, override

import pytest

from pallas_gateway.calls.asking.used_states import StatesUnavailableError, UsedStates
from pallas_gateway.shared.memory import Memory
from pallas_gateway.shared.protocol import Shared, SharedAwayError
from tests.support.shared_state import CARRIERS, Carrier, turns
from tests.support.waiting import Gate, cancelled


class Slow(Memory):
    """Answers when the gate is open; has failed then if it is away."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.gate = Gate()
        self.is_away = False

    @override
    async def first(self, key: str, value: str, seconds: float) -> str:
        await self.gate.enter(key)
        if self.is_away:
            raise SharedAwayError
        return await super().first(key, value, seconds)

    @override
    async def forget(self, key: str, value: str) -> None:
        if self.is_away:
            raise SharedAwayError
        await super().forget(key, value)


@asynccontextmanager
async def states(*of: Shared) -> AsyncGenerator[list[UsedStates]]:
    """The states of processes `0`, `1`, …, each with its holder."""
    async with AsyncExitStack() as stack:
        made = [UsedStates(one, f"{number}") for number, one in enumerate(of)]
        for one in made:
            stack.push_async_callback(one.close)
        yield made


@pytest.fixture(params=["memory", "remote"])
async def carrier(request: pytest.FixtureRequest) -> AsyncGenerator[Carrier]:
    async with CARRIERS[request.param]("") as opened:
        yield opened


async def test_a_state_is_used_once_in_all_processes_unless_it_is_given_back_or_has_expired(carrier: Carrier) -> None:
    async with states(await carrier.holder(), await carrier.holder()) as (one, two):
        assert await one.use("state", 60)
        assert [await some.use("state", 60) for some in (one, two, one)] == [False] * 3
        await two.release("state")  # it has not used it
        assert not await two.use("state", 60)
        await one.release("state")
        assert await two.use("state", 60)
        assert await one.use("another", 60)
        await carrier.clock.move(61)
        assert await one.use("state", 60)
        assert not await two.use("state", 60)


async def test_of_many_uses_at_once_one_is_accepted(carrier: Carrier) -> None:
    async with states(await carrier.holder(), await carrier.holder()) as made:
        used = await asyncio.gather(*(one.use("state", 60) for _ in range(10) for one in made))
        assert sum(used) == 1


async def test_while_the_state_is_away_none_is_used_and_each_stays_good() -> None:
    slow = Slow()
    slow.gate.open()
    async with states(slow) as (one,):
        assert await one.use("used", 60)
        slow.is_away = True
        with pytest.raises(StatesUnavailableError, match="in a moment, with the same requestState"):
            await one.use("state", 60)
        assert not await one.use("used", 60)  # known here
        await one.release("used")
        slow.is_away = False
        assert await one.use("state", 60)
        assert await one.use("used", 60)  # its own use, of which nobody was told the end


@pytest.mark.parametrize(("used_by", "is_good"), [(None, True), ("other", False), ("away", True)])
async def test_a_request_that_ends_while_it_asks_gives_the_state_back(used_by: str | None, *, is_good: bool) -> None:
    slow = Slow()
    async with states(slow) as (one,):
        asking = asyncio.create_task(one.use("state", 60))
        await slow.gate.wait_for_entered()
        await cancelled(asking)
        assert not await one.use("state", 60)  # not before it is known who has used it
        slow.is_away = used_by == "away"
        if used_by == "other":
            await Memory(slow._state).first("state", "other", 60)
        slow.gate.open()
        await one._tasks.wait_until_idle()
        slow.is_away = False
        assert await one.use("state", 60) == is_good


async def test_a_closed_process_has_given_back_what_it_asked_for() -> None:
    slow = Slow()
    async with states(slow) as (one,):
        asking = asyncio.create_task(one.use("state", 60))
        await slow.gate.wait_for_entered()
        asking.cancel()
        await turns()
        slow.gate.open()
    assert await Memory(slow._state).first("state", "other", 60) == "other"
