"""Regular checks of all agents, so that the health gauges are current although no client asks for health."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

AGENTS_AT_ONCE = 10
_log = logging.getLogger("pallas.health")


class HealthRounds:
    """Checks each agent every `gateway.health_seconds`, and once after its start."""

    def __init__(
        self,
        check: Callable[[str], Awaitable[None]],
        agents: Callable[[], Collection[str]],
        seconds: Callable[[], float],
    ) -> None:
        """`agents` returns the hosted agents, `seconds` the time between two rounds; 0 is no rounds."""
        self._check = check
        self._agents = agents
        self._seconds = seconds
        self._due: set[str] = set()
        self._wake = asyncio.Event()

    def soon(self, agent: str) -> None:
        """Check an agent without waiting for the next round."""
        self._due.add(agent)
        self._wake.set()

    def wake(self) -> None:
        """Read the settings again."""
        self._wake.set()

    async def run(self) -> None:
        """Check until cancelled."""
        loop = asyncio.get_running_loop()
        last_round = loop.time()
        while True:
            seconds = self._seconds()
            try:
                async with asyncio.timeout_at(last_round + seconds if seconds else None):
                    await self._wake.wait()
                due = {*self._due}
            except TimeoutError:
                last_round, due = loop.time(), {*self._agents()}
            self._wake.clear()
            self._due.clear()
            if seconds:
                await self._round(due & {*self._agents()})

    async def _round(self, due: Collection[str]) -> None:
        at_once = asyncio.Semaphore(AGENTS_AT_ONCE)

        async def check(agent: str) -> None:
            async with at_once:
                await self._check(agent)

        for result in await asyncio.gather(*map(check, sorted(due)), return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("health round failed", exc_info=result)
