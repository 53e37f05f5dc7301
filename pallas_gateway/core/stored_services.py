"""The gateway's database, and what the core keeps in it. Imported only where `gateway.database` is set."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.core.long_calls.service import LongCalls
from pallas_gateway.limits import GatewayLimits
from pallas_gateway.shared.sql import Sql

if TYPE_CHECKING:
    from pallas_gateway.shared.database.connections import LeaseTerms
    from pallas_gateway.shared.database.service import GatewayDatabase


class StoredServices:
    """An async context manager around the database and its parts. Features add theirs to `database`.

    Attributes:
        leases: of what this process holds in the database.
        long_calls: the calls with which another process can go on.
        shared: counters of all gateways on the database.
        states: of questions, which are used once.
    """

    def __init__(self, database: GatewayDatabase, leases: LeaseTerms, limits: GatewayLimits | None = None) -> None:
        """Take the database, which is not open yet."""
        self.database, self.leases = database, leases
        self.limits = limits = limits or GatewayLimits()
        connections, process = database.connections, leases.process or secrets.token_hex(4)
        of_tasks = replace(limits.tasks, lease_seconds=min(limits.tasks.lease_seconds, leases.seconds))
        self.long_calls = LongCalls(database, process, of_tasks)
        self.shared = Sql(
            connections,
            leases.seconds,
            answer_seconds=limits.database.count_seconds[connections.kind],
            value_seconds=limits.database.use_seconds,
        )
        self.states = UsedStates(self.shared, process)

    async def __aenter__(self) -> Self:
        """Open the database, now or when it is available.

        Raises:
            DatabaseSchemaError: a newer gateway has used the database.
        """
        self.database.add(self.long_calls, self.shared)  # after those of features, which end calls
        await self.database.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) for states that are being released and for running writes, and close every connection."""
        await self.states.close()
        await self.database.__aexit__()
