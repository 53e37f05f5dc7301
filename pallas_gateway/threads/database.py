"""The connections to one database: SQLite for one machine, PostgreSQL for any number of replicas.

Transactions are short: none is held while an agent works, so a few connections serve any number of calls.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import asyncpg
from sqlalchemy import URL, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from pallas_gateway.telemetry.redaction import shortened
from pallas_gateway.threads.records import ThreadsUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection

    from pallas_gateway.identity.secret import Secret

CONNECTIONS = 10
"""Most connections of one process."""
CONNECT_SECONDS = 5.0
OPERATION_SECONDS = 15.0
"""How long one transaction may take, with the wait for a connection."""
BUSY_SECONDS = 10.0
"""How long SQLite waits for another writer."""
LONGEST_REASON = 300
_SQLITE = "sqlite:///"
_WRITES = {"pallas_writes": True}
_FAILURES = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
_log = logging.getLogger("pallas.threads")


class Database:
    """The engine, and what is known of whether it can be reached: logged when that changes."""

    def __init__(self, url: Secret, folder: Path) -> None:
        """Not connected yet; a relative path of SQLite is below `folder`."""
        self._engine = _engine(url.reveal(), folder)
        self._is_up = True

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def writing(self, seconds: float = OPERATION_SECONDS) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write.

        Raises:
            ThreadsUnavailableError: the database cannot be reached, or does not do what it is asked.
        """
        async with self._translated(seconds), self._engine.connect() as connection:
            await connection.execution_options(**_WRITES)
            async with connection.begin():
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads; raises as `writing`."""
        async with self._translated(OPERATION_SECONDS), self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _translated(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except _FAILURES as error:
            self._note(error)
            message = "The conversations' database cannot be used now; try again in a moment."
            raise ThreadsUnavailableError(message) from None  # what the libraries say may quote the URL
        self._note(None)

    def _note(self, error: BaseException | None) -> None:
        if (error is None) == self._is_up:
            return
        self._is_up = error is None
        if error is None:
            _log.info("threads database in use again")
        else:
            _log.error("threads database cannot be used", extra={"why": reason_of(error)})


def reason_of(error: BaseException) -> str:
    """An error in one line, without the statement, its values and any credentials."""
    told = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return shortened(f"{type(error).__name__}: {told}", LONGEST_REASON)


def _engine(url: str, folder: Path) -> AsyncEngine:
    return _sqlite_engine(folder / unquote(url.removeprefix(_SQLITE))) if url.startswith(_SQLITE) else _postgresql(url)


def _sqlite_engine(path: Path) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        # Transactions are begun here, not by the driver, which would begin one only when it comes to write.
        connect_args={"isolation_level": None, "timeout": BUSY_SECONDS},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=OPERATION_SECONDS,
        hide_parameters=True,
    )

    def prepare_file(*_: object) -> None:
        if not path.parent.is_dir():  # SQLite's own words are the same for whatever it cannot open
            raise FileNotFoundError(f"no folder {path.parent}")
        # What people said is for the gateway's user alone; SQLite gives the files beside it the mode of this one.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    event.listen(engine.sync_engine, "do_connect", prepare_file)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _: object) -> None:
    cursor = connection.cursor()
    # With a write-ahead log readers and the one writer do not wait for each other.
    for setting in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # One that first reads and then writes would fail where another has written meanwhile, however long it may wait.
    writes = "pallas_writes" in connection.get_execution_options()
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: str) -> AsyncEngine:
    async def connect() -> Any:
        # The URL as it is: what PostgreSQL's own clients understand (`sslmode`, sockets) means the same here.
        return await asyncpg.connect(url, timeout=CONNECT_SECONDS, command_timeout=OPERATION_SECONDS)

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=OPERATION_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
    )
