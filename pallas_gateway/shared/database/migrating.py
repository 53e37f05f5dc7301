"""The version of a database's tables, and their migration to those of this version of the gateway.

Any number of processes may migrate one database at once. There is no way back but a backup: a step that is undone would
lose what was stored since.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text

from pallas_gateway.shared.database.errors import DatabaseSchemaError

VERSION_TABLE = "pallas_threads_version"
LOCK = 0x70616C6C6173  # "pallas": the key of the advisory lock, in the database that threads are in
LOCK_SECONDS = 8  # of one attempt's wait for another process that migrates


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A migration, to the tables of `version`.

    `changes` is a sentence. `stops_older` if releases that do not know the version cannot work with its tables.
    """

    version: str
    changes: str
    stops_older: bool


@dataclass(frozen=True, slots=True)
class TableVersions:
    """The version of the tables (None: there are none), the one that this gateway requires, and the steps to it."""

    present: str | None
    required: str
    pending: tuple[MigrationStep, ...] = ()
    is_newer: bool = False

    def refuse_newer(self) -> None:
        """Check that this gateway knows the tables.

        Raises:
            DatabaseSchemaError: a newer gateway has migrated them.
        """
        if self.is_newer:
            message = (
                f"gateway.database: the database's tables are at version {self.present}, this gateway knows up to "
                f"{self.required}: it was used by a newer gateway; update this one"
            )
            raise DatabaseSchemaError(message)

    def refuse_older(self) -> None:
        """Check that the tables are up to date.

        Raises:
            DatabaseSchemaError: they are not.
        """
        if self.pending:
            found = f"are at version {self.present}" if self.present else "are not there"
            message = (
                f"gateway.database: the database's tables {found}, this gateway requires {self.required}, and "
                "gateway.upgrade_database is false: run `pallas-gateway database upgrade`"
            )
            raise DatabaseSchemaError(message)


def versions(connection: Connection) -> TableVersions:
    """Read the version of the tables; nothing is changed."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return versions_of(context.get_current_revision())


def versions_of(present: str | None) -> TableVersions:
    """Return what holds for tables of a version; None: for an empty database.

    Raises:
        DatabaseSchemaError: they are older than those of release 0.1.0.
    """
    steps = [_step(one) for one in reversed(list(ScriptDirectory.from_config(_config()).walk_revisions()))]
    known, required = [one.version for one in steps], steps[-1].version
    if present is None:
        return TableVersions(None, required, tuple(steps))
    if present < known[0]:
        message = (
            f"gateway.database: the database's tables of version {present} are older than those of release 0.1.0, "
            f"which can upgrade them to {known[0]}"
        )
        raise DatabaseSchemaError(message)
    if present not in known:
        return TableVersions(present, required, is_newer=True)
    return TableVersions(present, required, tuple(steps[known.index(present) + 1 :]))


def migrate(connection: Connection) -> TableVersions:
    """Migrate the tables in the transaction of `connection`, while no other process can; return what was before.

    Raises:
        DatabaseSchemaError: a newer version has migrated them.
    """
    found = versions(connection)
    if found.present == found.required:
        return found
    if connection.dialect.name == "postgresql":  # SQLite has only one writer at a time
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        found = versions(connection)  # again: the earlier holder of the lock may have migrated
    found.refuse_newer()
    command.upgrade(_config(connection), "head")
    return found


def require_current(connection: Connection) -> TableVersions:
    """Check that the tables are those of this gateway, for gateways that do not migrate them.

    Raises:
        DatabaseSchemaError: they are older or newer.
    """
    found = versions(connection)
    found.refuse_newer()
    found.refuse_older()
    return found


def _step(script: Script) -> MigrationStep:
    return MigrationStep(script.revision, script.doc, getattr(script.module, "STOPS_OLDER_RELEASES", False))


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config
