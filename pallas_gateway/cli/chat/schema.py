"""The tables threads are kept in, and how an older file gets today's. `PRAGMA user_version` counts the steps done.

What must always hold is in the tables, where a second chat, or a later version's mistake, meets it too: turns of a
thread are numbered from 1 without a gap, at most one of them waits for its answer, and what has ended stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

APPLICATION_ID = 0x50_47_43_54
"""`PGCT`, so that no other program's database is taken for threads."""

_FIRST = (
    """CREATE TABLE thread (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        gateway TEXT NOT NULL,
        agent TEXT NOT NULL,
        name TEXT,
        conversation_id TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        UNIQUE (gateway, agent, name)
    ) STRICT""",
    """CREATE TABLE turn (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        thread_id INTEGER NOT NULL REFERENCES thread (id),
        number INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending', 'complete', 'error')),
        owner TEXT NOT NULL,
        message TEXT NOT NULL,
        images TEXT NOT NULL CHECK (json_valid(images)),
        params TEXT NOT NULL CHECK (json_valid(params)),
        answer TEXT,
        error TEXT,
        tools TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tools)),
        began_at TEXT NOT NULL,
        ended_at TEXT,
        UNIQUE (thread_id, number),
        CHECK (state != 'complete' OR answer IS NOT NULL),
        CHECK ((state = 'error') = (error IS NOT NULL)),
        CHECK ((state = 'pending') = (ended_at IS NULL))
    ) STRICT""",
    "CREATE UNIQUE INDEX one_pending_turn ON turn (thread_id) WHERE state = 'pending'",
    """CREATE TRIGGER turns_are_numbered_without_gaps BEFORE INSERT ON turn
    WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM turn WHERE thread_id = NEW.thread_id)
    BEGIN SELECT raise(ABORT, 'turns are numbered from 1 without gaps'); END""",
    """CREATE TRIGGER turns_begin_pending BEFORE INSERT ON turn WHEN NEW.state != 'pending'
    BEGIN SELECT raise(ABORT, 'a turn begins as pending'); END""",
    """CREATE TRIGGER turns_keep_their_place BEFORE UPDATE OF id, thread_id, number, message, images ON turn
    BEGIN SELECT raise(ABORT, 'what was said stays as it was said'); END""",
    """CREATE TRIGGER ended_turns_stay BEFORE UPDATE ON turn WHEN OLD.state != 'pending'
    BEGIN SELECT raise(ABORT, 'a turn that has ended stays as it is'); END""",
    """CREATE TRIGGER turns_are_not_lost BEFORE DELETE ON turn
    WHEN OLD.number != (SELECT max(number) FROM turn WHERE thread_id = OLD.thread_id)
    BEGIN SELECT raise(ABORT, 'turns are numbered from 1 without gaps'); END""",
)
MIGRATIONS: Sequence[Sequence[str]] = (_FIRST,)
"""Statements of each step; a step that was released is never changed."""


class SchemaError(GatewayError):
    """The file is another program's, or a later version's."""

    reason = "foreign_database"


def migrate(connection: sqlite3.Connection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring the database to today's schema, all of it or none; two that do so at once come one after the other.

    Raises:
        SchemaError: it holds something else, or a schema that this version does not know.
    """
    if _is_current(connection, len(steps)):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = _version(connection)
        _refuse_foreign(connection, done, len(steps))
        for step in steps[done:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _is_current(connection: sqlite3.Connection, steps: int) -> bool:
    return _version(connection) == steps and _number(connection, "PRAGMA application_id") == APPLICATION_ID


def _refuse_foreign(connection: sqlite3.Connection, done: int, known: int) -> None:
    is_new = not _number(connection, "SELECT count(*) FROM sqlite_schema") and not done
    if not is_new and _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise SchemaError("it is another program's database")
    if done > known:
        raise SchemaError("it was written by a newer pallas-gateway; use that one, or another file with --db")


def _version(connection: sqlite3.Connection) -> int:
    return _number(connection, "PRAGMA user_version")


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
