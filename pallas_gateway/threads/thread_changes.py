"""Changes of a thread by its owner: its title, the end of its running turn, and its deletion."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, exists, update

from pallas_gateway.threads.question_store import forget_questions
from pallas_gateway.threads.records import CANCELLED, ThreadBusyError, ThreadNotFoundError, columns_of, thread_of
from pallas_gateway.threads.store import SHOWN, is_free, refuse_deleted
from pallas_gateway.threads.tables import now, threads, turns

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.threads.database import Database
    from pallas_gateway.threads.records import Thread


class ThreadChanges:
    """Writes changes; every method is one transaction, and raises as those of `Store`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rename(self, thread_id: str, title: str | None) -> Thread:
        """Give a thread another title, or none; its place among the threads stays.

        Raises:
            ThreadNotFoundError: it was deleted meanwhile.
        """
        changed = update(threads).where(threads.c.id == thread_id).values(title=title).returning(*SHOWN)

        async def written(sql: AsyncConnection) -> Thread:
            row = (await sql.execute(changed)).one_or_none()
            if row is None:
                raise ThreadNotFoundError(f"no thread '{thread_id}'")
            return thread_of(row)

        return await self._database.write(written)

    async def remove(self, thread_id: str) -> None:
        """Delete a thread with its turns.

        Raises:
            ThreadBusyError: a turn of it is running.
        """

        async def written(sql: AsyncConnection) -> None:
            gone = delete(threads).where(threads.c.id == thread_id, is_free())
            if (await sql.execute(gone)).rowcount == 1:
                return
            with suppress(ThreadNotFoundError):  # another request has deleted it
                await refuse_deleted(sql, thread_id)
                raise ThreadBusyError("A message of this thread is being answered. Cancel it, then delete the thread.")

        await self._database.write(written)

    async def cancel(self, thread_id: str) -> None:
        """End the pending turn of a thread as cancelled, and take the lease from the process that runs its call.

        That process notices when it renews the lease, and ends the call.
        """
        is_pending = and_(turns.c.thread_id == thread_id, turns.c.status == "pending")
        freed = (
            update(threads)
            .where(threads.c.id == thread_id, exists().where(is_pending))
            .values(lease_holder=None, lease_until=None, updated_at=now())
        )
        ended = update(turns).where(is_pending).values(**columns_of(CANCELLED), ended_at=now())

        async def written(sql: AsyncConnection) -> None:
            if (await sql.execute(freed)).rowcount:
                await sql.execute(ended)
                await forget_questions(sql, thread_id)

        await self._database.write(written)
