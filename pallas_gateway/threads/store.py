"""Threads and turns in the database: every statement there is. Whether one changed a row says who won a race."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, or_, select, tuple_, update

from pallas_gateway.calls.call import Image, Message
from pallas_gateway.threads.records import Lease, Outcome, Thread, ThreadNotFoundError, Turn
from pallas_gateway.threads.tables import now, threads, turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Row

    from pallas_gateway.calls.call import Role
    from pallas_gateway.threads.database import Database

    type _Row = Row[*tuple[Any, ...]]

type Position = tuple[int, str]
"""Where a page of threads begins: after the one last changed then (in milliseconds since 1970), of that id."""

ABANDONED = "abandoned"
_ABANDONED_SENTENCE = "The gateway that was answering has gone away."
_NEVER_REPLAYED = 1000
"""Turns so far back are not replayed; a model's context is long over before."""
_SHOWN = (threads.c.id, threads.c.agent, threads.c.title, threads.c.created_at, threads.c.updated_at, threads.c.turns)


class Store:
    """What may be asked of the database; everything raises `ThreadsUnavailableError` when it cannot be used."""

    def __init__(self, database: Database, lease_seconds: float) -> None:
        """Leases end `lease_seconds` after they were taken or renewed, by the database's clock."""
        self._database = database
        self._lease_milliseconds = int(lease_seconds * 1000)

    async def create(self, owner: str, agent: str, title: str | None = None) -> Thread:
        """A new thread without turns."""
        values = {"id": secrets.token_hex(16), "owner": owner, "agent": agent, "title": title}
        new = insert(threads).values(**values, created_at=now(), updated_at=now(), turns=0).returning(*_SHOWN)
        async with self._database.writing() as connection:
            return _thread((await connection.execute(new)).one())

    async def find(self, thread_id: str, owner: str) -> Thread:
        """The owner's thread of that id.

        Raises:
            ThreadNotFoundError: there is none, or it is somebody else's.
        """
        wanted = select(*_SHOWN).where(threads.c.id == thread_id, threads.c.owner == owner)
        async with self._database.reading() as connection:
            row = (await connection.execute(wanted)).one_or_none()
        if row is None:
            raise ThreadNotFoundError(f"no thread '{thread_id}'")
        return _thread(row)

    async def threads_of(self, owner: str, agent: str, *, limit: int, after: Position | None) -> Sequence[Thread]:
        """At most `limit` of the owner's threads with an agent, the one last changed first."""
        place = tuple_(threads.c.updated_at, threads.c.id)
        wanted = select(*_SHOWN).where(threads.c.owner == owner, threads.c.agent == agent)
        if after is not None:
            wanted = wanted.where(place < tuple_(*after))
        wanted = wanted.order_by(threads.c.updated_at.desc(), threads.c.id.desc()).limit(limit)
        async with self._database.reading() as connection:
            return [_thread(row) for row in await connection.execute(wanted)]

    async def turns_of(self, thread_id: str, *, limit: int, after: int) -> Sequence[Turn]:
        """At most `limit` turns of a thread whose numbers come after `after`, in order.

        A pending turn whose lease is over is shown as what it will be: an error.
        """
        is_over = and_(turns.c.status == "pending", or_(threads.c.lease_until.is_(None), threads.c.lease_until < now()))
        wanted = (
            select(turns, is_over.label("is_over"))
            .join(threads, threads.c.id == turns.c.thread_id)
            .where(turns.c.thread_id == thread_id, turns.c.number > after)
            .order_by(turns.c.number)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_turn(row) for row in await connection.execute(wanted)]

    async def history(self, lease: Lease) -> Sequence[Message]:
        """What was said before the turn of a lease: questions with their answers, without turns that failed."""
        wanted = (
            select(turns.c.question, turns.c.question_images, turns.c.answer, turns.c.answer_images)
            .where(turns.c.thread_id == lease.thread_id, turns.c.status == "complete", turns.c.number < lease.turn)
            .order_by(turns.c.number.desc())
            .limit(_NEVER_REPLAYED)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        return [message for row in reversed(rows) for message in _pair(row)]

    async def begin_turn(self, thread_id: str, question: Message, call_id: str) -> Lease | None:
        """The next turn of a thread, pending, with the lease of its thread; None while somebody else has it.

        Number and row come with the lease in one transaction, so numbers are unique and have no gaps. What the last
        holder has left behind unfinished becomes an error.
        """
        holder = secrets.token_hex(16)
        taken = (
            update(threads)
            .where(threads.c.id == thread_id, _is_free())
            .values(**self._held_by(holder), turns=threads.c.turns + 1, updated_at=now())
            .returning(threads.c.turns)
        )
        async with self._database.writing() as connection:
            number = (await connection.execute(taken)).scalar_one_or_none()
            if number is None:
                return None
            await connection.execute(_give_up_pending(thread_id))
            await connection.execute(_pending(thread_id, number, question, call_id))
        return Lease(thread_id, number, holder)

    async def renew(self, lease: Lease) -> bool:
        """Have a lease last as long again from now on; whether it is still held."""
        held = update(threads).where(_holds(lease)).values(lease_until=now() + self._lease_milliseconds)
        async with self._database.writing() as connection:
            return (await connection.execute(held)).rowcount == 1

    async def end_turn(self, lease: Lease, outcome: Outcome) -> bool:
        """Write what a turn came to and give its lease back; False, and nothing is written, if it was lost."""
        given_back = update(threads).where(_holds(lease)).values(lease_holder=None, lease_until=None, updated_at=now())
        ended = (
            update(turns)
            .where(turns.c.thread_id == lease.thread_id, turns.c.number == lease.turn)
            .values(**_columns(outcome), ended_at=now())
        )
        async with self._database.writing() as connection:
            is_held = (await connection.execute(given_back)).rowcount == 1
            if is_held:
                await connection.execute(ended)
        return is_held

    async def forget(self, lease: Lease) -> bool:
        """Take back a thread with the turn of a lease, if it has no other; False, and nothing is changed, if it has."""
        alone = delete(threads).where(_holds(lease), threads.c.turns == 1)
        async with self._database.writing() as connection:
            return (await connection.execute(alone)).rowcount == 1

    def _held_by(self, holder: str) -> dict[str, Any]:
        return {"lease_holder": holder, "lease_until": now() + self._lease_milliseconds}


def _is_free() -> ColumnElement[bool]:
    return or_(threads.c.lease_holder.is_(None), threads.c.lease_until < now())


def _holds(lease: Lease) -> ColumnElement[bool]:
    """Also when it is over: as long as nobody else took it, nothing came between."""
    return and_(threads.c.id == lease.thread_id, threads.c.lease_holder == lease.holder)


def _give_up_pending(thread_id: str) -> Any:
    values = {"status": "error", "error_reason": ABANDONED, "error": _ABANDONED_SENTENCE, "ended_at": now()}
    return update(turns).where(turns.c.thread_id == thread_id, turns.c.status == "pending").values(**values)


def _pending(thread_id: str, number: int, question: Message, call_id: str) -> Any:
    return insert(turns).values(
        thread_id=thread_id,
        number=number,
        status="pending",
        question=question.text,
        question_images=_images_as_json(question),
        answer_images=[],
        usage={},
        call_id=call_id,
        created_at=now(),
    )


def _columns(outcome: Outcome) -> dict[str, Any]:
    answer = outcome.answer
    return {
        "status": outcome.status,
        "answer": storable(answer.text) if answer else None,
        "answer_images": _images_as_json(answer) if answer else [],
        "stop_reason": outcome.stop_reason,
        "usage": dict(outcome.usage),
        "error_reason": outcome.error_reason,
        "error": storable(outcome.error) if outcome.error else None,
    }


def storable(text: str) -> str:
    """Text that a database takes: models may say NUL and halves of surrogate pairs, which PostgreSQL does not."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _images_as_json(message: Message) -> list[dict[str, str]]:
    return [{"data": image.data, "mime_type": image.mime_type} for image in message.images]


def _message(role: Role, text: str, images: list[dict[str, str]]) -> Message:
    return Message(role, text, tuple(Image(**image) for image in images))


def _pair(row: _Row) -> tuple[Message, Message]:
    answer = _message("assistant", row.answer, row.answer_images)
    return _message("user", row.question, row.question_images), answer


def _thread(row: _Row) -> Thread:
    return Thread(row.id, row.agent, row.title, _time(row.created_at), _time(row.updated_at), row.turns)


def _turn(row: _Row) -> Turn:
    question = _message("user", row.question, row.question_images)
    return Turn(
        row.number,
        "error" if row.is_over else row.status,
        question,
        _outcome(row),
        row.call_id,
        _time(row.created_at),
        _time(row.ended_at) if row.ended_at is not None else None,
    )


def _outcome(row: _Row) -> Outcome:
    if row.is_over:
        return Outcome(error_reason=ABANDONED, error=_ABANDONED_SENTENCE)
    if row.status == "complete":
        answer = _message("assistant", row.answer, row.answer_images)
        return Outcome(answer, row.stop_reason, row.usage)
    return Outcome(None, row.stop_reason, row.usage, row.error_reason, row.error)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
