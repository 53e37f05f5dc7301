"""When the gateway checks health by itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.core.health.health_rounds import HealthRounds
from tests.support.waiting import Changes, tick

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


class Checks:
    """The agents that were checked; `seconds` as configured."""

    def __init__(self, seconds: float, *agents: str) -> None:
        self.seconds = seconds
        self.agents = agents
        self.checked: list[str] = []
        self.failing = ""
        self._changes = Changes()
        self.rounds = HealthRounds(self._check, lambda: self.agents, lambda: self.seconds)

    async def _check(self, agent: str) -> None:
        self.checked.append(agent)
        self._changes.announce()
        if agent == self.failing:
            raise ValueError(agent)

    async def until(self, count: int) -> None:
        await self._changes.until(lambda: len(self.checked) >= count, 20, what="checks")


@asynccontextmanager
async def checking(seconds: float, *agents: str) -> AsyncIterator[Checks]:
    checks = Checks(seconds, *agents)
    running = asyncio.create_task(checks.rounds.run())
    yield checks
    running.cancel()


async def test_all_agents_are_checked_again_and_again() -> None:
    async with checking(0.001, "a", "b") as checks:
        await checks.until(6)
    assert checks.checked[:4] == ["a", "b"] * 2


async def test_an_agent_that_has_started_is_checked_without_a_round() -> None:
    async with checking(3600, "a", "b") as checks:
        checks.rounds.soon("b")
        checks.rounds.soon("gone")
        await checks.until(1)
        await tick()
    assert checks.checked == ["b"]


async def test_nothing_is_checked_until_a_reload_sets_an_interval() -> None:
    async with checking(0, "a") as checks:
        checks.rounds.soon("a")
        await tick()
        assert checks.checked == []
        checks.seconds = 0.001
        checks.rounds.wake()
        await checks.until(2)


async def test_a_check_that_fails_ends_no_round(caplog: pytest.LogCaptureFixture) -> None:
    async with checking(0.001, "a", "b") as checks:
        checks.failing = "a"
        await checks.until(4)
    assert checks.checked[:4] == ["a", "b"] * 2
    assert {record.getMessage() for record in caplog.records} == {"health round failed"}
