"""The rows of tasks, within transactions. The number of changed rows decides races.

A run writes a task only as its holder, so that nothing of a process that was paused, and has been replaced, is stored.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.calls.recording import Row
from pallas_gateway.core.long_calls.records import (
    FORMAT,
    MOST_UNMOVED,
    Cancelled,
    ClaimedTask,
    Held,
    TaskLostError,
    TooManyTasksError,
)
from pallas_gateway.shared.database.connections import count_when_committed
from pallas_gateway.shared.database.tables import ID_CHARACTERS, now, processes, task_questions, task_steps, tasks
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Select, Update
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Api
    from pallas_gateway.core.long_calls.records import NewTask, TaskStatus, Why
    from pallas_gateway.shared.database.tables import AnyRow
    from pallas_gateway.telemetry.metrics import Metrics

PAUSE_SECONDS = 5
"""Least pause before the second run without a new step; twice as long before each further one."""
KEPT_SECONDS = 3600
"""A result is kept so long at least."""
_MOVES = ("result", "waits")
_FREED = {"holder": None, "process": None}


def is_open() -> ColumnElement[bool]:
    """Return the condition that a task has not ended."""
    return tasks.c.ended_at.is_(None)


def is_of(thread_id: Any, turn: Any) -> ColumnElement[bool]:
    """Return the condition that a task is that of a turn."""
    return and_(tasks.c.thread_id == thread_id, tasks.c.turn == turn)


def is_held(held: Held) -> ColumnElement[bool]:
    """Return the condition that a run is still that of its task."""
    return and_(tasks.c.id == held.task_id, tasks.c.holder == held.holder)


def is_run() -> ColumnElement[bool]:
    """Return the condition that a living process runs a task."""
    alive = exists().where(processes.c.process == tasks.c.process, processes.c.alive_until > now())
    return and_(tasks.c.holder.is_not(None), alive)


def goes_on() -> ColumnElement[bool]:
    """Return the condition that an open task ends by itself, or by an answer of its owner."""
    waits = tasks.c.status == "input_required"
    moves = and_(tasks.c.can_move, tasks.c.unmoved < MOST_UNMOVED, or_(~tasks.c.by_owner, waits))
    return and_(is_open(), or_(is_run(), moves))


async def keep_alive(sql: AsyncConnection, process: str, seconds: float) -> None:
    """Note that a process lives: it runs its tasks for so many seconds more."""
    until = {"alive_until": now() + int(seconds * 1000)}
    row = insert_or(processes).values(process=process, **until)
    await sql.execute(row.on_conflict_do_update(index_elements=["process"], set_=until))


async def forget_process(sql: AsyncConnection, process: str) -> None:
    """Note that a process has ended: others may go on with its tasks from now on."""
    await sql.execute(delete(processes).where(processes.c.process == process))
    its = and_(tasks.c.process == process, tasks.c.holder.is_not(None), tasks.c.not_before < now())
    await sql.execute(update(tasks).where(its).values(not_before=now()))


async def add(sql: AsyncConnection, new: NewTask, process: str) -> None:
    """Store a task that this process runs.

    Raises:
        TooManyTasksError: the account has as many open tasks as it may have.
    """
    if new.most is not None:
        if sql.dialect.name == "postgresql":  # calls of an account become tasks one after the other, as in SQLite
            await sql.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(new.account, 0))))
        its = select(func.count()).where(tasks.c.account == new.account, is_open())
        if (await sql.scalar(its) or 0) >= new.most:
            raise TooManyTasksError(f"the caller has {new.most} open tasks already")
    texts = ("id", "owner", "account", "principal", "agent", "agent_id", "api", "call_id", "thread_id", "turn")
    values = {name: getattr(new, name) for name in (*texts, "request", "by_owner", "holder", "can_move")}
    numbers = dict.fromkeys(("claims", "unmoved", "tokens", "cost"), 0)
    times: dict[str, Any] = dict.fromkeys(("created_at", "updated_at", "not_before"), now())
    times["expires_at"] = now() + int(new.seconds * 1000)
    state = {"status": "working", "status_message": "", "process": process}
    form = {"format": FORMAT, "conversation_id": new.conversation_id}
    if "\0" in (new.conversation_id or ""):
        form["conversation_id"] = None  # PostgreSQL refuses it
    await sql.execute(insert(tasks).values({**values, **numbers, **times, **state, **form}))
    count_when_committed(sql, lambda metrics: metrics.tasks_created.labels(new.agent, new.api).inc())


async def append(sql: AsyncConnection, held: Held, first: int, rows: Sequence[Row], **changed: Any) -> None:
    """Store rows, of which the first has the number `first`, and other values that have changed.

    Raises:
        TaskLostError: this run is not the task's holder any more; nothing is written.
    """
    if any(row.kind in _MOVES for row in rows):  # else a tool that ends its process could do so again and again
        changed["unmoved"] = 0
    await _change(sql, held, **changed)
    if rows:  # the number of a row that a lost connection has stored already is taken by the same row
        ids = (
            {"task_id": held.task_id, "number": first + i, "tool_call": _storable(row)} for i, row in enumerate(rows)
        )
        await sql.execute(_ADDED, [{**row._asdict(), **its} for row, its in zip(rows, ids, strict=True)])


_ADDED = insert_or(task_steps).on_conflict_do_nothing()


async def _change(sql: AsyncConnection, held: Held, **values: Any) -> None:
    new = {f"new_{name}": value for name, value in values.items()}
    mine = {"its_id": held.task_id, "its_holder": held.holder}
    if (await sql.execute(_changed(*values), {**mine, **new})).rowcount != 1:
        status = await sql.scalar(select(tasks.c.status).where(tasks.c.id == held.task_id))
        raise TaskLostError(was_cancelled=status == "cancelled")


@cache
def _changed(*names: str) -> Update:
    """Return a statement, which is made once: to make it costs as much as to execute it."""
    mine = and_(tasks.c.id == bindparam("its_id"), tasks.c.holder == bindparam("its_holder"))
    return update(tasks).where(mine).values(updated_at=now(), **{one: bindparam(f"new_{one}") for one in names})


def _storable(row: Row) -> str:
    """Return the id of a tool call, which a model has chosen, without what databases refuse: NUL is escaped.

    Half of a surrogate pair is replaced as pydantic does it in the turn that the id is of.
    """
    return json.dumps(row.tool_call.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


# Questions


async def ask(sql: AsyncConnection, task_id: str, question: Question, seconds: float) -> None:
    """Store an open question of a task, for so many seconds, unless it is stored already."""
    expires = now() + int(seconds * 1000)
    shown = cleaned_data(asdict(question))  # without the tokens of the call
    values = {"question": shown, "answer": None, "asked_at": now(), "expires_at": expires}
    new = insert_or(task_questions).values(task_id=task_id, id=question.id, **values)
    await sql.execute(new.on_conflict_do_nothing())


async def close_question(sql: AsyncConnection, held: Held, question_id: str, answer: Answer) -> None:
    """Note that the call goes on with this answer, which may be that there is none; raises as `append`."""
    await _change(sql, held)
    its = and_(_is_question(held.task_id, question_id), is_unanswered())
    await sql.execute(update(task_questions).where(its).values(answer=answer_as_json(answer)))
    await _work_unless_it_asks(sql, tasks.c.id == held.task_id)


async def give(sql: AsyncConnection, of_task: ColumnElement[bool], answers: Mapping[str, Answer]) -> str | None:
    """Write answers to open questions of a task, all of them or none; return the id of one that is not open.

    The task goes on once none of its questions is open.
    """
    task_id = await sql.scalar(select(tasks.c.id).where(of_task, is_open()).with_for_update())
    for question_id, answer in sorted(answers.items()):
        its = and_(_is_question(task_id, question_id), is_unanswered())
        given = update(task_questions).where(its).values(answer=answer_as_json(answer))
        if task_id is None or (await sql.execute(given)).rowcount != 1:
            return question_id
    await _work_unless_it_asks(sql, tasks.c.id == task_id)
    return None


async def _work_unless_it_asks(sql: AsyncConnection, which: ColumnElement[bool]) -> None:
    asks = exists().where(task_questions.c.task_id == tasks.c.id, is_unanswered())
    waits = tasks.c.status == "input_required"
    await sql.execute(update(tasks).where(which, waits, ~asks).values(status="working", not_before=now()))


async def open_questions(sql: AsyncConnection, task_id: str) -> dict[str, Question]:
    """Return the open questions of a task by their ids, the oldest first."""
    its = select(task_questions).where(task_questions.c.task_id == task_id, is_unanswered())
    found = await sql.execute(its.order_by(task_questions.c.asked_at, task_questions.c.id))
    return {row.id: question_of(row) for row in found}


def is_unanswered() -> ColumnElement[bool]:
    """Return the condition that a question is open."""
    return task_questions.c.answer.is_(None)


async def expire_questions(sql: AsyncConnection) -> None:
    """Answer questions whose time is over, of tasks that nobody runs: others end their questions themselves."""
    at_rest = select(tasks.c.id).where(is_open(), ~is_run())
    over = and_(is_unanswered(), task_questions.c.expires_at < now(), task_questions.c.task_id.in_(at_rest))
    expired = update(task_questions).where(over).values(answer=answer_as_json(Answer("expired")))
    if (await sql.execute(expired)).rowcount:
        await _work_unless_it_asks(sql, and_(is_open(), ~is_run()))


async def answers_of(sql: AsyncConnection, task_ids: Sequence[str]) -> dict[str, Answer]:
    """Return the answers that were given to questions of tasks, by the ids of the questions."""
    its = and_(task_questions.c.task_id.in_(task_ids), task_questions.c.answer.is_not(None))
    return {row.id: Answer(**row.answer) for row in await sql.execute(select(task_questions).where(its))}


def question_of(row: AnyRow) -> Question:
    """Return a stored question."""
    return Question(**{**row.question, "call_path": tuple(row.question["call_path"])})


def _is_question(task_id: str | None, question_id: str) -> ColumnElement[bool]:
    return and_(task_questions.c.task_id == task_id, task_questions.c.id == question_id)


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as it is stored."""
    return {"outcome": answer.outcome, "content": dict(answer.content) if answer.content is not None else None}


# Runs


def _is_free() -> ColumnElement[bool]:
    works = and_(tasks.c.status == "working", tasks.c.can_move, tasks.c.unmoved < MOST_UNMOVED)
    return and_(works, tasks.c.format <= FORMAT, tasks.c.not_before <= now(), ~is_run())


async def next_free(sql: AsyncConnection, which: ColumnElement[bool], owner: str | None = None) -> AnyRow | None:
    """Return the task that `claim` would take now; this only reads, and so delays no writer of SQLite."""
    return (await sql.execute(_next_free(which, owner))).one_or_none()


def _next_free(which: ColumnElement[bool], owner: str | None) -> Select[str, str | None]:
    may = tasks.c.by_owner.is_(False) if owner is None else tasks.c.owner == owner
    found = select(tasks.c.id, tasks.c.thread_id).where(_is_free(), may, which)
    return found.order_by(tasks.c.not_before).limit(1)


async def claim(
    sql: AsyncConnection, process: str, which: ColumnElement[bool], *, owner: str | None = None
) -> ClaimedTask | None:
    """Take a task that nobody runs, the one that waits longest; None if there is none.

    Args:
        sql: in a transaction that may write.
        process: the name of this process.
        which: a further condition.
        owner: whose request continues the task; None for one that needs no request.
    """
    ended = select(processes.c.alive_until).where(processes.c.process == tasks.c.process).scalar_subquery()
    free_from = case((ended > tasks.c.not_before, ended), else_=tasks.c.not_before)
    found = _next_free(which, owner).add_columns(tasks.c.holder, (now() - free_from).label("waited"))
    free = await sql.execute(found.with_for_update(of=tasks, skip_locked=True))
    if (before := free.one_or_none()) is None:
        return None
    held_by = {"holder": secrets.token_hex(ID_CHARACTERS // 2), "process": process}
    again = case({number: PAUSE_SECONDS << number for number in range(MOST_UNMOVED)}, value=tasks.c.unmoved, else_=0)
    counted = {"claims": tasks.c.claims + 1, "unmoved": tasks.c.unmoved + 1, "not_before": now() + 1000 * again}
    counted["updated_at"] = now()
    taken = update(tasks).where(tasks.c.id == before.id).values(**held_by, **counted)
    row = (await sql.execute(taken.returning(tasks))).one()
    its_rows = select(task_steps).where(task_steps.c.task_id == row.id).order_by(task_steps.c.number)
    answered = select(task_questions).where(task_questions.c.task_id == row.id, task_questions.c.answer.is_not(None))
    about = ("principal", "account", "agent", "agent_id", "api", "call_id", "request", "tokens", "cost")
    found_rows = await sql.execute(its_rows)
    course = [Row(one.kind, one.turn, json.loads(one.tool_call), one.data) for one in found_rows]
    last = {(one.turn, one.tool_call): one for one in course}.values()
    latest = max((one.turn for one in course), default=0)
    lost = [one for one in last if one.kind == "began" and one.turn == latest]
    waited = any(one.kind == "waits" for one in last) or any("asks" in one.data for one in lost)
    left: Why = "drained" if before.holder is None else "killed"
    claimed = ClaimedTask(
        held=Held(row.id, row.holder),
        **{name: getattr(row, name) for name in about},
        thread_id=row.thread_id or "",
        turn=row.turn or 0,
        runs=row.claims,
        why="answered" if waited else left if owner is None else "owner",
        rows=course,
        answers={one.id: Answer(**one.answer) for one in await sql.execute(answered)},
    )

    def count(metrics: Metrics) -> None:
        metrics.task_continued.labels(claimed.agent, claimed.why).inc()
        metrics.task_lost_tools.labels(claimed.agent).inc(len(lost))
        if owner is None:  # else it may have waited for its owner
            metrics.task_wait_seconds.observe(max(before.waited, 0) / 1000)

    count_when_committed(sql, count)
    return claimed


async def hand_over(sql: AsyncConnection, held: Held, wait_seconds: float) -> None:
    """Leave a task to any process, which may claim it after a pause; nothing is changed if it is lost already."""
    back = {"unmoved": case((tasks.c.unmoved > 0, tasks.c.unmoved - 1), else_=0)}
    later = {"not_before": now() + int(wait_seconds * 1000)}
    await sql.execute(update(tasks).where(is_held(held)).values(**_FREED, **back, **later))


async def free_others(sql: AsyncConnection, process: str, running: Sequence[str], seconds: float) -> None:
    """Leave the tasks that a process has claimed, and does not run `seconds` later."""
    left = and_(tasks.c.process == process, is_open(), tasks.c.id.not_in(running))
    old = tasks.c.updated_at < now() - int(seconds * 1000)
    await sql.execute(update(tasks).where(left, old).values(**_FREED, not_before=now()))


async def end(
    sql: AsyncConnection,
    which: ColumnElement[bool],
    status: TaskStatus,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> AnyRow | None:
    """End tasks that are open, and return one of them; their course and their questions are deleted.

    `result` is that of the tool of an MCP client, `error` a JSON-RPC error: these are kept until they expire.
    """
    kept = now() + KEPT_SECONDS * 1000
    expires = case((and_(tasks.c.api == "mcp", tasks.c.expires_at > kept), tasks.c.expires_at), else_=kept)
    about = {"status": status, "result": result, "error": error, "request": None, "status_message": ""}
    ended = update(tasks).where(which, is_open()).values(**_FREED, **about, updated_at=now(), ended_at=now())
    rows = (await sql.execute(ended.values(expires_at=expires).returning(tasks))).all()

    def count(metrics: Metrics) -> None:
        for row in rows:
            metrics.tasks_ended.labels(row.agent, status).inc()

    count_when_committed(sql, count)
    for table in (task_steps, task_questions) if rows else ():
        await sql.execute(delete(table).where(table.c.task_id.in_([row.id for row in rows])))
    return rows[0] if rows else None


async def cancel(sql: AsyncConnection, which: ColumnElement[bool]) -> Cancelled | None:
    """End a task as cancelled; None if it has ended already. The process that runs it notices that."""
    at_rest = await end(sql, and_(which, ~is_run()), "cancelled")
    ended = at_rest or await end(sql, which, "cancelled")
    return Cancelled(ended, was_at_rest=at_rest is not None) if ended is not None else None


async def find(sql: AsyncConnection, **its: str) -> AnyRow | None:
    """Return the task with these values, if it has not expired, with `goes_on` and `is_run`."""
    found: AnyRow | None = (await sql.execute(_kept(*its), its)).one_or_none()
    return found


@cache
def _kept(*names: str) -> Select[Any]:
    kept = or_(is_open(), tasks.c.expires_at > now())
    found = select(tasks, goes_on().label("goes_on"), is_run().label("is_run")).where(kept)
    return found.where(*(tasks.c[one] == bindparam(one) for one in names))


def has(**its: str) -> ColumnElement[bool]:
    """Return the condition that a task has these values."""
    return and_(*(tasks.c[name] == value for name, value in its.items()))


async def open_tasks(sql: AsyncConnection, which: ColumnElement[bool], most: int) -> Sequence[AnyRow]:
    """Return tasks that have not ended, the oldest first, with `is_run`, their latest `step` and `age_ms`."""
    step = select(func.max(task_steps.c.turn)).where(task_steps.c.task_id == tasks.c.id).scalar_subquery()
    names = ("id", "owner", "principal", "agent", "api", "call_id", "thread_id", "turn", "status", "status_message")
    columns = [tasks.c[name] for name in (*names, "claims", "tokens", "created_at")]
    age = (now() - tasks.c.created_at).label("age_ms")
    found = select(*columns, is_run().label("is_run"), func.coalesce(step, 0).label("step"), age)
    found = found.where(is_open(), which).order_by(tasks.c.created_at, tasks.c.id).limit(most)
    return (await sql.execute(found)).all()


async def counts(sql: AsyncConnection) -> dict[str, int]:
    """Return the numbers of open tasks by their status."""
    number = func.count().label("number")
    found = await sql.execute(select(tasks.c.status, number).where(is_open()).group_by(tasks.c.status))
    return {row.status: row.number for row in found}


async def lost(sql: AsyncConnection, held: Sequence[Held]) -> dict[str, bool]:
    """Return the ids of the tasks that have another holder now; True for those that were cancelled."""
    holders = dict(held)
    found = select(tasks.c.id, tasks.c.holder, tasks.c.status).where(tasks.c.id.in_(holders))
    present = {row.id: row for row in await sql.execute(found)}
    gone = [id_ for id_, holder in holders.items() if id_ not in present or present[id_].holder != holder]
    return {id_: id_ in present and present[id_].status == "cancelled" for id_ in gone}


async def given_up(sql: AsyncConnection, api: Api, seconds: float) -> AnyRow | None:
    """Return a task of an API that has ended each process which continued it, cannot go on, or has expired.

    Nobody runs it; nobody has for `seconds`, if it cannot go on. A turn that its owner can continue is none.
    """
    over = or_(tasks.c.unmoved >= MOST_UNMOVED, tasks.c.expires_at < now())
    ended = ~goes_on() if api == "mcp" else ~tasks.c.can_move
    over = or_(over, and_(ended, tasks.c.updated_at < now() - int(seconds * 1000)))
    stuck = select(tasks).where(tasks.c.api == api, is_open(), over, ~is_run()).limit(1)
    return (await sql.execute(stuck)).one_or_none()


async def remove_expired(sql: AsyncConnection) -> None:
    """Delete tasks that have ended, once they expire."""
    await sql.execute(delete(tasks).where(~is_open(), tasks.c.expires_at < now()))
