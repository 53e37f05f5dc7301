"""Threads and turns in the database, with their SQL statements. The number of changed rows decides races."""

from __future__ import annotations

import secrets
from functools import wraps
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, insert, literal, or_, select, tuple_, update

from pallas_gateway.database.tables import ID_CHARACTERS, now, octets, threads, turns
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.threads.question_store import forget_questions, has_checkpoint, unanswered, used_checkpoint
from pallas_gateway.threads.quota import ROW_BYTES, Quota, size_of
from pallas_gateway.threads.records import (
    ABANDONED,
    ABANDONED_SENTENCE,
    CANCELLED,
    History,
    Lease,
    ThreadNotFoundError,
    TurnPage,
    columns_of,
    images_as_json,
    pair_of,
    thread_of,
    turn_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Concatenate

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Message
    from pallas_gateway.database.connections import Database
    from pallas_gateway.database.leases import LeaseTerms
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.threads.records import CheckpointRecord, NewThread, ThreadRecord, TurnOutcome

    type _Method[**P, T] = Callable[Concatenate[Store, AsyncConnection, P], Awaitable[T]]
    type _Transaction[**P, T] = Callable[Concatenate[Store, P], Coroutine[Any, Any, T]]

type Position = tuple[int, str]
"""Start of a page of threads: the time (milliseconds since 1970) and id of the thread before it."""

_TEXTS = (turns.c.question, turns.c.question_images, turns.c.answer, turns.c.answer_images)
SIZE = sum((octets(column) for column in _TEXTS), literal(0)).label("size")
FREED = {"lease_holder": None, "lease_until": None, "lease_process": None}
"""The columns of a thread whose lease was given back."""
SHOWN = (threads.c.id, threads.c.agent, threads.c.title, threads.c.created_at, threads.c.updated_at, threads.c.turns)


def _writing[**P, T](work: _Method[P, T]) -> _Transaction[P, T]:
    """Make a method of `Store` one transaction that may write."""

    @wraps(work)
    async def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.database.write(lambda connection: work(store, connection, *args, **kwargs))

    return method


def _reading[**P, T](work: _Method[P, T]) -> _Transaction[P, T]:
    """Make a method of `Store` one transaction that only reads."""

    @wraps(work)
    async def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.database.read(lambda connection: work(store, connection, *args, **kwargs))

    return method


class Store:
    """Reads and writes threads; every method raises `DatabaseUnavailableError` if the database cannot be used.

    Each method is one transaction, which runs to its end even if the caller is cancelled.
    """

    def __init__(
        self, database: Database, leases: LeaseTerms, limits: ThreadLimits | None = None, quota: Quota | None = None
    ) -> None:
        """Leases are timed by the database's clock."""
        self.database = database
        self._leases = leases
        self._quota = quota or Quota()
        self._limits = limits or ThreadLimits()

    @_writing
    async def create(
        self, connection: AsyncConnection, owner: str, agent: str, title: str | None = None
    ) -> ThreadRecord:
        await self._quota.refuse_beyond(connection, owner, ROW_BYTES)
        values = {"id": secrets.token_hex(ID_CHARACTERS // 2), "owner": owner, "agent": agent, "title": title}
        counts = {"turns": 0, "bytes": ROW_BYTES}
        new = insert(threads).values(**values, **counts, created_at=now(), updated_at=now()).returning(*SHOWN)
        return thread_of((await connection.execute(new)).one())

    @_reading
    async def find(self, connection: AsyncConnection, thread_id: str, owner: str) -> ThreadRecord:
        """Find the owner's thread of that id.

        Raises:
            ThreadNotFoundError: the thread does not exist, or has another owner.
        """
        wanted = select(*SHOWN).where(threads.c.id == thread_id, threads.c.owner == owner)
        row = (await connection.execute(wanted)).one_or_none()
        if row is None:
            raise ThreadNotFoundError(f"no thread '{thread_id}'")
        return thread_of(row)

    @_reading
    async def threads_of(
        self, connection: AsyncConnection, owner: str, agent: str, *, limit: int, after: Position | None
    ) -> Sequence[ThreadRecord]:
        """At most `limit` of the owner's threads with an agent, by their last change, newest first."""
        place = tuple_(threads.c.updated_at, threads.c.id)
        wanted = select(*SHOWN).where(threads.c.owner == owner, threads.c.agent == agent)
        if after is not None:
            wanted = wanted.where(place < tuple_(*after))
        wanted = wanted.order_by(threads.c.updated_at.desc(), threads.c.id.desc()).limit(limit)
        return [thread_of(row) for row in await connection.execute(wanted)]

    @_reading
    async def turns_of(self, connection: AsyncConnection, thread_id: str, *, limit: int, after: int) -> TurnPage:
        """The turns after number `after`, in order: at most `limit`, and at most `page_bytes` of them.

        A pending turn whose lease has ended is returned as an error.
        """
        is_wanted = and_(turns.c.thread_id == thread_id, turns.c.number > after)
        sizes = select(turns.c.number, SIZE).where(is_wanted).order_by(turns.c.number).limit(limit + 1)
        fitting, has_more = await _fitting(connection, sizes, most=limit, octets=self._limits.page_bytes, at_least=1)
        if fitting is None:
            return TurnPage((), has_more=False)
        is_left = and_(turns.c.status == "pending", or_(threads.c.lease_until.is_(None), threads.c.lease_until < now()))
        is_over, can_be_resumed = and_(is_left, ~has_checkpoint()), and_(is_left, has_checkpoint())
        page = (
            select(turns, threads.c.lease_process, is_over.label("is_over"), can_be_resumed.label("can_be_resumed"))
            .join(threads, threads.c.id == turns.c.thread_id)
            .where(is_wanted, turns.c.number <= fitting)
            .order_by(turns.c.number)
        )
        rows = (await connection.execute(page)).all()
        asks = await unanswered(connection, thread_id)
        return TurnPage(tuple(turn_of(row, asks.get(row.number, ())) for row in rows), has_more=has_more)

    @_reading
    async def history(self, connection: AsyncConnection, lease: Lease) -> History:
        """The messages before the turn of a lease: the newest complete turns that fit."""
        is_wanted = and_(
            turns.c.thread_id == lease.thread_id, turns.c.status == "complete", turns.c.number < lease.turn
        )
        sizes = select(turns.c.number, SIZE).where(is_wanted).order_by(turns.c.number.desc())
        turns_, bytes_ = self._limits.replayed_turns, self._limits.replayed_bytes
        oldest, has_more = await _fitting(connection, sizes, most=turns_, octets=bytes_, at_least=0)
        rows: Sequence[AnyRow] = ()
        if oldest is not None:
            replayed = select(*_TEXTS).where(is_wanted, turns.c.number >= oldest).order_by(turns.c.number)
            rows = (await connection.execute(replayed)).all()
        all_of_them = select(func.count()).select_from(turns).where(is_wanted)
        left_out = (await connection.execute(all_of_them)).scalar_one() - len(rows) if has_more else 0
        return History(tuple(message for row in rows for message in pair_of(row)), left_out)

    @_writing
    async def begin_thread(
        self, connection: AsyncConnection, thread: NewThread, question: Message, call_id: str
    ) -> Lease:
        """Create a thread with its first turn, pending, and its lease, in one transaction."""
        size = 2 * ROW_BYTES + size_of(question)
        await self._quota.refuse_beyond(connection, thread.owner, size)
        lease = Lease(thread.id, 1, secrets.token_hex(16))
        values = {"id": thread.id, "owner": thread.owner, "agent": thread.agent, "bytes": size}
        values.update(self._held_by(lease.holder))
        await connection.execute(insert(threads).values(**values, created_at=now(), updated_at=now(), turns=1))
        await connection.execute(_pending(thread.id, lease.turn, question, call_id))
        return lease

    @_writing
    async def begin_turn(
        self, connection: AsyncConnection, thread_id: str, question: Message, call_id: str
    ) -> Lease | None:
        """Begin the next turn of a thread, pending, with the thread's lease; None while another call holds the lease.

        Number, row and lease are taken in one transaction, so numbers are unique and have no gaps. A pending turn of
        the last holder becomes an error. `ThreadNotFoundError` if the thread was deleted, `ThreadsFullError` beyond
        the quota of its owner.
        """
        holder, size = secrets.token_hex(16), ROW_BYTES + size_of(question)
        changed = {"turns": threads.c.turns + 1, "bytes": threads.c.bytes + size, "updated_at": now()}
        taken = (
            update(threads)
            .where(threads.c.id == thread_id, is_free())
            .values(**self._held_by(holder), **changed)
            .returning(threads.c.turns, threads.c.owner)
        )
        row = (await connection.execute(taken)).one_or_none()
        if row is None:
            await refuse_deleted(connection, thread_id)
            return None
        number = row.turns
        await self._quota.refuse_beyond(connection, row.owner, 0)
        given_up = {"status": "error", "error_reason": ABANDONED, "error": ABANDONED_SENTENCE, "ended_at": now()}
        pending = update(turns).where(turns.c.thread_id == thread_id, turns.c.status == "pending")
        await connection.execute(pending.values(**given_up))
        await forget_questions(connection, thread_id)
        await connection.execute(_pending(thread_id, number, question, call_id))
        return Lease(thread_id, number, holder)

    @_writing
    async def renew(self, connection: AsyncConnection, lease: Lease) -> bool:
        """Renew a lease; False if another call has taken it."""
        held = update(threads).where(_holds(lease)).values(lease_until=self._lease_end())
        return (await connection.execute(held)).rowcount == 1

    @_reading
    async def was_cancelled(self, connection: AsyncConnection, lease: Lease) -> bool:
        """Return whether the lease was lost because its turn was cancelled."""
        its_turn = and_(turns.c.thread_id == lease.thread_id, turns.c.number == lease.turn)
        reason = await connection.execute(select(turns.c.error_reason).where(its_turn))
        return reason.scalar_one_or_none() == CANCELLED.error_reason

    @_writing
    async def end_turn(self, connection: AsyncConnection, lease: Lease, outcome: TurnOutcome) -> bool:
        """Write what a turn came to and give its lease back; False, and nothing is written, if it was lost."""
        size = size_of(outcome.answer) if outcome.answer else 0
        changed = {"updated_at": now(), "bytes": threads.c.bytes + size}
        given_back = update(threads).where(_holds(lease)).values(**FREED, **changed)
        ended = (
            update(turns)
            .where(turns.c.thread_id == lease.thread_id, turns.c.number == lease.turn)
            .values(**columns_of(outcome), ended_at=now())
        )
        is_held = (await connection.execute(given_back)).rowcount == 1
        if is_held:
            await connection.execute(ended)
            await forget_questions(connection, lease.thread_id)
        return is_held

    @_writing
    async def leave_turn(self, connection: AsyncConnection, lease: Lease) -> bool:
        """Give a lease back, and leave its turn as it is, for another process to resume it; False if it was lost."""
        given_back = update(threads).where(_holds(lease)).values(**FREED)
        return (await connection.execute(given_back)).rowcount == 1

    @_writing
    async def resume_turn(
        self, connection: AsyncConnection, thread_id: str, number: int, take: Callable[[CheckpointRecord], object]
    ) -> Lease | None:
        """Take the lease of a thread whose turn is left with open questions; None if another call has it.

        `take` receives the checkpoint, which is used up.

        Raises:
            QuestionNotOpenError: the turn cannot be resumed.
        """
        holder = secrets.token_hex(16)
        is_left = and_(threads.c.id == thread_id, threads.c.turns == number, is_free())
        taken = update(threads).where(is_left).values(**self._held_by(holder), updated_at=now())
        if (await connection.execute(taken)).rowcount != 1:
            return None
        take(await used_checkpoint(connection, thread_id, number))
        return Lease(thread_id, number, holder)

    @_writing
    async def forget(self, connection: AsyncConnection, lease: Lease) -> bool:
        """Delete a thread with the turn of a lease, if it has no other; False, and nothing is changed, if it has."""
        alone = delete(threads).where(_holds(lease), threads.c.turns == 1)
        return (await connection.execute(alone)).rowcount == 1

    def _held_by(self, holder: str) -> dict[str, Any]:
        return {"lease_holder": holder, "lease_until": self._lease_end(), "lease_process": self._leases.process}

    def _lease_end(self) -> ColumnElement[int]:
        return now() + int(self._leases.seconds * 1000)


async def _fitting(
    connection: AsyncConnection, sizes: Select[tuple[int, int]], *, most: int, octets: int, at_least: int
) -> tuple[int | None, bool]:
    """The number of the last turn that fits into `octets`, None if none does, and true if more turns follow.

    Args:
        connection: in a transaction.
        sizes: number and size of each turn, in order; read only as far as they fit.
        most: the largest number of turns.
        octets: the largest sum of sizes.
        at_least: turns that are included regardless of their size.
    """
    last, count, total = None, 0, 0
    async with connection.stream(sizes) as found:
        async for row in found:
            total += row.size
            if count == most or (total > octets and count >= at_least):
                return last, True
            last, count = row.number, count + 1
    return last, False


async def refuse_deleted(connection: AsyncConnection, thread_id: str) -> None:
    """Raise `ThreadNotFoundError` unless the thread exists."""
    if (await connection.execute(select(threads.c.id).where(threads.c.id == thread_id))).one_or_none() is None:
        raise ThreadNotFoundError(f"no thread '{thread_id}'")


def is_free() -> ColumnElement[bool]:
    """No call holds the lease of the thread."""
    return or_(threads.c.lease_holder.is_(None), threads.c.lease_until < now())


def _holds(lease: Lease) -> ColumnElement[bool]:
    """The lease is held, also after its time, until another call takes it."""
    return and_(threads.c.id == lease.thread_id, threads.c.lease_holder == lease.holder)


def _pending(thread_id: str, number: int, question: Message, call_id: str) -> Any:
    return insert(turns).values(
        thread_id=thread_id,
        number=number,
        status="pending",
        question=question.text,
        question_images=images_as_json(question),
        answer_images=[],
        usage={},
        call_id=call_id,
        created_at=now(),
    )
