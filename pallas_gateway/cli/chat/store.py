"""Threads on this machine: a SQLite file, where every turn stands from the moment it is sent.

A turn is `pending` while it waits for its answer, then `complete` or `error`, for good. One whose process is gone
becomes an error when the file is opened next, so that what happened can be read and is not sent again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import uuid
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pallas_gateway.cli.chat.process_id import is_running, this_process
from pallas_gateway.cli.chat.schema import SchemaError, migrate
from pallas_gateway.cli.chat.turns import Place, Summary, Thread, Turn
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

IN_MEMORY = ":memory:"
BUSY_SECONDS = 5.0
"""Writes take milliseconds; who waits longer for another's has met one that hangs."""
RETRY_SECONDS = 0.01
OLDEST_PENDING = timedelta(days=1)
"""No call takes that long: the process that has the owner's number must be another one."""
GONE = "the chat ended before the answer came"


class StoreError(GatewayError):
    """Threads cannot be read or written."""

    reason = "store_failed"


class ThreadBusyError(GatewayError):
    """Another chat waits for an answer in this thread."""

    reason = "thread_busy"


class NameTakenError(GatewayError):
    """Another thread has that name."""

    reason = "name_taken"


def default_path(environ: Mapping[str, str], home: Path) -> Path:
    """`chat.sqlite3` in the data directory of the XDG Base Directory Specification (a relative one does not count)."""
    data = environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else home / ".local" / "share"
    return base / "pallas-gateway" / "chat.sqlite3"


@contextmanager
def opened(path: Path | str, is_alive: Callable[[str], bool] = is_running) -> Iterator[Store]:
    """The threads in `path`, made if it is not there; `:memory:` keeps none.

    Raises:
        StoreError: there can be no such file, or it holds something else.
    """
    with _told(path):
        if str(path) != IN_MEMORY:
            make_private(Path(path))
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, autocommit=True)
    with closing(connection):
        with _told(path):
            connection.execute("PRAGMA foreign_keys = ON")
            _let_nobody_wait_to_read(connection)
            migrate(connection)
        store = Store(connection, path, is_alive)
        store.give_up_stale()
        yield store


def _let_nobody_wait_to_read(connection: sqlite3.Connection) -> None:
    """Set the file's journal mode to WAL; where another chat is doing so, SQLite does not wait by itself."""
    until = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= until:
                raise
            sleep(RETRY_SECONDS)
        else:
            return


def make_private(path: Path) -> None:
    """Make the file, if need be its folder, for its owner's eyes only; one that others may read is closed to them.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


class Store:
    """An open file of threads."""

    def __init__(self, connection: sqlite3.Connection, path: Path | str, is_alive: Callable[[str], bool]) -> None:
        self._connection = connection
        self._path = path
        self._is_alive = is_alive
        self._me = this_process()

    def give_up_stale(self) -> None:
        """Make errors of pending turns whose process is gone."""
        with self._changing():
            for id_, owner, began_at in self._all("SELECT id, owner, began_at FROM turn WHERE state = 'pending'"):
                if self._is_stale(owner, began_at):
                    self._end(id_, "error", error=GONE)

    def open_thread(self, place: Place, name: str | None = None) -> Thread:
        """The thread of that name, made if it is not there; without a name always a new one."""
        with self._changing():
            found = self._named(place, name) if name else None
            if found is not None:
                return found
            cursor = self._connection.execute(
                "INSERT INTO thread (gateway, agent, name, conversation_id, created_at) VALUES (?, ?, ?, ?, ?)",
                (place.gateway, place.agent, name, f"chat-{uuid.uuid4()}", _now()),
            )
            return self._thread("id = ?", cursor.lastrowid)[0]

    def find(self, place: Place, name: str) -> Thread | None:
        """The thread of that name, or of that number (`#3`, or `3`, which a shell does not take for a comment)."""
        with _told(self._path):
            found, number = self._named(place, name), name.removeprefix("#")
            if found is None and number.isdecimal():
                of_place = "id = ? AND gateway = ? AND agent = ?"
                found = next(iter(self._thread(of_place, int(number), place.gateway, place.agent)), None)
            return found

    def name_thread(self, place: Place, thread: Thread, name: str) -> Thread:
        """The thread under another name.

        Raises:
            NameTakenError: a thread with this agent has it.
        """
        with self._changing():
            other = self._named(place, name)
            if other is not None and other.id != thread.id:
                raise NameTakenError(f"There is a thread '{name}' already; /resume {name} continues it.")
            self._connection.execute("UPDATE thread SET name = ? WHERE id = ?", (name, thread.id))
            return self._thread("id = ?", thread.id)[0]

    def summaries(self, place: Place) -> list[Summary]:
        """The threads with an agent that have turns, the one that was talked in last first."""
        query = """SELECT thread.id, name, conversation_id, count(*), sum(state = 'error'), max(began_at),
            (SELECT message FROM turn AS f WHERE f.thread_id = thread.id AND f.number = 1)
            FROM thread JOIN turn ON turn.thread_id = thread.id WHERE gateway = ? AND agent = ?
            GROUP BY thread.id ORDER BY max(turn.id) DESC"""
        with _told(self._path):
            rows = self._all(query, place.gateway, place.agent)
        return [Summary(Thread(id_, name, conversation), *rest) for id_, name, conversation, *rest in rows]

    def turns(self, thread: Thread) -> list[Turn]:
        """All turns, oldest first."""
        query = """SELECT number, state, message, images, answer, error, params, tools, began_at, ended_at
            FROM turn WHERE thread_id = ? ORDER BY number"""
        with _told(self._path):
            return [_turn(*row) for row in self._all(query, thread.id)]

    def begin(self, thread: Thread, message: str, images: Sequence[dict[str, str]], params: Mapping[str, Any]) -> int:
        """The number of a new pending turn. Until it ends no other begins, so nobody's turns come between.

        Raises:
            ThreadBusyError: another chat's turn waits for its answer.
        """
        with self._changing():
            query = "SELECT id, owner, began_at FROM turn WHERE thread_id = ? AND state = 'pending'"
            for id_, owner, began_at in self._all(query, thread.id):
                if owner != self._me and not self._is_stale(owner, began_at):
                    why = f"another chat (process {owner.partition(':')[0]}) waits for an answer in this thread"
                    raise ThreadBusyError(f"Not sent: {why}. Wait for it, or begin another thread with /clear.")
                self._end(id_, "error", error=GONE)
            number = self._all("SELECT coalesce(max(number), 0) + 1 FROM turn WHERE thread_id = ?", thread.id)[0][0]
            self._connection.execute(
                "INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) "
                "VALUES (?, ?, 'pending', ?, ?, ?, ?, ?)",
                (thread.id, number, self._me, message, json.dumps([*images]), json.dumps(params), _now()),
            )
            return int(number)

    def complete(self, thread: Thread, number: int, answer: str, tools: Sequence[str]) -> None:
        """The answer has come.

        Raises:
            StoreError: the turn is not pending any more: another process took this one for gone.
        """
        with self._changing():
            self._end(self._pending(thread, number), "complete", answer=answer, tools=tools)

    def fail(self, thread: Thread, number: int, error: str, *, seen: str = "", tools: Sequence[str] = ()) -> None:
        """No answer will come; `seen` is what was shown of it.

        Raises:
            StoreError: as `complete`.
        """
        with self._changing():
            self._end(self._pending(thread, number), "error", error=error, answer=seen or None, tools=tools)

    def _pending(self, thread: Thread, number: int) -> int:
        query = "SELECT id FROM turn WHERE thread_id = ? AND number = ? AND state = 'pending'"
        found = self._all(query, thread.id, number)
        if not found:
            raise StoreError(f"Turn {number} was given up by another chat meanwhile; its answer is not kept.")
        return int(found[0][0])

    def _end(
        self, id_: int, state: str, *, answer: str | None = None, error: str | None = None, tools: Sequence[str] = ()
    ) -> None:
        self._connection.execute(
            "UPDATE turn SET state = ?, answer = ?, error = ?, tools = ?, ended_at = ? WHERE id = ?",
            (state, answer, error, json.dumps(tools), _now(), id_),
        )

    def _is_stale(self, owner: str, began_at: str) -> bool:
        is_old = datetime.now(UTC) - datetime.fromisoformat(began_at) > OLDEST_PENDING
        return is_old or not self._is_alive(owner)

    def _named(self, place: Place, name: str) -> Thread | None:
        found = self._thread("gateway = ? AND agent = ? AND name = ?", place.gateway, place.agent, name)
        return found[0] if found else None

    def _thread(self, condition: str, *values: object) -> list[Thread]:
        rows = self._all(f"SELECT id, name, conversation_id FROM thread WHERE {condition}", *values)  # noqa: S608  ours
        return [Thread(*row) for row in rows]

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction; who else writes waits."""
        with _told(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:  # also when it could not be committed
                    self._connection.execute("ROLLBACK")


@contextmanager
def _told(path: Path | str) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        raise StoreError(f"No threads can be kept in {path}: {error}.") from error
    except (sqlite3.Error, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(
            f"Threads cannot be kept in {path}: {why}. --db names another file, or {IN_MEMORY}."
        ) from error


def _turn(number: int, state: Any, message: str, images: str, answer: str | None, *rest: Any) -> Turn:
    error, params, tools, began_at, ended_at = rest
    pictures, used = tuple(json.loads(images)), tuple(json.loads(tools))
    return Turn(number, state, message, pictures, answer, error, json.loads(params), used, began_at, ended_at)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
