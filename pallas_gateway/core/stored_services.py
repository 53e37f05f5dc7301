"""What the gateway keeps in its database, and the database. Imported only where `gateway.database` is set."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.features.definitions.service import Definitions
from pallas_gateway.features.definitions.watch import AgentWatch
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.limits import GatewayLimits
from pallas_gateway.shared.sql import Sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.shared.database.leases import LeaseTerms
    from pallas_gateway.shared.database.service import GatewayDatabase


class StoredServices:
    """An async context manager around the database and its parts."""

    def __init__(
        self,
        database: GatewayDatabase,
        leases: LeaseTerms,
        configuration: Callable[[], Configuration],
        limits: GatewayLimits | None = None,
    ) -> None:
        """Take the database, which is not open yet, and what returns the present configuration."""
        self.database = database
        limits = limits or GatewayLimits()
        connections, process = self.database.connections, leases.process or secrets.token_hex(4)
        of_tasks = replace(limits.tasks, lease_seconds=min(limits.tasks.lease_seconds, leases.seconds))
        self.threads = Threads(database, leases, limits.threads, of_tasks)
        self.shared = Sql(
            connections,
            leases.seconds,
            answer_seconds=limits.database.count_seconds[connections.kind],
            value_seconds=limits.database.use_seconds,
            is_open=lambda: self.database.is_open,
        )
        self.states = UsedStates(self.shared, process)
        self.definitions = Definitions(self.database, configuration)
        self.watch = AgentWatch(self.definitions)
        self.definitions.on_change = self.watch.look_soon
        self.database.add(self.threads, self, self.shared)

    async def __aenter__(self) -> Self:
        """Open the database, now or when it is available.

        Raises:
            DatabaseSchemaError: a newer gateway has used the database.
        """
        await self.database.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) for running writes, and close every connection."""
        await self.database.__aexit__()

    async def drop_threads(self) -> None:
        """Delete the threads of agents that were deleted with them: more, perhaps, than one transaction deletes."""
        await self.definitions.drop_threads(self.threads.changes.remove_of_agent)

    async def remove_expired(self, _: float) -> None:
        """Delete these threads if the process that deleted the agent was killed before it could."""
        await self.drop_threads()

    async def close(self) -> None:
        """Wait (bounded) for states that are being released."""
        await self.states.close()
