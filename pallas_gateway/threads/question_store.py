"""The open questions of turns in the database, with the answers that their calls have not taken yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, exists, insert, select, update

from pallas_gateway.calls.questions import Answer
from pallas_gateway.database.tables import checkpoints, now, questions, threads, turns
from pallas_gateway.threads.records import (
    CheckpointRecord,
    QuestionNotOpenError,
    answer_as_json,
    columns_of_question,
    question_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Question
    from pallas_gateway.database.connections import Database
    from pallas_gateway.threads.records import Lease

type QuestionKey = tuple[str, str]
"""The thread of a question, and its id."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Where a call waits, from where it can be resumed for so many seconds."""

    at: CheckpointRecord
    seconds: float


class QuestionStore:
    """Reads and writes questions; every method is one transaction, and raises as those of `Store`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, lease: Lease, question: Question, waits: Waits | None) -> None:
        """Keep a question of the turn of a lease, for clients that read the turn and for their answers."""
        place = {"thread_id": lease.thread_id, "turn": lease.turn}

        async def written(sql: AsyncConnection) -> None:
            await sql.execute(insert(questions).values(**place, **columns_of_question(question), asked_at=now()))
            await _write_checkpoint(sql, lease, waits)

        await self._database.write(written)

    async def close(self, lease: Lease, question_id: str, waits: Waits | None) -> None:
        """Forget a question of the turn of a lease, and its answer."""

        async def written(sql: AsyncConnection) -> None:
            await sql.execute(delete(questions).where(_is(lease.thread_id, question_id)))
            await _write_checkpoint(sql, lease, waits)

        await self._database.write(written)

    async def give(self, thread_id: str, answers: Mapping[str, Answer], *, is_taken: bool) -> None:
        """Write answers to open questions, for the process that runs the call; all of them, or none.

        If they are taken, the call goes on, and cannot be resumed from where it waited.

        Raises:
            QuestionNotOpenError: another request has answered one of them, or it is not open any more.
        """

        async def written(sql: AsyncConnection) -> None:
            for question_id, answer in sorted(answers.items()):
                is_open = and_(_is(thread_id, question_id), questions.c.answer.is_(None))
                given = update(questions).where(is_open).values(answer=answer_as_json(answer))
                if (await sql.execute(given)).rowcount != 1:
                    raise QuestionNotOpenError(question_id)
            if is_taken:
                await sql.execute(delete(checkpoints).where(checkpoints.c.thread_id == thread_id))

        await self._database.write(written)

    async def given(self, thread_ids: Collection[str]) -> dict[QuestionKey, Answer]:
        columns = questions.c.thread_id, questions.c.id, questions.c.answer
        wanted = select(*columns).where(questions.c.thread_id.in_(thread_ids), questions.c.answer.is_not(None))
        rows = await self._database.read(lambda sql: sql.execute(wanted))
        return {(row.thread_id, row.id): Answer(**row.answer) for row in rows}

    async def take(self, thread_ids: Collection[str]) -> None:
        """Note that the calls of these threads take answers, and cannot be resumed from where they waited."""
        of_threads = delete(checkpoints).where(checkpoints.c.thread_id.in_(thread_ids))
        await self._database.write(lambda sql: sql.execute(of_threads))

    async def remove_expired(self, seconds: float) -> None:
        """Delete what calls of killed processes have left, `seconds` after it could be used last."""
        latest = now() - int(seconds * 1000)
        thread_id = questions.c.thread_id
        is_held = exists().where(threads.c.id == thread_id, threads.c.lease_until > latest)
        is_resumable = exists().where(checkpoints.c.thread_id == thread_id, checkpoints.c.valid_until > latest)
        left = delete(questions).where(questions.c.asked_at < latest, ~is_held, ~is_resumable)

        async def written(sql: AsyncConnection) -> None:
            await sql.execute(left)
            await sql.execute(delete(checkpoints).where(checkpoints.c.valid_until < latest))

        await self._database.write(written)


async def unanswered(sql: AsyncConnection, thread_id: str) -> dict[int, list[Question]]:
    """Return the questions of a thread that have no answer, in order, by the numbers of their turns."""
    wanted = select(questions).where(questions.c.thread_id == thread_id, questions.c.answer.is_(None))
    by_turn: dict[int, list[Question]] = {}
    for row in await sql.execute(wanted.order_by(questions.c.asked_at, questions.c.id)):
        by_turn.setdefault(row.turn, []).append(question_of(row))
    return by_turn


async def forget_questions(sql: AsyncConnection, thread_id: str) -> None:
    """Delete the questions of a thread, and where its call waited."""
    for table in (questions, checkpoints):
        await sql.execute(delete(table).where(table.c.thread_id == thread_id))


def has_checkpoint() -> ColumnElement[bool]:
    """Return the condition that the call of a turn can be resumed."""
    of_turn = and_(checkpoints.c.thread_id == turns.c.thread_id, checkpoints.c.turn == turns.c.number)
    return exists().where(of_turn, checkpoints.c.valid_until > now())


async def used_checkpoint(sql: AsyncConnection, thread_id: str, number: int) -> CheckpointRecord:
    """Return where the call of a turn waited; delete that and its questions, which the call puts again.

    Raises:
        QuestionNotOpenError: the question is not open.
    """
    of_turn = and_(checkpoints.c.thread_id == thread_id, checkpoints.c.turn == number)
    found = (await sql.execute(select(checkpoints).where(of_turn, checkpoints.c.valid_until > now()))).one_or_none()
    if found is None:
        raise QuestionNotOpenError("")
    columns = questions.c.id, questions.c.answer
    answered = select(*columns).where(questions.c.thread_id == thread_id, questions.c.answer.is_not(None))
    answers = {row.id: Answer(**row.answer) for row in await sql.execute(answered)}
    await forget_questions(sql, thread_id)
    return CheckpointRecord(found.checkpoint, found.params, found.messages, answers)


async def _write_checkpoint(sql: AsyncConnection, lease: Lease, waits: Waits | None) -> None:
    await sql.execute(delete(checkpoints).where(checkpoints.c.thread_id == lease.thread_id))
    if waits is not None:
        place = {"thread_id": lease.thread_id, "turn": lease.turn, "valid_until": now() + int(waits.seconds * 1000)}
        values = {"params": waits.at.params, "messages": waits.at.messages, "checkpoint": waits.at.checkpoint}
        await sql.execute(insert(checkpoints).values(**place, **values))


def _is(thread_id: str, question_id: str) -> ColumnElement[bool]:
    return and_(questions.c.thread_id == thread_id, questions.c.id == question_id)
