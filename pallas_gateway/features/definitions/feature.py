"""Agents as data: made and changed over HTTP, kept in the database, taken up while the gateway runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.core.feature import Feature, Trouble
from pallas_gateway.core.offers import ThreadsOfAgents
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pallas_gateway.core.gateway import Gateway


class DefinitionsFeature(Feature):
    """The agents of the database; a part of it."""

    settings = ("agents_may_use",)
    needs_database = True

    def __init__(self, gateway: Gateway) -> None:
        from pallas_gateway.features.definitions.service import Definitions  # noqa: PLC0415  an extra
        from pallas_gateway.features.definitions.stored_agents import StoredAgents  # noqa: PLC0415
        from pallas_gateway.features.definitions.watch import AgentWatch  # noqa: PLC0415

        super().__init__(gateway)
        stored = gateway.required_stored()
        self.definitions = Definitions(stored.database, lambda: gateway.configuration)
        self.definitions.check = gateway.problems_of_sources
        self.watch = AgentWatch(self.definitions)
        self.definitions.on_change = self.watch.look_soon
        self.agents = StoredAgents(gateway, self.watch)
        self._watches = not gateway.configuration.per_port
        self.offers = (self.definitions, *([self.agents] if self._watches else []))
        stored.database.add(self)

    @classmethod
    @override
    def api(cls) -> Any:
        from pallas_gateway.features.definitions.http.api import AgentsApi  # noqa: PLC0415  as above

        return AgentsApi

    @asynccontextmanager
    @override
    async def opened(self) -> AsyncIterator[None]:
        """Host the agents before the first request is answered, and look for changes."""
        async with TaskOwner(close_seconds=0) as tasks:
            if self._watches:
                await self.agents.load(self._gateway.configuration)
                tasks.spawn(self.watch.run(), name="agents of the database", report=True)
            yield

    @override
    def troubles(self) -> Iterable[Trouble]:
        if self._watches and self.watch.is_away:
            yield Trouble("database", {"agents": "away"}, "agents of the database: away", is_severe=True)

    async def drop_threads(self) -> None:
        """Delete the threads of agents that were deleted with them: more, perhaps, than one transaction deletes."""
        if (threads := self._gateway.find(ThreadsOfAgents)) is not None:
            await self.definitions.drop_threads(threads.remove_of_agent)

    async def remove_expired(self, _: float) -> None:
        """Delete these threads if the process that deleted the agent was killed before it could."""
        await self.drop_threads()

    async def close(self) -> None:
        """Nothing is left to write."""
