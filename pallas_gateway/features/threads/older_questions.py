"""Questions of turns that release 0.1.0 has begun; the next release does not need this module.

Its process takes answers from its own tables. A turn that it has left becomes a task with the first answer.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, exists, select, update

from pallas_gateway.calls.recording import Row
from pallas_gateway.core.long_calls import rows as task_rows
from pallas_gateway.shared.database.tables import checkpoints, now, questions, threads, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.core.long_calls.records import NewTask

    type MakeTask = Callable[[Mapping[str, Any]], NewTask]

_ASK_SECONDS = 300


def has_checkpoint() -> ColumnElement[bool]:
    """Return the condition that a turn was left, and can go on."""
    of_turn = and_(checkpoints.c.thread_id == turns.c.thread_id, checkpoints.c.turn == turns.c.number)
    return exists().where(of_turn, checkpoints.c.valid_until > now())


async def unanswered(sql: AsyncConnection, thread_id: str) -> dict[int, list[Question]]:
    """Return the open questions of a thread, by the numbers of their turns."""
    wanted = select(questions).where(questions.c.thread_id == thread_id, questions.c.answer.is_(None))
    by_turn: dict[int, list[Question]] = {}
    for row in await sql.execute(wanted.order_by(questions.c.asked_at, questions.c.id)):
        by_turn.setdefault(row.turn, []).append(task_rows.question_of(row))
    return by_turn


async def give(sql: AsyncConnection, thread_id: str, answers: Mapping[str, Answer]) -> bool:
    """Write answers to open questions, all of them or none; return False if one is not open."""
    for question_id, answer in sorted(answers.items()):
        its = and_(questions.c.thread_id == thread_id, questions.c.id == question_id, questions.c.answer.is_(None))
        given = update(questions).where(its).values(answer=task_rows.answer_as_json(answer))
        if (await sql.execute(given)).rowcount != 1:
            return False
    return True


async def adopt(sql: AsyncConnection, thread_id: str, number: int, make: MakeTask) -> bool:
    """Make the task of a turn that was left; return False if there is none.

    Args:
        sql: in a transaction that may write.
        thread_id: of the turn.
        number: of the turn.
        make: returns the task, given its request.
    """
    is_left = and_(threads.c.id == thread_id, threads.c.turns == number)
    locked = select(threads.c.id).where(is_left, threads.c.lease_holder.is_(None) | (threads.c.lease_until < now()))
    is_locked = await sql.scalar(locked.with_for_update()) is not None
    of_turn = and_(checkpoints.c.thread_id == thread_id, checkpoints.c.turn == number)
    row = (await sql.execute(select(checkpoints).where(of_turn, checkpoints.c.valid_until > now()))).one_or_none()
    if not is_locked or row is None:
        return False
    course, spent = _course_of(row.checkpoint)
    new = make({"params": row.params, "messages": row.messages})
    await task_rows.add(sql, new, "")
    await task_rows.append(sql, new.held, 0, course, status="input_required", **spent)
    for asked in (await unanswered(sql, thread_id)).get(number, ()):
        await task_rows.ask(sql, new.id, asked, _ASK_SECONDS)
    await task_rows.hand_over(sql, new.held, 0)
    await forget(sql, thread_id)
    return True


async def forget(sql: AsyncConnection, thread_id: str) -> None:
    """Delete the questions of a thread, and where its call waited."""
    for table in (questions, checkpoints):
        await sql.execute(delete(table).where(table.c.thread_id == thread_id))


async def remove_expired(sql: AsyncConnection, seconds: float) -> None:
    """Delete what cannot be answered any more, `seconds` after that."""
    latest = now() - int(seconds * 1000)
    thread_id = questions.c.thread_id
    is_held = exists().where(threads.c.id == thread_id, threads.c.lease_until > latest)
    is_left = exists().where(checkpoints.c.thread_id == thread_id, checkpoints.c.valid_until > latest)
    await sql.execute(delete(questions).where(questions.c.asked_at < latest, ~is_held, ~is_left))
    await sql.execute(delete(checkpoints).where(checkpoints.c.valid_until < latest))


def _course_of(checkpoint: str) -> tuple[Sequence[Row], Mapping[str, Any]]:
    """Return the course of a call up to its questions, and what it has used."""
    document = json.loads(zlib.decompress(base64.b64decode(checkpoint)))
    course = [Row("turn", number, "", turn) for number, turn in enumerate(document["turns"], 1)]
    course.append(Row("began", 0, "", {"approved": document["approved"]}))
    course += [Row("result" if "result" in run else "waits", turn, id_, run) for turn, id_, run in document["runs"]]
    tokens, cost = document.get("spent", (0, 0.0))
    return course, {"tokens": int(tokens), "cost": float(cost)}
