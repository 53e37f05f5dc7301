"""`pallas-gateway database`: the version of the database's tables, their upgrade, and backups of SQLite."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, override
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import typer

from pallas_gateway.cli.project import ConfigOption, load_project
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.output import counted, result
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.shared.database.connections import Database
    from pallas_gateway.shared.database.migrating import TableVersions

PENDING = 3
"""Exit code of `status` if an upgrade is pending."""
UPGRADE_SECONDS = 3600.0  # of one statement, and in all: to measure the turns of a large database takes minutes
GOING_BACK = "restore a backup made before the upgrade; there is no other way"
_SHOWN = ("host", "port", "user", "dbname", "sslmode", "target_session_attrs")
"""Parameters of a URL of PostgreSQL that are shown; others may hold a password."""
database = typer.Typer(help="The database of gateway.database.", no_args_is_help=True)


class DatabaseCommandError(GatewayError):
    """A command cannot use the database; the message names it and the reason."""

    reason = "database_unavailable"


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """The database of a project; `file` is the one of SQLite."""

    url: Secret
    folder: Path
    file: Path | None

    @override
    def __str__(self) -> str:
        """Return its URL without the password."""
        if self.file is not None:
            return f"sqlite:///{self.file}"
        parts = urlsplit(self.url.reveal())
        user, at, host = parts.netloc.rpartition("@")
        shown = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _SHOWN], safe="/,")
        return urlunsplit((parts.scheme, f"{user.partition(':')[0]}{at}{host}", parts.path, shown, ""))

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return "sqlite" if self.file is not None else "postgresql"

    def unusable(self, why: object) -> DatabaseCommandError:
        """Return the error for a reason."""
        return DatabaseCommandError(f"{self} cannot be used: {why}")


@database.command()
def status(
    config: ConfigOption = None, *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the version of the tables and what an upgrade changes.

    Exits with 0 if they are up to date, 3 if an upgrade is pending, 1 if the database cannot be used, 2 if it is of a
    newer release.
    """
    place = place_of(config)
    try:
        found = versions_at(place)
    except DatabaseCommandError:
        if as_json:
            result(json.dumps({"url": str(place), "kind": place.kind, "state": "unavailable"}, indent=2))
        raise
    result(json.dumps(_document(place, found), indent=2) if as_json else "\n".join(_lines(place, found)))
    found.refuse_newer()
    raise typer.Exit(PENDING if found.pending else 0)


@database.command()
def upgrade(
    config: ConfigOption = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the pending steps and change nothing.")] = False,
) -> None:
    """Bring the tables to the version that this program requires, under the lock of the gateways' own start."""
    from pallas_gateway.shared.database.migrating import migrate  # noqa: PLC0415  packages of an extra

    place = place_of(config)
    found = versions_at(place) if dry_run else run_at(place, migrate)
    found.refuse_newer()
    if not found.pending:
        result(f"{place} is up to date: version {found.required}.")
        return
    before = f"version {found.present}" if found.present else "an empty database"
    done = "Would upgrade" if dry_run else "Upgraded"
    result("\n".join([f"{done} {place} from {before} to {found.required}:", *_steps(found)]))


@database.command()
def backup(
    file: Annotated[Path, typer.Argument(help="A file that is not there yet.")], config: ConfigOption = None
) -> None:
    """Copy a database of SQLite to FILE while gateways use it. Of PostgreSQL, pg_dump does this."""
    from pallas_gateway.shared.database.sqlite_backups import back_up  # noqa: PLC0415  packages of an extra

    source = _file_of(place_of(config), instead="pg_dump --format=custom --file=FILE URL")
    found = back_up(source, file)
    result(f"{file} is a backup of {source}, with tables of version {found.present}.")


@database.command()
def restore(file: Annotated[Path, typer.Argument(help="A backup.")], config: ConfigOption = None) -> None:
    """Put a backup where gateway.database of SQLite is, if no file is there. Of PostgreSQL, pg_restore does this."""
    from pallas_gateway.shared.database.sqlite_backups import restore as put_back  # noqa: PLC0415  packages of an extra

    target = _file_of(place_of(config), instead="pg_restore --single-transaction --no-owner --dbname=URL FILE")
    found = put_back(file, target)
    after = "" if found.present == found.required else f" A gateway upgrades them to {found.required} when it starts."
    result(f"{target} is the database of {file} again, with tables of version {found.present}.{after}")


def place_of(config: Path | None) -> DatabasePlace:
    """Return the database of a project."""
    place = _place_in(load_project(config, Overrides()))
    if place is None:
        raise UsageError("agents.yaml sets no gateway.database, so there is no database.")
    return place


def why_unusable(configuration: Configuration) -> str | None:
    """Return why a gateway could not use its database, for `check --online`; None if it can, or has none."""
    place = _place_in(configuration)
    if place is None:
        return None
    from pallas_gateway.shared.database.errors import DatabaseSchemaError  # noqa: PLC0415  packages of an extra

    try:
        found = versions_at(place)
        found.refuse_newer()
        if not configuration.deployment.gateway.upgrade_database:
            found.refuse_older()
    except (DatabaseCommandError, DatabaseSchemaError) as error:
        return str(error).removeprefix("gateway.database: ")
    return None


def _place_in(configuration: Configuration) -> DatabasePlace | None:
    url = configuration.deployment.gateway.database
    if url is None:
        return None
    from pallas_gateway.shared.database.connections import sqlite_file  # noqa: PLC0415  packages of an extra

    folder = configuration.path.resolve().parent
    from pallas_gateway.identity.secret import Secret  # noqa: PLC0415  `--help` does not load it

    return DatabasePlace(Secret(url), folder, sqlite_file(url, folder))


def versions_at(place: DatabasePlace) -> TableVersions:
    """Read the version of the tables. A file of SQLite that is not there is not made."""
    from pallas_gateway.shared.database.migrating import versions, versions_of  # noqa: PLC0415  packages of an extra

    if place.file is not None and not place.file.exists():
        if not place.file.parent.is_dir():
            raise place.unusable(f"no folder {place.file.parent}")
        return versions_of(None)
    return run_at(place, versions, writes=False)


def run_at[T](place: DatabasePlace, work: Callable[[Connection], T], *, writes: bool = True) -> T:
    """Run `work` in a transaction.

    Raises:
        DatabaseCommandError: the database cannot be used.
    """
    # Here the reason is part of the error; without a handler, logging prints warnings to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
    return asyncio.run(_run_at(place, work, writes=writes))


async def _run_at[T](place: DatabasePlace, work: Callable[[Connection], T], *, writes: bool) -> T:
    from pallas_gateway.shared.database.connections import Database  # noqa: PLC0415  packages of an extra
    from pallas_gateway.shared.database.errors import DatabaseUnavailableError  # noqa: PLC0415  as the last one

    opened: Database = Database(place.url, place.folder, statement_seconds=UPGRADE_SECONDS)
    try:
        if writes:
            return await opened.write(lambda connection: connection.run_sync(work), seconds=UPGRADE_SECONDS)
        return await opened.read(lambda connection: connection.run_sync(work))
    except DatabaseUnavailableError:
        raise place.unusable(opened.why_down) from None
    finally:
        await opened.close()


def _file_of(place: DatabasePlace, *, instead: str) -> Path:
    if place.file is None:
        raise UsageError(f"{place} is a database of PostgreSQL; see docs/operate/upgrading.md: {instead}")
    return place.file


def _document(place: DatabasePlace, found: TableVersions) -> dict[str, Any]:
    state = "newer" if found.is_newer else "pending" if found.pending else "current"
    pending = [
        {"version": one.version, "changes": one.changes, "olderReleasesGoOn": not one.stops_older}
        for one in found.pending
    ]
    about = {"url": str(place), "kind": place.kind, "state": state, "version": found.present}
    return {**about, "required": found.required, "pending": pending, "goingBack": GOING_BACK}


def _lines(place: DatabasePlace, found: TableVersions) -> list[str]:
    lines = [
        f"Database:  {place} ({place.kind})",
        f"Tables:    {f'version {found.present}' if found.present else 'none'}",
        f"Required:  version {found.required}",
    ]
    if found.is_newer:
        return [*lines, "State:     of a newer release"]
    if not found.pending:
        return [*lines, "State:     up to date"]
    lines.append(f"State:     {counted(len(found.pending), 'step')} pending, by `pallas-gateway database upgrade`:")
    lines += _steps(found)
    if found.present is not None:
        lines += ["", f"Going back: {GOING_BACK}."]
    return lines


def _steps(found: TableVersions) -> list[str]:
    lines = [f"  {one.version}  {one.changes}" for one in found.pending]
    if found.present is None:
        return lines
    stopping = [one.version for one in found.pending if one.stops_older]
    with_them = (
        f"Releases that do not know version {', '.join(stopping)} cannot use these tables: stop their gateways first."
        if stopping
        else "Gateways of older releases that already run go on with these tables; they do not start on them."
    )
    return [*lines, "", with_them]
