"""Threads in a database, opened for one test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Message
from pallas_gateway.database.leases import LeaseTerms
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.threads.records import TurnOutcome
from pallas_gateway.threads.service import Threads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.threads.records import TurnRecord


LONG, SHORT = 60.0, 0.4


@asynccontextmanager
async def opened(
    url: str, lease_seconds: float = LONG, *, process: str | None = None, **limits: Any
) -> AsyncGenerator[Threads]:
    leases = LeaseTerms(lease_seconds, process)
    threads = Threads(Secret(url), Path("/"), leases, limits=ThreadLimits(**limits))
    async with threads:
        yield threads


async def say(threads: Threads, thread_id: str, text: str, *, wait_seconds: float = 30) -> int:
    async with threads.turns.turn(thread_id, Message("user", text), "call", wait_seconds=wait_seconds) as turn:
        await turn.end(TurnOutcome(Message("assistant", f"said {text}"), "endTurn", {"input": 1}))
    return turn.number


async def turns_of(threads: Threads, thread_id: str) -> list[TurnRecord]:
    return list((await threads.store.turns_of(thread_id, limit=1000, after=0)).turns)
