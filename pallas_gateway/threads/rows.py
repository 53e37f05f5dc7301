"""Rows of the database as values, and values as columns."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Image, Message
from pallas_gateway.calls.questions import Question
from pallas_gateway.threads.records import Outcome, Thread, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row

    from pallas_gateway.calls.call import Role
    from pallas_gateway.calls.questions import Answer

    type AnyRow = Row[*tuple[Any, ...]]

ABANDONED = "abandoned"
ABANDONED_SENTENCE = "The gateway that was answering has gone away; send the message again."


def columns_of(outcome: Outcome) -> dict[str, Any]:
    """The columns of a turn that has ended."""
    answer = outcome.answer
    return {
        "status": outcome.status,
        "answer": storable(answer.text) if answer else None,
        "answer_images": images_as_json(answer) if answer else [],
        "stop_reason": outcome.stop_reason,
        "usage": dict(outcome.usage),
        "error_reason": outcome.error_reason,
        "error": storable(outcome.error) if outcome.error else None,
    }


def storable(text: str) -> str:
    """Text without NUL and halves of surrogate pairs, which models may write and PostgreSQL refuses."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def images_as_json(message: Message) -> list[dict[str, str]]:
    """The images of a message as JSON."""
    return [{"data": image.data, "mime_type": image.mime_type} for image in message.images]


def _message(role: Role, text: str, images: list[dict[str, str]]) -> Message:
    return Message(role, text, tuple(Image(**image) for image in images))


def pair_of(row: AnyRow) -> tuple[Message, Message]:
    """The question and the answer of a complete turn."""
    answer = _message("assistant", row.answer, row.answer_images)
    return _message("user", row.question, row.question_images), answer


def thread_of(row: AnyRow) -> Thread:
    """The thread of a row."""
    return Thread(row.id, row.agent, row.title, _time(row.created_at), _time(row.updated_at), row.turns)


def turn_of(row: AnyRow, asks: Sequence[Question] = ()) -> Turn:
    """The turn of a row; its `is_over` is true for a pending turn whose lease has ended and that cannot be resumed.

    `asks` are its open questions.
    """
    question = _message("user", row.question, row.question_images)
    return Turn(
        row.number,
        "error" if row.is_over else row.status,
        question,
        _outcome(row),
        row.call_id,
        _time(row.created_at),
        _time(row.ended_at) if row.ended_at is not None else None,
        tuple(asks) if row.status == "pending" and not row.is_over else (),
        row.can_be_resumed,
    )


def columns_of_question(question: Question) -> dict[str, Any]:
    """The columns of an open question."""
    return {"id": question.id, "question": asdict(question)}


def question_of(row: AnyRow) -> Question:
    """The question of a row."""
    return Question(**{**row.question, "call_path": tuple(row.question["call_path"])})


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """An answer as JSON."""
    return {"outcome": answer.outcome, "content": dict(answer.content) if answer.content is not None else None}


def _outcome(row: AnyRow) -> Outcome:
    if row.is_over:
        return Outcome(error_reason=ABANDONED, error=ABANDONED_SENTENCE)
    if row.status == "complete":
        answer = _message("assistant", row.answer, row.answer_images)
        return Outcome(answer, row.stop_reason, row.usage)
    return Outcome(None, row.stop_reason, row.usage, row.error_reason, row.error)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
