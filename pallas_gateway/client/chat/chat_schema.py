"""The tables of threads and their migrations; `PRAGMA user_version` counts the steps done.

Constraints and triggers hold for every chat and every version that writes to the file: turns of a thread are numbered
from 1 without gaps, at most one of them is pending, and an ended turn never changes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

APPLICATION_ID = 0x50_47_43_54  # `PGCT`

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
    """The file belongs to another program, or a later version wrote it."""

    reason = "foreign_database"


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, rolled back if the block or the commit fails; other writers wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrate(connection: sqlite3.Connection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Run the missing steps, all of them or none.

    Raises:
        SchemaError: the file holds something else, or a schema that this version does not know.
    """
    with transaction(connection):
        [(application, done, objects)] = connection.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
            "FROM pragma_application_id, pragma_user_version"
        )
        if application != APPLICATION_ID and (done or objects):
            raise SchemaError("it is another program's database")
        if done > len(steps):
            raise SchemaError("it was written by a newer pallas-gateway; use that one, or another file with --db")
        if done < len(steps):
            for statement in (statement for step in steps[done:] for statement in step):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(steps)}")
