"""The time of leases, for tests of processes that are gone."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy import select, union, update
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.tables import call_leases, processes, tasks, threads


async def let_leases_end(url: str) -> None:
    """Let the time pass of the leases that are held now: of threads, and of the calls and tasks of processes.

    A process that lives renews its own, as after an outage.
    """

    async def end(sql: AsyncConnection) -> None:
        await sql.execute(update(threads).where(threads.c.lease_until.is_not(None)).values(lease_until=0))
        holders = union(select(call_leases.c.process), select(tasks.c.process).where(tasks.c.holder.is_not(None)))
        await sql.execute(update(processes).where(processes.c.process.in_(holders)).values(alive_until=0))

    await _written(url, end)


async def let_tasks_expire(url: str) -> None:
    """Let the time pass until which tasks are kept."""
    await _written(url, lambda sql: sql.execute(update(tasks).values(expires_at=0)))


async def _written(url: str, work: Callable[[AsyncConnection], Awaitable[object]]) -> None:
    database = Database(Secret(url), Path("/"))
    try:
        await database.write(work)
    finally:
        await database.close()
