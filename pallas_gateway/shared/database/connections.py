"""The connections to one database.

SQLite is for one machine, PostgreSQL for any number of replicas.

Transactions are short: none is open while an agent works, so a few connections serve any number of calls. What may take
long has a share of them, so that calls and other callers do not wait for it. Each transaction runs in a task of its own
and is never cancelled: a cancelled statement may leave a closed connection with an open transaction, which blocks every
other writer of SQLite.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import asyncpg
from sqlalchemy import URL, delete, event, insert
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from pallas_gateway.shared.database.errors import DatabaseBusyError, DatabaseUnavailableError
from pallas_gateway.shared.database.tables import ID_CHARACTERS, now, threads
from pallas_gateway.tasks import TaskOwner, completed
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import Literal

    from prometheus_client import Gauge
    from sqlalchemy import Connection, QueuePool
    from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.telemetry.metrics import Metrics

    type Share = Literal["calls", "services", "threads", "long"]
    type Work[T] = Callable[[AsyncConnection], Awaitable[T]]


SHARES: Mapping[Share, int] = {"calls": 2, "services": 2, "threads": 4, "long": 2}
"""Connections of one process, by their use: decisions about calls; states, agents and upkeep; threads; searches in
threads and copies of them."""
CONNECTIONS = sum(SHARES.values())
CONNECT_SECONDS = 5.0
OPERATION_SECONDS = 15.0
"""A caller's longest wait for one transaction, with the wait for a connection. The transaction itself is bounded by the
limits of the pool, of each statement and of SQLite's lock."""
RENEWALS = 4  # of a lease in its lifetime, so that a short outage of the database does not lose it
IDLE_SECONDS = 20  # between two statements of a transaction, after which PostgreSQL ends it
_TRY_AGAIN_SECONDS = (0.2, 1.0, 3.0)  # pauses between attempts of a transaction that must not be lost
TRIED_BYTES = 64 * 1024  # a full disk still takes small changes
LONGEST_REASON = 300
_LOCKED_SECONDS = 0.01  # pause between attempts to change a file of SQLite that another process changes
_SQLITE = "sqlite:///"
_WRITES, _COUNTS = "pallas_writes", "pallas_counts"
_REFUSED = (IntegrityError, DataError)
_REFUSED_STATES = ("22", "23", "40")
"""Classes of PostgreSQL's states: data, rules of tables, and transactions that it has undone, as for a deadlock."""
_LATE_STATES = ("57014", "55P03")
"""PostgreSQL's states of a statement, and of the wait for a lock, that took too long."""
_FAILURES = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
_log = logging.getLogger("pallas.threads")


class Database:
    """The engine; logs changes of its availability.

    It is unavailable from a failed transaction to the next successful `try_out`: reads may succeed while writes fail,
    and small writes while larger ones do. A transaction that takes too long, or that breaks a rule of a table, fails
    alone; after the former the database should be tried out.
    """

    def __init__(
        self,
        url: Secret,
        folder: Path,
        *,
        busy_seconds: float = 10.0,
        statement_seconds: float = OPERATION_SECONDS,
        up: Gauge | None = None,
    ) -> None:
        """Not connected yet.

        Args:
            url: of SQLite or PostgreSQL.
            folder: of a relative path of SQLite.
            busy_seconds: longest wait of a writer of SQLite for another one.
            statement_seconds: longest statement of PostgreSQL.
            up: shows whether it is available, with its kind as the label.
        """
        self.why_down: str | None = None
        """The reason of the latest failed transaction, without credentials."""
        file = sqlite_file(url.reveal(), folder)
        self._engine = _sqlite_engine(file, busy_seconds) if file else _postgresql(url.reveal(), statement_seconds)
        self._up = up.labels(self.kind) if up is not None else None
        self._set_up(True)
        self.is_open = True
        """The tables are there; without them, only trials are carried out."""
        self.is_late = False
        """A transaction took too long since the latest successful `try_out`."""
        self.tries = 0
        """Number of successful `try_out`."""
        self.metrics: Metrics | None = None
        """Of `count_when_committed`."""
        self._transactions = TaskOwner()
        self._pool = cast("QueuePool", self._engine.pool)
        self._shares = {share: asyncio.Semaphore(number) for share, number in SHARES.items()}
        # Writers of SQLite follow each other in the order in which they came: SQLite lets them try again and again, and
        # so many of one kind would keep those of another waiting.
        self._writer = asyncio.Semaphore(1 if self.kind == "sqlite" else CONNECTIONS)
        self._line = asyncio.Lock()  # of those that wait for an idle connection
        self._one_less = asyncio.Event()

    @property
    def is_available(self) -> bool:
        return self.is_open and self.is_up

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    async def close(self) -> None:
        """Wait (bounded) for running transactions, and close every connection."""
        await self._transactions.__aexit__()
        await self._engine.dispose()

    async def write[T](
        self, work: Work[T], *, seconds: float = OPERATION_SECONDS, share: Share = "threads", is_trial: bool = False
    ) -> T:
        """Run `work` in a transaction that may write, to its end even if the caller is cancelled.

        With `is_trial`, every failure is one of the database.

        Raises:
            DatabaseBusyError: it broke a rule of a table, or had not ended after `seconds`, with the wait for a
                connection; it may still be committed if it had begun.
            DatabaseUnavailableError: the database cannot be reached, has no tables yet, or refused a statement.
        """
        return await self._completed(partial(self._written, work), seconds, share, is_trial=is_trial)

    async def read[T](self, work: Work[T], *, share: Share = "threads") -> T:
        """Run `work` in a transaction that only reads; otherwise as `write`."""
        return await self._completed(partial(self._found, work), OPERATION_SECONDS, share)

    async def try_out(self, *, seconds: float = OPERATION_SECONDS) -> None:
        """Write and delete a row of the size of a message; the database is available if this succeeds.

        Raises:
            DatabaseUnavailableError: it does not.
        """
        id_, title = secrets.token_hex(ID_CHARACTERS // 2), secrets.token_hex(TRIED_BYTES // 2)
        row = {"id": id_, "title": title, "owner": "", "agent": "", "turns": 0}

        async def tried(sql: AsyncConnection) -> None:
            await sql.execute(insert(threads).values(**row, created_at=now(), updated_at=now()))
            await sql.execute(delete(threads).where(threads.c.id == id_))

        await self.write(tried, seconds=seconds, share="services", is_trial=True)
        self.is_late = False
        self.tries += 1
        if not self.is_up:
            self._set_up(True)
            # A row of 64 KB could be written and deleted.
            _log.info("threads database available again")

    async def _written[T](self, work: Work[T], latest: float) -> T:
        async with _entered(self._writer, latest), self._connected() as connection:
            counts: list[Callable[[Metrics], object]] = []
            await connection.execution_options(**{_WRITES: True, _COUNTS: counts})
            async with connection.begin():
                result = await work(connection)
            if self.metrics is not None:
                for count in counts:
                    count(self.metrics)
            return result

    async def _found[T](self, work: Work[T], _: float) -> T:
        async with self._connected() as connection:
            return await work(connection)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        connection = self._engine.connect()
        try:
            if self._line.locked() or not await self._started(connection):
                await self._start_in_line(connection)
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            self._one_less.set()

    async def _started(self, connection: AsyncConnection) -> bool:
        """Start a connection; return False if the server accepts no further one while others of the pool are in use."""
        try:
            await connection.start()
        except DBAPIError as error:
            at_limit = isinstance(getattr(error.orig, "__cause__", None), asyncpg.TooManyConnectionsError)
            if not at_limit or not self._pool.checkedout():
                raise
            return False
        return True

    async def _start_in_line(self, connection: AsyncConnection) -> None:
        """Start with the next idle connection of the pool."""
        async with self._line:
            while connection.sync_connection is None:
                while self._pool.checkedout() and not self._pool.checkedin():
                    self._one_less.clear()
                    await self._one_less.wait()
                await self._started(connection)

    async def _completed[T](
        self, transaction: Callable[[float], Awaitable[T]], seconds: float, share: Share, *, is_trial: bool = False
    ) -> T:
        if not self.is_open and not is_trial:
            raise DatabaseUnavailableError
        latest = asyncio.get_running_loop().time() + seconds

        async def shared() -> T:
            async with _entered(self._shares[share], latest):
                return await transaction(latest)

        try:
            return await completed(self._transactions.spawn(shared(), name="transaction"), seconds=seconds)
        except _FAILURES as error:
            raise self._noted(error, is_trial=is_trial) from None  # the libraries' errors may quote the URL

    def _noted(self, error: BaseException, *, is_trial: bool) -> DatabaseUnavailableError:
        self.why_down = reason_of(error)
        extra = {"why": self.why_down}
        if not is_trial and _is_late(error):
            if not self.is_late:
                # A transaction took too long, and its request failed (`busy`). Unavailable after 15 s.
                _log.warning("threads database late", extra=extra)
            self.is_late = True
            return DatabaseBusyError()
        if not is_trial and _is_refused(error):
            # It broke a rule of a table, or met another one; its request failed (`busy`).
            _log.warning("transaction refused", extra=extra)
            return DatabaseBusyError()
        if self.is_up:
            self._set_up(False)
            # Logged once: it cannot be reached or refuses statements, perhaps only writes (a full disk, a standby, a
            # role without rights).
            _log.error("threads database unavailable", extra=extra)
        return DatabaseUnavailableError()

    def _set_up(self, is_up: bool) -> None:
        self.is_up = is_up
        if self._up is not None:
            self._up.set(is_up)


@asynccontextmanager
async def _entered(places: asyncio.Semaphore, latest: float) -> AsyncIterator[None]:
    async with asyncio.timeout_at(latest):
        await places.acquire()
    try:
        yield
    finally:
        places.release()


def count_when_committed(sql: AsyncConnection, count: Callable[[Metrics], object]) -> None:
    """Count a change in the metrics of the gateway once its transaction is committed."""
    if sql.sync_connection is not None:
        sql.sync_connection.get_execution_options()[_COUNTS].append(count)


async def tried_again[T](transaction: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a transaction that may run more than once; it is tried for some seconds.

    Raises:
        DatabaseUnavailableError: of the last attempt.
    """
    for seconds in _TRY_AGAIN_SECONDS:
        try:
            return await transaction()
        except DatabaseUnavailableError:
            await asyncio.sleep(seconds)
    return await transaction()


def _is_late(error: BaseException) -> bool:
    """Return True for a time-out: of the transaction, a connection, a statement, or a lock."""
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    is_busy = code & 0xFF == sqlite3.SQLITE_BUSY or _state(error) in _LATE_STATES
    return is_busy or isinstance(error, (TimeoutError, PoolTimeoutError))


def _is_refused(error: BaseException) -> bool:
    return isinstance(error, _REFUSED) or _state(error).startswith(_REFUSED_STATES)


def _state(error: BaseException) -> str:
    """Return PostgreSQL's code of an error; empty for others."""
    return getattr(getattr(error, "orig", error), "sqlstate", None) or ""


def reason_of(error: BaseException) -> str:
    """An error in one line, without the statement, its values and any credentials."""
    text = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return shortened(f"{type(error).__name__}: {text}", LONGEST_REASON)


def sqlite_file(url: str, folder: Path) -> Path | None:
    """Return the file of a URL of SQLite, whose relative path is one of `folder`; None for PostgreSQL."""
    return folder / unquote(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None


def _sqlite_engine(path: Path, busy_seconds: float) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        # Transactions are begun below, not by the driver, which begins one at the first write.
        connect_args={"isolation_level": None, "timeout": busy_seconds},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=OPERATION_SECONDS,
        hide_parameters=True,
    )

    file = _DatabaseFile(path)

    def prepare_file(*_: object) -> None:
        file.refuse_other()
        if not path.parent.is_dir():  # SQLite's error is the same for every cause
            raise FileNotFoundError(f"no folder {path.parent}")
        # Conversations are readable by the gateway's user only; SQLite creates its other files with the same mode.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    event.listen(engine.sync_engine, "do_connect", prepare_file)
    event.listen(engine.sync_engine, "checkout", file.refuse_other)
    event.listen(engine.sync_engine, "connect", partial(_prepare_sqlite, busy_seconds))
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


class _DatabaseFile:
    """The file of SQLite since it was first used.

    Open connections write on to a file that was deleted or renamed, and a new connection makes an empty one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used: tuple[int, int] | None = None

    def refuse_other(self, *_: object) -> None:
        """Check that the file is the one that was used before.

        Raises:
            FileNotFoundError: it was deleted or replaced.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            present = None
        else:
            present = found.st_dev, found.st_ino
        if self._used is None:
            self._used = present
        elif present != self._used:
            raise FileNotFoundError(
                f"{self._path} was deleted or replaced; stop the gateway, put the right file there, and start it again"
            )


def _prepare_sqlite(busy_seconds: float, connection: DBAPIConnection, _: object) -> None:
    cursor = connection.cursor()
    _use_write_ahead_log(cursor, busy_seconds)
    for setting in ("synchronous = NORMAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _use_write_ahead_log(cursor: DBAPICursor, busy_seconds: float) -> None:
    """Set that readers and the writer do not wait for each other.

    The first connection to a new file changes it for this. SQLite does not wait while several do so at once.
    """
    give_up_at = time.monotonic() + busy_seconds
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                raise
            await_only(asyncio.sleep(_LOCKED_SECONDS))
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads before it writes would fail if another one has written in between.
    writes = _WRITES in connection.get_execution_options()
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: str, statement_seconds: float) -> AsyncEngine:
    async def connect() -> Any:
        # The URL unchanged, so that it means the same as for PostgreSQL's own clients (`sslmode`, sockets).
        try:
            connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, command_timeout=statement_seconds)
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None
        # A machine that is lost within a transaction must not keep its locks until TCP notices.
        await connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        return connection

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=OPERATION_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
    )


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of this process's leases: each ends so many seconds after it was taken or renewed.

    `process` is the name of this process in them, by which others reach it.
    """

    seconds: float
    process: str | None = None
