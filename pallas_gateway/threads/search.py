"""The condition of a search for threads, without distinction of upper and lower case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, exists, func, or_

from pallas_gateway.database.connections import LOWER
from pallas_gateway.database.tables import threads, turns

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


def thread_contains(text: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition that the title of a thread, a message or an answer has this text."""
    said = or_(_contains(turns.c.question, text, dialect), _contains(turns.c.answer, text, dialect))
    return or_(_contains(threads.c.title, text, dialect), exists().where(and_(turns.c.thread_id == threads.c.id, said)))


def _contains(column: ColumnElement[str | None], text: str, dialect: str) -> ColumnElement[bool]:
    # Not LIKE: `aaab` in `aaaaaaaa…` takes it 200 times as long, until the database seems to be away.
    if dialect == "postgresql":
        return func.strpos(func.lower(column), func.lower(text)) > 0
    # SQLite's own function changes ASCII letters only, and is much faster.
    lower = func.lower if text.isascii() else getattr(func, LOWER)
    return func.instr(lower(column), text.lower()) > 0
