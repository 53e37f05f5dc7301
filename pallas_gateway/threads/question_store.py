"""The open questions of turns in the database, with the answers that their calls have not taken yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select, update

from pallas_gateway.calls.questions import Answer
from pallas_gateway.threads.records import QuestionNotOpenError
from pallas_gateway.threads.rows import answer_as_json, columns_of_question, question_of
from pallas_gateway.threads.tables import now, questions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Question
    from pallas_gateway.threads.database import Database
    from pallas_gateway.threads.records import Lease

type QuestionKey = tuple[str, str]
"""The thread of a question, and its id."""


class QuestionStore:
    """Reads and writes questions; every method is one transaction, and raises as those of `Store`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, lease: Lease, question: Question) -> None:
        """Keep a question of the turn of a lease, for clients that read the turn and for their answers."""
        values = {"thread_id": lease.thread_id, "turn": lease.turn, **columns_of_question(question)}
        await self._database.write(lambda sql: sql.execute(insert(questions).values(**values, asked_at=now())))

    async def close(self, lease: Lease, question_id: str) -> None:
        """Forget a question of the turn of a lease, and its answer."""
        await self._database.write(lambda sql: sql.execute(delete(questions).where(_is(lease.thread_id, question_id))))

    async def give(self, thread_id: str, answers: Mapping[str, Answer]) -> None:
        """Write answers to open questions, for the process that runs the call; all of them, or none.

        Raises:
            QuestionNotOpenError: another request has answered one of them, or it is not open any more.
        """

        async def written(sql: AsyncConnection) -> None:
            for question_id, answer in sorted(answers.items()):
                is_open = and_(_is(thread_id, question_id), questions.c.answer.is_(None))
                given = update(questions).where(is_open).values(answer=answer_as_json(answer))
                if (await sql.execute(given)).rowcount != 1:
                    raise QuestionNotOpenError(question_id)

        await self._database.write(written)

    async def given(self, thread_ids: Collection[str]) -> dict[QuestionKey, Answer]:
        """Return the answers to questions of these threads."""
        columns = questions.c.thread_id, questions.c.id, questions.c.answer
        wanted = select(*columns).where(questions.c.thread_id.in_(thread_ids), questions.c.answer.is_not(None))
        rows = await self._database.read(lambda sql: sql.execute(wanted))
        return {(row.thread_id, row.id): Answer(**row.answer) for row in rows}


async def unanswered(sql: AsyncConnection, thread_id: str) -> dict[int, list[Question]]:
    """Return the questions of a thread that have no answer, in order, by the numbers of their turns."""
    wanted = select(questions).where(questions.c.thread_id == thread_id, questions.c.answer.is_(None))
    by_turn: dict[int, list[Question]] = {}
    for row in await sql.execute(wanted.order_by(questions.c.asked_at, questions.c.id)):
        by_turn.setdefault(row.turn, []).append(question_of(row))
    return by_turn


def forget_questions(thread_id: str) -> Any:
    """Return the statement that deletes all questions of a thread."""
    return delete(questions).where(questions.c.thread_id == thread_id)


def _is(thread_id: str, question_id: str) -> ColumnElement[bool]:
    return and_(questions.c.thread_id == thread_id, questions.c.id == question_id)
