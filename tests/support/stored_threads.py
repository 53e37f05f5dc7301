"""Threads in a database, opened for one test."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import Gauge

from pallas_gateway.calls.call import Message
from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.core.long_calls.records import NewTask
from pallas_gateway.core.stored_services import StoredServices
from pallas_gateway.features.definitions.feature import DefinitionsFeature
from pallas_gateway.features.definitions.service import Definitions
from pallas_gateway.features.threads.records import (
    ClaimedExchange,
    ExchangeOutcome,
    ExchangeRecord,
    ThreadRecord,
    WantedThreads,
)
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import DatabaseLimits, GatewayLimits
from pallas_gateway.shared.database.connections import LeaseTerms
from pallas_gateway.shared.database.service import GatewayDatabase
from pallas_gateway.shared.database.tables import tasks

LONG, SHORT = 60.0, 0.04
"""A lease that no busy machine loses, and one that soon ends or is renewed."""


class Stored(StoredServices):
    def __init__(
        self,
        database: GatewayDatabase,
        leases: LeaseTerms,
        configuration: Callable[[], Configuration],
        limits: GatewayLimits,
    ) -> None:
        super().__init__(database, leases, limits)
        self.threads = Threads(database, leases, limits.threads, self.long_calls)
        self.definitions = Definitions(database, configuration)
        database.add(self.threads)

    async def drop_threads(self) -> None:
        """Delete the threads of agents that were deleted with them."""
        await self.definitions.drop_threads(self.threads.remove_of_agent)


def threads_of(gateway: Gateway) -> Threads:
    found = gateway.find(Threads)
    assert found is not None
    return found


def agents_feature_of(gateway: Gateway) -> DefinitionsFeature:
    found = gateway.find(DefinitionsFeature)
    assert found is not None
    return found


async def claim_turn(threads: Threads, *, owner: str | None = None) -> ClaimedExchange | None:
    task = await threads.long_calls.claim(tasks.c.api == "threads", owner=owner)
    return ClaimedExchange(task) if task is not None else None


@asynccontextmanager
async def opened(
    url: str, lease_seconds: float = LONG, *, process: str | None = None, **limits: Any
) -> AsyncGenerator[Threads]:
    async with services(url, lease_seconds, process=process, **limits) as stored:
        yield stored.threads


def services(
    url: str,
    lease_seconds: float = LONG,
    *,
    folder: Path = Path("/"),
    process: str | None = None,
    up: Gauge | None = None,
    configuration: Callable[[], Configuration] | None = None,
    **limits: Any,
) -> Stored:
    """Return everything that is in a database, not open yet; `limits` are those of the database and of threads."""
    of_gateway = GatewayLimits(database=DatabaseLimits(count_seconds={"postgresql": 60.0, "sqlite": 60.0}))
    for name, value in limits.items():
        setattr(of_gateway.database if hasattr(of_gateway.database, name) else of_gateway.threads, name, value)
    database = GatewayDatabase(Secret(url), folder, limits=of_gateway.database, up=up)
    leases = LeaseTerms(lease_seconds, process)
    return Stored(database, leases, configuration or _unconfigured, of_gateway)


def task_of(
    thread_id: str, turn: int = 1, *, by_owner: bool = False, can_move: bool = True, seconds: float = LONG
) -> NewTask:
    return NewTask(
        owner="me",
        account="me",
        principal="key:me",
        agent="solo",
        agent_id="",
        api="threads",
        call_id="call",
        request={"params": None, "messages": None},
        by_owner=by_owner,
        can_move=can_move,
        thread_id=thread_id,
        turn=turn,
        seconds=seconds,
    )


def _unconfigured() -> Configuration:
    raise AssertionError("only agents of the database require a configuration")


async def say(threads: Threads, thread_id: str, text: str, *, wait_seconds: float = 30) -> int:
    async with threads.turns.turn(thread_id, Message("user", text), "call", wait_seconds=wait_seconds) as turn:
        await turn.end(ExchangeOutcome(Message("assistant", f"said {text}"), "endTurn", {"input": 1}))
    return turn.number


async def listed(
    threads: Threads, owner: str = "me", agent: str = "solo", *, agent_id: str = "", **wanted: Any
) -> list[ThreadRecord]:
    page = await threads.store.threads_of(owner, (agent, agent_id), WantedThreads(**{"limit": 100, **wanted}))
    return list(page.threads)


async def turns_of(threads: Threads, thread_id: str) -> list[ExchangeRecord]:
    return list((await threads.store.turns_of(thread_id, limit=1000, after=0)).turns)
