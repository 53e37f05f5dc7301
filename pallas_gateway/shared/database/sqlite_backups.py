"""Backups of a database of SQLite, made while gateways use it, and their restoration.

Of PostgreSQL, `pg_dump` and `pg_restore` do this.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os.path import lexists
from pathlib import Path

from pallas_gateway.errors import GatewayError
from pallas_gateway.shared.database.migrating import VERSION_TABLE, TableVersions, versions_of

_OTHER_FILES = ("-wal", "-shm", "-journal")


class BackupError(GatewayError):
    """A backup cannot be made or used; nothing was changed."""

    reason = "backup_failed"


def back_up(source: Path, backup: Path) -> TableVersions:
    """Copy a consistent state of `source` to `backup`, which is there only once it is whole; return its version.

    Raises:
        BackupError: with the reason.
    """
    if lexists(backup):
        raise BackupError(f"{backup} is there already; name another file, or move it away")
    _copy(source, backup)
    return examine(backup)


def restore(backup: Path, target: Path) -> TableVersions:
    """Copy a backup to `target`, where no database may be; return its version.

    Raises:
        BackupError: the backup is not whole or of a newer release, or there is a database.
    """
    found = examine(backup)
    for file in (target, *(target.with_name(target.name + ending) for ending in _OTHER_FILES)):
        if lexists(file):
            raise BackupError(f"{file} is there already; stop the gateway, and move the file away")
    _copy(backup, target)
    return found


def examine(backup: Path) -> TableVersions:
    """Check that a backup is whole and one that this gateway can use.

    Raises:
        BackupError: it is not.
    """
    with _opened(backup) as opened:
        if (found := opened.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            raise BackupError(f"{backup} is damaged or incomplete: {found}")
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchone():
            raise BackupError(f"{backup} is not a database of a gateway: it has no table {VERSION_TABLE}")
        found = opened.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()  # noqa: S608  a constant
    match found:
        case [(str(version),)]:
            pass
        case _:
            raise BackupError(f"{backup} is not a database of a gateway: {VERSION_TABLE} has no version, or several")
    versions = versions_of(version)
    if versions.is_newer:
        why = f"its tables are at version {version}, this program knows up to {versions.required}"
        raise BackupError(f"{backup} is of a newer release: {why}; use a program of that release")
    return versions


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that is there, in a transaction at its present state.

    Raises:
        BackupError: it cannot be read.
    """
    if not lexists(file) or not file.is_file():
        raise BackupError(f"no file {file}, or none that this user may see")
    try:
        # Not `mode=ro`: only a connection that may write can use the log of a database that no gateway has open.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as opened:
            yield opened
    except sqlite3.Error as error:
        raise BackupError(f"{file} is damaged, incomplete or no database: {error}") from error


def _copy(source: Path, target: Path) -> None:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # for this user only
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror}") from error
    unfinished = Path(name)
    try:
        with _opened(source) as opened, closing(sqlite3.connect(unfinished)) as copy:
            opened.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # so that the file is all that there is, and readable anywhere
        os.fsync(descriptor)
        unfinished.rename(target)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)
        unfinished.unlink(missing_ok=True)
