"""Changes of a thread by its owner: its title, ratings, a copy of it, the end of its running turn, and its deletion."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, exists, func, insert, literal, select, update

from pallas_gateway.core.long_calls import rows as task_rows
from pallas_gateway.features.threads import older_questions
from pallas_gateway.features.threads.records import (
    CANCELLED,
    NoAnswerError,
    ThreadBusyError,
    ThreadNotFoundError,
    ThreadTooLargeError,
    columns_of,
    feedback_of,
    thread_of,
)
from pallas_gateway.features.threads.sizes import ROW_BYTES, Quota
from pallas_gateway.features.threads.store import FREED, SHOWN, is_free, refuse_deleted, refuse_deleted_agent
from pallas_gateway.shared.database.tables import ID_CHARACTERS, agents, feedback, now, steps, tasks, threads, turns
from pallas_gateway.telemetry.redaction import storable

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Update
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.core.long_calls.records import Cancelled
    from pallas_gateway.features.threads.records import Feedback, Rating, ThreadRecord
    from pallas_gateway.limits import ThreadLimits
    from pallas_gateway.shared.database.connections import Database


class ThreadChanges:
    """Writes changes; every method is one transaction, and raises as those of `Store`."""

    def __init__(self, database: Database, limits: ThreadLimits, quota: Quota | None = None) -> None:
        """Take the database, and the quota of owners."""
        self._database = database
        self._quota = quota or Quota()
        self._copied_bytes = limits.copied_bytes
        self._removed_threads = limits.removed_threads

    async def rename(self, thread_id: str, title: str | None) -> ThreadRecord:
        """Give a thread another title, or none; its place among the threads stays.

        Raises:
            ThreadNotFoundError: it was deleted meanwhile.
        """
        return await self._changed(thread_id, title=title)

    async def touch(self, thread_id: str) -> ThreadRecord:
        """Make a thread the one that was changed last; raises as `rename`."""
        return await self._changed(thread_id, updated_at=now())

    async def _changed(self, thread_id: str, **values: Any) -> ThreadRecord:
        changed = update(threads).where(threads.c.id == thread_id).values(**values).returning(*SHOWN)

        async def written(sql: AsyncConnection) -> ThreadRecord:
            row = (await sql.execute(changed)).one_or_none()
            if row is None:
                raise ThreadNotFoundError(f"no thread '{thread_id}'")
            return thread_of(row)

        return await self._database.write(written)

    async def rate(
        self, thread_id: str, number: int, rating: Rating, note: str, *, for_owner: bool = False
    ) -> Feedback:
        """Rate the answer of a turn, in place of an earlier rating; the note counts for the quota of the owner.

        Raises:
            NoAnswerError: the turn has no answer.
            ThreadNotFoundError: there is no such turn.
            ThreadsFullError: the owner's quota is used up.
        """
        text = storable(note)
        values = {"rating": rating, "note": text, "rated_at": now(), "for_owner": for_owner}

        async def written(sql: AsyncConnection) -> Feedback:
            owner = await _owner_locked(sql, thread_id)
            status = await sql.scalar(select(turns.c.status).where(_is_of(turns.c.number, thread_id, number)))
            if owner is None or status is None:
                raise ThreadNotFoundError(f"no turn {number} in thread '{thread_id}'")
            if status != "complete":
                raise NoAnswerError("This turn has no answer that could be rated.")
            await _forget_rating(sql, thread_id, number)
            await self._quota.refuse_beyond(sql, owner, size := len(text.encode()))
            await sql.execute(_counted(thread_id, size))
            made = insert(feedback).values(thread_id=thread_id, turn=number, **values)
            return feedback_of((await sql.execute(made.returning(feedback))).one())

        return await self._database.write(written)

    async def unrate(self, thread_id: str, number: int) -> None:
        """Delete the rating of a turn, if there is one."""

        async def written(sql: AsyncConnection) -> None:
            await _owner_locked(sql, thread_id)
            await _forget_rating(sql, thread_id, number)

        await self._database.write(written)

    async def fork(self, thread_id: str, last: int) -> ThreadRecord:
        """Copy a thread with its turns up to number `last` to a new thread of its owner.

        Raises:
            AgentDeletedError: its agent was deleted with all threads.
            ThreadBusyError: one of these turns is being answered.
            ThreadNotFoundError: it was deleted meanwhile.
            ThreadTooLargeError: these turns are too large.
            ThreadsFullError: the owner's quota is used up.
        """
        made = secrets.token_hex(ID_CHARACTERS // 2)
        wanted = and_(turns.c.thread_id == thread_id, turns.c.number <= last)
        its_steps = and_(steps.c.thread_id == thread_id, steps.c.turn <= last)
        # Locked, so that no other request deletes it between the two copies.
        found = select(threads.c.owner, threads.c.agent, threads.c.agent_id, threads.c.title, threads.c.turns)
        found = found.where(threads.c.id == thread_id).with_for_update()

        async def written(sql: AsyncConnection) -> ThreadRecord:
            row = (await sql.execute(found)).one_or_none()
            if row is None:
                raise ThreadNotFoundError(f"no thread '{thread_id}'")
            await refuse_deleted_agent(sql, row.agent_id, agents.c.drops_threads)
            size = await self._checked_size(sql, wanted)
            await self._quota.refuse_beyond(sql, row.owner, size)
            values = {**row._mapping, "turns": min(last, row.turns), "bytes": size}
            new = insert(threads).values(**values, id=made, created_at=now(), updated_at=now())
            thread = (await sql.execute(new.returning(*SHOWN))).one()
            for table, copied in ((turns, wanted), (steps, its_steps)):
                columns = [column for column in table.c if column is not table.c.thread_id]
                rows = select(literal(made), *columns).where(copied)
                await sql.execute(insert(table).from_select([table.c.thread_id, *columns], rows))
            return thread_of(thread)

        return await self._database.write(written, share="long")

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

    async def remove_of_agent(self, agent_id: str) -> None:
        """Delete all threads with a deleted agent of the database, of all owners; calls that run lose their thread.

        Raises:
            ValueError: `agent_id` is empty, which stands for all agents of files.
        """
        if not agent_id:
            raise ValueError("the id of an agent of the database is not empty")
        while await self._removed(threads.c.agent_id == agent_id):
            pass

    async def remove_unchanged_for(self, days: float) -> None:
        """Delete the threads that nothing has changed for so long and in which no message is being answered."""
        is_old = and_(threads.c.updated_at < now() - int(days * 86_400_000), is_free())
        while await self._removed(is_old):
            pass

    async def _removed(self, which: ColumnElement[bool]) -> bool:
        """Delete some threads, few enough for one statement; return whether there may be more."""
        some = select(threads.c.id).where(which).order_by(threads.c.id).limit(self._removed_threads).with_for_update()

        async def written(sql: AsyncConnection) -> bool:
            ids = (await sql.execute(some)).scalars().all()
            if ids:
                await sql.execute(delete(threads).where(threads.c.id.in_(ids), which))
            return bool(len(ids) == self._removed_threads)

        return await self._database.write(written)

    async def cancel(self, thread_id: str, number: int | None = None) -> Cancelled | None:
        """End the pending turn of a thread, if it has this number, as cancelled.

        The lease is taken from the process that runs its call, which notices that when it renews the lease, and ends
        the call. Returns the task of the turn, if it has one.
        """
        is_pending = and_(turns.c.thread_id == thread_id, turns.c.status == "pending")
        if number is not None:
            is_pending = and_(is_pending, turns.c.number == number)
        freed = (
            update(threads)
            .where(threads.c.id == thread_id, exists().where(is_pending))
            .values(**FREED, updated_at=now())
        )
        ended = update(turns).where(is_pending).values(**columns_of(CANCELLED), ended_at=now())

        its = tasks.c.thread_id == thread_id

        async def written(sql: AsyncConnection) -> Cancelled | None:
            if not (await sql.execute(freed)).rowcount:
                return None
            await sql.execute(ended)
            await older_questions.forget(sql, thread_id)
            return await task_rows.cancel(sql, its)

        return await self._database.write(written)

    async def _checked_size(self, sql: AsyncConnection, wanted: ColumnElement[bool]) -> int:
        """Return the bytes that a copy of the wanted turns counts.

        Raises an error if they are too large, or one of them is pending.
        """
        pending = func.count().filter(turns.c.status == "pending")
        size_ = func.coalesce(func.sum(turns.c.bytes), 0)
        found = await sql.execute(select(pending, size_, func.count()).where(wanted))
        is_pending, size, count = found.one()
        if is_pending:
            raise ThreadBusyError("A message of this thread is being answered. Copy the messages before it.")
        if size > self._copied_bytes:
            raise ThreadTooLargeError(f"These messages have more than {self._copied_bytes} bytes. Copy fewer of them.")
        return int(size) + (1 + int(count)) * ROW_BYTES


async def _owner_locked(sql: AsyncConnection, thread_id: str) -> str | None:
    """Lock a thread, so that changes of its ratings follow each other; return its owner, None if it was deleted."""
    return await sql.scalar(select(threads.c.owner).where(threads.c.id == thread_id).with_for_update())


async def _forget_rating(sql: AsyncConnection, thread_id: str, number: int) -> None:
    gone = delete(feedback).where(_is_of(feedback.c.turn, thread_id, number)).returning(feedback.c.note)
    if (note := await sql.scalar(gone)) is not None:
        await sql.execute(_counted(thread_id, -len(note.encode())))


def _counted(thread_id: str, size: int) -> Update:
    return update(threads).where(threads.c.id == thread_id).values(bytes=threads.c.bytes + size)


def _is_of(turn: Column[int], thread_id: str, number: int) -> ColumnElement[bool]:
    """A row of the turn with that number; `turn` is the column of the numbers."""
    return and_(turn.table.c.thread_id == thread_id, turn == number)
