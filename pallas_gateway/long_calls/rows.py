"""The rows of tasks, within transactions. The number of changed rows decides races.

A run writes a task only as its holder, so that nothing of a process that was paused, and has been replaced, is stored.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, delete, exists, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.calls.recording import Row
from pallas_gateway.database.tables import ID_CHARACTERS, now, processes, task_questions, task_steps, tasks
from pallas_gateway.long_calls.records import FORMAT, MOST_UNMOVED, OPEN, ClaimedTask, Held, TaskLostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.long_calls.records import NewTask, TaskStatus

PAUSE_SECONDS = 5
"""Least pause before the second run without a new step; twice as long before each further one."""
_FREED = {"holder": None, "process": None}


def is_open() -> ColumnElement[bool]:
    """Return the condition that a task has not ended."""
    return tasks.c.status.in_(OPEN)


def is_of(thread_id: Any, turn: Any) -> ColumnElement[bool]:
    """Return the condition that a task is that of a turn."""
    return and_(tasks.c.thread_id == thread_id, tasks.c.turn == turn)


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
    """Note that a process has ended."""
    await sql.execute(delete(processes).where(processes.c.process == process))


async def add(sql: AsyncConnection, new: NewTask, process: str) -> None:
    """Store a task that this process runs."""
    texts = ("id", "owner", "account", "principal", "agent", "agent_id", "api", "call_id", "thread_id", "turn")
    values = {name: getattr(new, name) for name in (*texts, "request", "by_owner", "holder", "can_move")}
    numbers = dict.fromkeys(("claims", "unmoved", "not_before", "tokens", "cost", "worked_ms", "bytes"), 0)
    times = {"created_at": now(), "updated_at": now(), "expires_at": now() + int(new.seconds * 1000)}
    state = {"status": "working", "status_message": "", "process": process}
    form = {"format": FORMAT, "definition": "", "conversation_id": new.thread_id}
    await sql.execute(insert(tasks).values({**values, **numbers, **times, **state, **form}))


async def append(sql: AsyncConnection, held: Held, first: int, rows: Sequence[Row], **changed: Any) -> None:
    """Store rows, of which the first has the number `first`, and other values that have changed.

    Raises:
        TaskLostError: this run is not the task's holder any more; nothing is written.
    """
    await _change(sql, held, unmoved=0, updated_at=now(), **changed)
    if rows:  # the number of a row that a lost connection has stored already is taken by the same row
        new = [{"task_id": held.task_id, "number": first + i, **row._asdict()} for i, row in enumerate(rows)]
        await sql.execute(insert_or(task_steps).on_conflict_do_nothing(), new)


async def _change(sql: AsyncConnection, held: Held, **values: Any) -> None:
    mine = and_(tasks.c.id == held.task_id, tasks.c.holder == held.holder)
    if (await sql.execute(update(tasks).where(mine).values(**values))).rowcount != 1:
        raise TaskLostError("Another process goes on with this call, or it was cancelled.")


# Questions


async def ask(sql: AsyncConnection, task_id: str, question: Question, seconds: float) -> None:
    """Store an open question of a task, for so many seconds, unless it is stored already."""
    expires = now() + int(seconds * 1000)
    values = {"question": asdict(question), "answer": None, "asked_at": now(), "expires_at": expires, "taken": False}
    new = insert_or(task_questions).values(task_id=task_id, id=question.id, **values)
    await sql.execute(new.on_conflict_do_nothing())


async def close_question(sql: AsyncConnection, held: Held, question_id: str, answer: Answer) -> None:
    """Note that the call goes on with this answer, which may be that there is none; raises as `append`."""
    await _change(sql, held, updated_at=now())
    closed = {"answer": answer_as_json(answer), "taken": True}
    await sql.execute(update(task_questions).where(_is_question(held.task_id, question_id)).values(**closed))
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


def is_unanswered() -> ColumnElement[bool]:
    """Return the condition that a question is open."""
    return and_(task_questions.c.answer.is_(None), ~task_questions.c.taken)


async def expire_questions(sql: AsyncConnection) -> None:
    """Answer questions whose time is over, of tasks that nobody runs: others end their questions themselves."""
    at_rest = select(tasks.c.id).where(is_open(), ~is_run())
    over = and_(is_unanswered(), task_questions.c.expires_at < now(), task_questions.c.task_id.in_(at_rest))
    expired = update(task_questions).where(over).values(answer=answer_as_json(Answer("expired")))
    if (await sql.execute(expired)).rowcount:
        await _work_unless_it_asks(sql, and_(is_open(), ~is_run()))


async def answers_of(sql: AsyncConnection, task_ids: Sequence[str]) -> dict[str, Answer]:
    """Return the answers that were given to questions of tasks, by the ids of the questions."""
    its = and_(task_questions.c.task_id.in_(task_ids), task_questions.c.answer.is_not(None), ~task_questions.c.taken)
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
    may = tasks.c.by_owner.is_(False) if owner is None else tasks.c.owner == owner
    works = and_(tasks.c.status == "working", tasks.c.can_move, tasks.c.unmoved < MOST_UNMOVED)
    free = and_(tasks.c.format <= FORMAT, tasks.c.not_before <= now(), ~is_run())
    found = select(tasks.c.id).where(works, free, may, which).order_by(tasks.c.not_before).limit(1)
    held_by = {"holder": secrets.token_hex(ID_CHARACTERS // 2), "process": process}
    again = case({number: PAUSE_SECONDS << number for number in range(MOST_UNMOVED)}, value=tasks.c.unmoved, else_=0)
    counted = {"claims": tasks.c.claims + 1, "unmoved": tasks.c.unmoved + 1, "not_before": now() + 1000 * again}
    taken = update(tasks).where(tasks.c.id == found.with_for_update(skip_locked=True).scalar_subquery())
    row = (await sql.execute(taken.values(**held_by, **counted).returning(tasks))).one_or_none()
    if row is None:
        return None
    its_rows = select(task_steps).where(task_steps.c.task_id == row.id).order_by(task_steps.c.number)
    answered = select(task_questions).where(task_questions.c.task_id == row.id, task_questions.c.answer.is_not(None))
    about = ("principal", "agent", "agent_id", "call_id", "request", "thread_id", "turn", "tokens", "cost")
    return ClaimedTask(
        held=Held(row.id, row.holder),
        **{name: getattr(row, name) for name in about},
        runs=row.claims,
        rows=[Row(one.kind, one.turn, one.tool_call, one.data) for one in await sql.execute(its_rows)],
        answers={one.id: Answer(**one.answer) for one in await sql.execute(answered)},
    )


async def hand_over(sql: AsyncConnection, held: Held, wait_seconds: float) -> None:
    """Leave a task to any process, which may claim it after a pause; nothing is changed if it is lost already."""
    mine = and_(tasks.c.id == held.task_id, tasks.c.holder == held.holder)
    back = {"unmoved": case((tasks.c.unmoved > 0, tasks.c.unmoved - 1), else_=0)}
    later = {"not_before": now() + int(wait_seconds * 1000)}
    await sql.execute(update(tasks).where(mine).values(**_FREED, **back, **later))


async def end(sql: AsyncConnection, which: ColumnElement[bool], status: TaskStatus) -> None:
    """End tasks; their course and their questions are deleted."""
    ended = update(tasks).where(which, is_open()).values(**_FREED, status=status, ended_at=now(), request=None)
    ids = (await sql.execute(ended.returning(tasks.c.id))).scalars().all()
    if ids:
        for table in (task_steps, task_questions):
            await sql.execute(delete(table).where(table.c.task_id.in_(ids)))


async def given_up(sql: AsyncConnection) -> AnyRow | None:
    """Return a task that has ended each process which continued it, or that has expired; nobody runs it."""
    over = or_(tasks.c.unmoved >= MOST_UNMOVED, tasks.c.expires_at < now())
    stuck = select(tasks).where(is_open(), over, ~is_run()).limit(1)
    return (await sql.execute(stuck)).one_or_none()


async def remove_expired(sql: AsyncConnection, seconds: float) -> None:
    """Delete tasks that ended so many seconds ago."""
    await sql.execute(delete(tasks).where(tasks.c.ended_at < now() - int(seconds * 1000)))
