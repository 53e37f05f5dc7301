"""Threads and turns in the database, with their SQL statements. The number of changed rows decides races."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, exists, func, insert, or_, select, tuple_, update

from pallas_gateway.core.long_calls import rows as task_rows
from pallas_gateway.core.long_calls.records import MOST_UNMOVED
from pallas_gateway.features.threads import older_questions
from pallas_gateway.features.threads.records import (
    ABANDONED,
    ABANDONED_SENTENCE,
    CANCELLED,
    EXPIRED_SENTENCE,
    GAVE_UP,
    GAVE_UP_SENTENCE,
    AgentDeletedError,
    ExchangePage,
    History,
    NotLatestExchangeError,
    ThreadLease,
    ThreadNotFoundError,
    ThreadPage,
    columns_of,
    images_as_json,
    pair_of,
    step_of,
    thread_of,
    turn_of,
)
from pallas_gateway.features.threads.search import Search
from pallas_gateway.features.threads.sizes import ROW_BYTES, Quota, Size, left_out
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.shared.database.tables import (
    ID_CHARACTERS,
    agents,
    feedback,
    now,
    steps,
    task_questions,
    tasks,
    threads,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
    from typing import Concatenate

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Message, Step
    from pallas_gateway.calls.questions import Question
    from pallas_gateway.core.long_calls.records import ClaimedTask, NewTask, TaskStatus
    from pallas_gateway.core.long_calls.service import LongCalls
    from pallas_gateway.features.threads.records import ExchangeOutcome, NewThread, ThreadRecord, WantedThreads
    from pallas_gateway.features.threads.sizes import Room
    from pallas_gateway.shared.database.connections import Database, LeaseTerms
    from pallas_gateway.shared.database.tables import AnyRow

    type MakeTask = Callable[[ThreadLease], NewTask]
    type _Method[**P, T] = Callable[Concatenate[Store, AsyncConnection, P], Awaitable[T]]
    type _Transaction[**P, T] = Callable[Concatenate[Store, P], Coroutine[Any, Any, T]]

_TEXTS = (turns.c.question, turns.c.question_images, turns.c.answer, turns.c.answer_images)
_RATED = feedback.c.rating, feedback.c.note, feedback.c.rated_at, feedback.c.for_owner
_IS_DELETED = agents.c.deleted_at.is_not(None)
FREED = {"lease_holder": None, "lease_until": None, "lease_process": None}
"""The columns of a thread whose lease was given back."""
SHOWN = tuple(threads.c[name] for name in ("id", "agent", "agent_id", "title", "created_at", "updated_at", "turns"))


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
        self,
        database: Database,
        leases: LeaseTerms,
        long_calls: LongCalls,
        limits: ThreadLimits | None = None,
        quota: Quota | None = None,
    ) -> None:
        """Leases are timed by the database's clock; `long_calls` are the tasks of this process."""
        self.database = database
        self._long_calls = long_calls
        self._leases = leases
        self._quota = quota or Quota()
        self._limits = limits or ThreadLimits()

    @_writing
    async def create(
        self, connection: AsyncConnection, owner: str, agent: str, title: str | None = None, *, agent_id: str = ""
    ) -> ThreadRecord:
        """Create a thread without turns; `AgentDeletedError` if its agent was deleted."""
        await refuse_deleted_agent(connection, agent_id)
        await self._quota.refuse_beyond(connection, owner, ROW_BYTES)
        values = {"id": secrets.token_hex(ID_CHARACTERS // 2), "owner": owner, "agent": agent, "title": title}
        values["agent_id"] = agent_id
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

    async def threads_of(self, owner: str, agent: tuple[str, str], wanted: WantedThreads) -> ThreadPage:
        """The owner's threads with an agent, by its name and id, the one last changed first."""
        name, id_ = agent
        its = and_(threads.c.owner == owner, threads.c.agent == name, threads.c.agent_id == id_)
        return await self._page(its, wanted)

    async def threads_except(
        self, owner: str, hidden: Collection[tuple[str, str]], wanted: WantedThreads
    ) -> ThreadPage:
        """As `threads_of`, the owner's threads with all agents but those `hidden`."""
        shown = (or_(threads.c.agent != name, threads.c.agent_id != id_) for name, id_ in hidden)
        return await self._page(and_(threads.c.owner == owner, *shown), wanted)

    @_reading
    async def file_agents_of(self, connection: AsyncConnection, owner: str) -> Sequence[str]:
        """Names of the agents of files with which the owner has threads."""
        wanted = select(threads.c.agent).where(threads.c.owner == owner, threads.c.agent_id == "").distinct()
        return (await connection.execute(wanted)).scalars().all()

    async def _page(self, its: ColumnElement[bool], wanted: WantedThreads) -> ThreadPage:
        found = select(*SHOWN).where(its).order_by(threads.c.updated_at.desc(), threads.c.id.desc())
        if wanted.rated:
            found = found.where(exists().where(feedback.c.thread_id == threads.c.id))
        if wanted.search is not None:
            return await self.database.read(lambda sql: Search(sql, wanted, self._limits).page(found), share="long")
        if wanted.after is not None:
            found = found.where(tuple_(threads.c.updated_at, threads.c.id) < tuple_(*wanted.after[:2]))
        rows = await self.database.read(lambda sql: sql.execute(found.limit(wanted.limit + 1)))
        page = [thread_of(row) for row in rows]
        shown = tuple(page[: wanted.limit])
        return ThreadPage(shown, shown[-1].position if len(page) > wanted.limit else None)

    @_reading
    async def turns_of(
        self, connection: AsyncConnection, thread_id: str, *, limit: int, after: int, with_steps: bool = False
    ) -> ExchangePage:
        """The turns after number `after`, in order: at most `limit`, and at most `page_bytes` of them.

        A pending turn whose lease has ended is returned as an error.
        """
        is_wanted = and_(turns.c.thread_id == thread_id, turns.c.number > after)
        size = turns.c.bytes if with_steps else turns.c.bytes - turns.c.steps_bytes
        sizes = select(turns.c.number, size.label("size")).where(is_wanted).order_by(turns.c.number).limit(limit + 1)
        found = (await connection.execute(sizes)).all()
        fitting, total = 0, 0
        for row in found[:limit]:
            total += row.size
            if fitting and total > self._limits.page_bytes:
                break
            fitting = row.number
        if not fitting:
            return ExchangePage((), has_more=False)
        is_pending, has_ended = turns.c.status == "pending", is_free_of_calls()
        its_task = exists().where(task_rows.is_of(turns.c.thread_id, turns.c.number), task_rows.goes_on())
        is_over = and_(is_pending, has_ended, ~its_task, ~older_questions.has_checkpoint())
        at_rest = or_(its_task.where(~task_rows.is_run()), and_(has_ended, older_questions.has_checkpoint()))
        can_be_resumed = and_(is_pending, at_rest)
        ends = is_over.label("is_over"), can_be_resumed.label("can_be_resumed")
        page = (
            select(turns, *_RATED, threads.c.lease_process, *ends)
            .join(threads, threads.c.id == turns.c.thread_id)
            .outerjoin(feedback, and_(feedback.c.thread_id == turns.c.thread_id, feedback.c.turn == turns.c.number))
            .where(is_wanted, turns.c.number <= fitting)
            .order_by(turns.c.number)
        )
        rows = (await connection.execute(page)).all()
        asks = await _unanswered(connection, thread_id)
        numbers = and_(steps.c.turn > after, steps.c.turn <= fitting)
        made = await _steps_of(connection, thread_id, numbers) if with_steps else {}
        shown = (turn_of(row, asks.get(row.number, ()), made.get(row.number, ())) for row in rows)
        return ExchangePage(tuple(shown), has_more=found[-1].number > fitting)

    @_reading
    async def history(self, connection: AsyncConnection, lease: ThreadLease, room: Room) -> History:
        """The messages before the turn of a lease, with their steps: the newest complete turns that fit.

        Which those are is decided by the stored sizes; texts are read of these turns only.
        """
        is_wanted = and_(turns.c.thread_id == lease.thread_id, turns.c.status == "complete", _is_before(lease))
        before, count = await _left_out(connection, is_wanted, room)
        # Not those of failed turns between them, which were not measured and may have any size.
        of_wanted = steps.c.turn.in_(select(turns.c.number).where(is_wanted, turns.c.number > before))
        made = await _steps_of(connection, lease.thread_id, of_wanted)
        replayed = select(turns.c.number, *_TEXTS).where(is_wanted, turns.c.number > before).order_by(turns.c.number)
        messages: list[Message] = []
        for row in await connection.execute(replayed):  # `room` bounds them; a stream takes longer for each row
            messages += pair_of(row, made.get(row.number, ()))
        return History(tuple(messages), count)

    @_writing
    async def begin_thread(
        self,
        connection: AsyncConnection,
        thread: NewThread,
        question: Message,
        call_id: str,
        task: MakeTask | None = None,
    ) -> ThreadLease:
        """Create a thread with its first turn, pending, with a lease and perhaps a task; raises as `create`."""
        await refuse_deleted_agent(connection, thread.agent_id)
        size = 2 * ROW_BYTES + Size.of(question).bytes
        await self._quota.refuse_beyond(connection, thread.owner, size)
        lease = ThreadLease(thread.id, 1, secrets.token_hex(16))
        values = {"id": thread.id, "owner": thread.owner, "agent": thread.agent, "bytes": size}
        values["agent_id"] = thread.agent_id
        values.update(self._held_by(lease.holder))
        await connection.execute(insert(threads).values(**values, created_at=now(), updated_at=now(), turns=1))
        await connection.execute(_pending(thread.id, lease.turn, question, call_id))
        return await self._with_task(connection, lease, task)

    async def _with_task(self, connection: AsyncConnection, lease: ThreadLease, task: MakeTask | None) -> ThreadLease:
        if task is None:
            return lease
        await task_rows.add(connection, new := task(lease), self._long_calls.process)
        await self._long_calls.keep_alive(connection)
        return replace(lease, task_id=new.id)

    @_writing
    async def begin_turn(  # noqa: PLR0913  a message, its place, and how it begins
        self,
        connection: AsyncConnection,
        thread_id: str,
        question: Message,
        call_id: str,
        task: MakeTask | None = None,
        *,
        replaces: int | None = None,
    ) -> ThreadLease | None:
        """Begin the next turn of a thread, pending, with the thread's lease; None while another call holds the lease.

        Number, row and lease are taken in one transaction, so numbers are unique and have no gaps. A pending turn of
        the last holder becomes an error. With `replaces` the turn takes the place of the latest one, which that number
        names, or a turn that the latest one has replaced. `ThreadNotFoundError` if the thread was deleted,
        `ThreadsFullError` beyond the quota, `NotLatestExchangeError` if other turns follow the replaced one.
        """
        holder, size = secrets.token_hex(16), ROW_BYTES + Size.of(question).bytes
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
        await task_rows.end(connection, tasks.c.thread_id == thread_id, "failed")
        await older_questions.forget(connection, thread_id)
        first = await _first_replaced(connection, thread_id, number - 1, replaces) if replaces is not None else None
        await connection.execute(_pending(thread_id, number, question, call_id, replaces=first))
        return await self._with_task(connection, ThreadLease(thread_id, number, holder), task)

    @_writing
    async def renew(self, connection: AsyncConnection, lease: ThreadLease) -> bool:
        """Renew a lease; False if another call has taken it."""
        held = update(threads).where(_holds(lease)).values(lease_until=self._lease_end())
        return (await connection.execute(held)).rowcount == 1

    @_reading
    async def was_cancelled(self, connection: AsyncConnection, lease: ThreadLease) -> bool:
        """Return whether the lease was lost because its turn was cancelled."""
        its_turn = and_(turns.c.thread_id == lease.thread_id, turns.c.number == lease.turn)
        reason = await connection.execute(select(turns.c.error_reason).where(its_turn))
        return reason.scalar_one_or_none() == CANCELLED.error_reason

    @_writing
    async def end_turn(
        self, connection: AsyncConnection, lease: ThreadLease, outcome: ExchangeOutcome, made: Sequence[Step] = ()
    ) -> bool:
        """Write what a turn came to, with its steps, and give its lease back.

        False, and nothing is written, if the lease was lost.
        """
        size = sum(map(Size.of_step, made), Size.of(outcome.answer) if outcome.answer else Size())
        size += Size.of_params(outcome.params)
        changed = {"updated_at": now(), "bytes": threads.c.bytes + size.bytes}
        given_back = update(threads).where(_holds(lease)).values(**FREED, **changed)
        ended = (
            update(turns)
            .where(turns.c.thread_id == lease.thread_id, turns.c.number == lease.turn)
            .values(
                **columns_of(outcome),
                ended_at=now(),
                bytes=turns.c.bytes + size.bytes,
                steps_bytes=size.steps_bytes,
                tokens=turns.c.tokens + size.tokens,
            )
        )
        is_held = (await connection.execute(given_back)).rowcount == 1
        if is_held:
            await connection.execute(ended)
            if made:
                await connection.execute(insert(steps), _rows_of(lease, made))
            status: TaskStatus = "failed" if outcome.answer is None else "completed"
            await task_rows.end(connection, task_rows.is_of(lease.thread_id, lease.turn), status)
        return is_held

    @_writing
    async def leave_turn(self, connection: AsyncConnection, lease: ThreadLease, wait_seconds: float) -> bool:
        """Give a lease back, and leave the turn and its task to any process, after a pause; False if it was lost."""
        given_back = update(threads).where(_holds(lease)).values(**FREED)
        is_held = (await connection.execute(given_back)).rowcount == 1
        if is_held and lease.task is not None:
            await task_rows.hand_over(connection, lease.task, wait_seconds)
        return is_held

    async def lock(self, connection: AsyncConnection, task: AnyRow) -> bool:
        """Lock the thread of a task; False if it is changed just now."""
        which = select(threads.c.id).where(threads.c.id == task.thread_id).with_for_update(skip_locked=True)
        return await connection.scalar(which) is not None

    async def take(self, connection: AsyncConnection, task: ClaimedTask) -> bool:
        """Lease the thread of a task to its run; False if release 0.1.0 has begun another turn."""
        its_thread = and_(threads.c.id == task.thread_id, threads.c.turns == task.turn)
        taken = update(threads).where(its_thread).values(**self._held_by(task.held.holder), updated_at=now())
        return (await connection.execute(taken)).rowcount == 1

    async def give_up(self, connection: AsyncConnection, task: AnyRow) -> str | None:
        """End a task that cannot go on, with its turn; return the reason, None if it goes on."""
        its_thread = and_(threads.c.id == task.thread_id, threads.c.turns == task.turn)
        await connection.execute(select(threads.c.id).where(its_thread).with_for_update())  # first, as all others do
        if await task_rows.end(connection, and_(tasks.c.id == task.id, ~task_rows.is_run()), "failed") is None:
            return None
        reason, why = GAVE_UP, GAVE_UP_SENTENCE if task.unmoved >= MOST_UNMOVED else EXPIRED_SENTENCE
        if not task.can_move:
            reason, why = ABANDONED, ABANDONED_SENTENCE
        failed = {"status": "error", "error_reason": reason, "error": why, "ended_at": now()}
        its_turn = and_(turns.c.thread_id == task.thread_id, turns.c.number == task.turn, turns.c.status == "pending")
        await connection.execute(update(turns).where(its_turn).values(**failed))
        await connection.execute(update(threads).where(its_thread).values(**FREED))
        return reason

    @_writing
    async def forget(self, connection: AsyncConnection, lease: ThreadLease) -> bool:
        """Delete a thread with the turn of a lease, if it has no other; False, and nothing is changed, if it has."""
        if lease.task is not None:
            await task_rows.end(connection, task_rows.is_held(lease.task), "failed")
        alone = delete(threads).where(_holds(lease), threads.c.turns == 1)
        return (await connection.execute(alone)).rowcount == 1

    def _held_by(self, holder: str) -> dict[str, Any]:
        return {"lease_holder": holder, "lease_until": self._lease_end(), "lease_process": self._leases.process}

    def _lease_end(self) -> ColumnElement[int]:
        return now() + int(self._leases.seconds * 1000)


async def _left_out(connection: AsyncConnection, is_wanted: ColumnElement[bool], room: Room) -> tuple[int, int]:
    """Return the number of the latest turn that does not fit, and how many do not."""
    sums = [func.coalesce(func.sum(column), 0) for column in (turns.c.bytes, turns.c.tokens)]
    count, bytes_, tokens = (await connection.execute(select(func.count(), *sums).where(is_wanted))).one()
    too_much = room.too_much(count, int(bytes_), int(tokens))
    if not any(too_much):
        return 0, 0
    sizes = select(turns.c.number, turns.c.bytes, turns.c.tokens).where(is_wanted).order_by(turns.c.number)
    return left_out(too_much, await connection.execute(sizes))


async def _steps_of(
    connection: AsyncConnection, thread_id: str, of_turns: ColumnElement[bool]
) -> Mapping[int, Sequence[Step]]:
    """Return the steps of some turns of a thread, by the numbers of the turns."""
    wanted = select(steps).where(steps.c.thread_id == thread_id, of_turns).order_by(steps.c.turn, steps.c.number)
    made: dict[int, list[Step]] = {}
    for row in await connection.execute(wanted):
        made.setdefault(row.turn, []).append(step_of(row))
    return made


def _rows_of(lease: ThreadLease, made: Sequence[Step]) -> list[dict[str, Any]]:
    place = {"thread_id": lease.thread_id, "turn": lease.turn}
    return [
        {**place, "number": number, "provider": one.provider, "model": one.model, "step": one.data}
        for number, one in enumerate(made)
    ]


async def refuse_deleted(connection: AsyncConnection, thread_id: str) -> None:
    """Raise `ThreadNotFoundError` unless the thread exists."""
    if (await connection.execute(select(threads.c.id).where(threads.c.id == thread_id))).one_or_none() is None:
        raise ThreadNotFoundError(f"no thread '{thread_id}'")


async def refuse_deleted_agent(
    connection: AsyncConnection, agent_id: str, is_deleted: ColumnElement[bool] = _IS_DELETED
) -> None:
    """Raise `AgentDeletedError` if an agent of the database was deleted; it is not deleted before the transaction ends.

    The deletion of its threads, which follows, therefore finds the thread of the transaction.
    """
    wanted = select(is_deleted).where(agents.c.id == agent_id).with_for_update(read=True)
    if agent_id and await connection.scalar(wanted):
        raise AgentDeletedError("The agent of this thread has been deleted.")


def is_free() -> ColumnElement[bool]:
    """No call holds the lease of the thread, and no task of it goes on."""
    return and_(is_free_of_calls(), ~exists().where(tasks.c.thread_id == threads.c.id, task_rows.goes_on()))


def is_free_of_calls() -> ColumnElement[bool]:
    """No call holds the lease of the thread."""
    return or_(threads.c.lease_holder.is_(None), threads.c.lease_until < now())


async def _unanswered(sql: AsyncConnection, thread_id: str) -> dict[int, list[Question]]:
    """Return the open questions of a thread, in order, by the numbers of their turns."""
    wanted = select(tasks.c.turn, task_questions).join(tasks, tasks.c.id == task_questions.c.task_id)
    wanted = wanted.where(tasks.c.thread_id == thread_id, task_rows.is_open(), task_rows.is_unanswered())
    by_turn: dict[int, list[Question]] = {}
    for row in await sql.execute(wanted.order_by(task_questions.c.asked_at, task_questions.c.id)):
        by_turn.setdefault(row.turn, []).append(task_rows.question_of(row))
    return by_turn or await older_questions.unanswered(sql, thread_id)


def _holds(lease: ThreadLease) -> ColumnElement[bool]:
    """The lease is held, also after its time, until another call takes it."""
    return and_(threads.c.id == lease.thread_id, threads.c.lease_holder == lease.holder)


def _is_before(lease: ThreadLease) -> ColumnElement[bool]:
    """The turn is before that of a lease, and neither this one nor an answered one takes its place."""
    own, later = turns.alias("own"), turns.alias("later")
    is_own = and_(own.c.thread_id == lease.thread_id, own.c.number == lease.turn)
    first = select(func.coalesce(own.c.replaces, own.c.number)).where(is_own).scalar_subquery()
    takes_its_place = and_(
        later.c.thread_id == lease.thread_id,
        later.c.replaces.is_not(None),
        later.c.replaces <= turns.c.number,
        later.c.number > turns.c.number,
        later.c.number < lease.turn,
        later.c.status == "complete",
    )
    return and_(turns.c.number < first, ~exists().where(takes_its_place))


async def _first_replaced(connection: AsyncConnection, thread_id: str, latest: int, replaced: int) -> int:
    """Return the first of the turns whose place a new one takes: those up to `latest`, with `replaced` among them."""
    its_first = func.coalesce(turns.c.replaces, turns.c.number)
    first = await connection.scalar(select(its_first).where(turns.c.thread_id == thread_id, turns.c.number == latest))
    if first is None or not first <= replaced <= latest:
        raise NotLatestExchangeError(
            f"Another message was sent in this thread after turn {replaced}. Read its messages."
        )
    return int(first)


def _pending(thread_id: str, number: int, question: Message, call_id: str, *, replaces: int | None = None) -> Any:
    return insert(turns).values(
        thread_id=thread_id,
        number=number,
        status="pending",
        question=question.text,
        question_images=images_as_json(question),
        bytes=(size := Size.of(question)).bytes,
        tokens=size.tokens,
        answer_images=[],
        usage={},
        call_id=call_id,
        replaces=replaces,
        created_at=now(),
    )
