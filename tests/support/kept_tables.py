"""The tables of an empty SQLite file, as the migrations have made them once in this process.

Alembic loads and runs all steps in 60 ms, and hundreds of tests begin with an empty file. Older
tables are migrated, and those of PostgreSQL.
"""

from functools import wraps
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from pallas_gateway.shared.database import migrating

STEPS = str(Path(migrating.__file__).with_name("migrations"))
type Statement = tuple[str, tuple[Any, ...]]
_migrate = command.upgrade
_made: list[Statement] = []


@wraps(_migrate)
def upgrade(config: Config, revision: str, sql: bool = False, tag: str | None = None) -> None:
    """Migrate as Alembic does; an empty SQLite file gets the tables of the first one."""
    assert (sql, tag) == (False, None)
    connection: Connection = config.attributes["connection"]
    is_whole = revision == "head" and config.get_main_option("script_location") == STEPS
    if not is_whole or connection.dialect.name != "sqlite" or list(_tables(connection)):
        _migrate(config, revision)
    elif not _made:
        _migrate(config, revision)
        _made.extend(_statements(connection))
    else:
        for statement, values in _made:
            connection.exec_driver_sql(statement, values)


def _tables(connection: Connection) -> dict[str, str]:
    found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
    return {row.name: row.sql for row in found}


def _statements(connection: Connection) -> list[Statement]:
    made = _tables(connection)
    statements: list[Statement] = [(sql, ()) for sql in made.values()]
    for name, sql in made.items():
        if sql.startswith("CREATE TABLE"):
            rows = [tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {name}")]  # noqa: S608  its own names
            statements += [(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row) for row in rows]  # noqa: S608
    return statements


def use() -> None:
    """Make tables that way from now on."""
    command.upgrade = upgrade
