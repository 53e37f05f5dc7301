"""Migrates a database's tables to this version; safe for any number of processes that start at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from pallas_gateway.threads.records import ThreadsSchemaError

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERSION_TABLE = "pallas_threads_version"
LOCK = 0x70616C6C6173  # "pallas": the key of the advisory lock, in the database that threads are in
LOCK_SECONDS = 8  # of one attempt's wait for another process that migrates


def migrate(connection: Connection) -> None:
    """Migrate the tables in the transaction of `connection`, while no other process can.

    Raises:
        ThreadsSchemaError: a newer version has migrated them.
    """
    script = ScriptDirectory.from_config(config := _config(connection))
    if _present(connection) == script.get_current_head():
        return
    if connection.dialect.name == "postgresql":  # SQLite has only one writer at a time
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    present = _present(connection)  # again: the earlier holder of the lock may have migrated
    known = {revision.revision for revision in script.walk_revisions()}
    if present is not None and present not in known:
        message = (
            f"gateway.threads: the database's tables are at version {present}, this gateway knows up to "
            f"{script.get_current_head()}: it was used by a newer gateway; update this one"
        )
        raise ThreadsSchemaError(message)
    command.upgrade(config, "head")


def _present(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config
