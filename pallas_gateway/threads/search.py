"""The condition of a search for threads, without distinction of upper and lower case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, exists, func, or_

from pallas_gateway.database.connections import LOWER
from pallas_gateway.database.tables import threads, turns

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

_ESCAPE = "\\"


def thread_contains(text: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition that the title of a thread, a message or an answer has this text."""
    said = or_(_contains(turns.c.question, text, dialect), _contains(turns.c.answer, text, dialect))
    return or_(_contains(threads.c.title, text, dialect), exists().where(and_(turns.c.thread_id == threads.c.id, said)))


def _contains(column: ColumnElement[str | None], text: str, dialect: str) -> ColumnElement[bool]:
    pattern = f"%{_escaped(text)}%"
    if dialect == "postgresql":
        return column.ilike(pattern, escape=_ESCAPE)
    if text.isascii():  # SQLite's own comparison ignores the case of ASCII letters only, and is much faster
        return column.like(pattern, escape=_ESCAPE)
    lower: ColumnElement[str] = getattr(func, LOWER)(column)
    return lower.like(pattern.lower(), escape=_ESCAPE)


def _escaped(text: str) -> str:
    for special in (_ESCAPE, "%", "_"):
        text = text.replace(special, _ESCAPE + special)
    return text
