"""Threads on this machine, in a SQLite file.

A turn is stored before it is sent: as `pending` until its answer is there, then finally as `complete` or `error`.
Pending turns whose process has ended become errors when the file is opened.
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

from pallas_gateway.client.chat.chat_schema import SchemaError, migrate, transaction
from pallas_gateway.client.chat.chat_turns import ChatPlace, ChatThread, ChatTurn, Summary
from pallas_gateway.client.chat.conversation import NAME_TAKEN
from pallas_gateway.client.usage import UsageError
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

IN_MEMORY = ":memory:"
BUSY_SECONDS = 5.0  # longest wait for another writer; writes take milliseconds
RETRY_SECONDS = 0.01
OLDEST_PENDING = timedelta(days=1)  # no call takes that long: another process has the owner's id by now
GONE = "the chat ended before the answer came"
_START_TIME = 19
"""Index of `starttime` (clock ticks since boot) in /proc/PID/stat behind the command's name, see proc(5)."""


class StoreError(GatewayError):
    """Threads cannot be read or written."""

    reason = "store_failed"


class ChatBusyError(GatewayError):
    """Another chat waits for an answer in this thread."""

    reason = "thread_busy"


def default_path(environ: Mapping[str, str], home: Path) -> Path:
    """`chat.sqlite3` in the data directory of the XDG Base Directory Specification, which ignores relative paths."""
    data = environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else home / ".local" / "share"
    return base / "pallas-gateway" / "chat.sqlite3"


def make_private(path: Path) -> None:
    """Create the file and its folder if missing, and make the file readable by its owner only.

    Raises:
        OSError: it cannot be created.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


def this_process() -> str:
    """The owner of this process's turns: process id and start time, because ids are reused."""
    return f"{os.getpid()}:{_start_time(os.getpid()) or ''}"


def is_running(owner: str) -> bool:
    """True if the process of that owner still runs on this machine."""
    number, _, started = owner.partition(":")
    if not number.isdecimal():
        return False
    if started:
        return _start_time(int(number)) == started
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _start_time(number: int) -> str | None:
    """None if there is no such process, and on systems without /proc."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return fields.rpartition(")")[2].split()[_START_TIME]  # the command's name may hold spaces and parentheses


@contextmanager
def opened(
    path: Path | str, is_alive: Callable[[str], bool] = is_running, *, busy_seconds: float = BUSY_SECONDS
) -> Iterator[ChatStore]:
    """The threads in `path`, created if missing; `:memory:` stores none.

    Raises:
        StoreError: the file cannot be created, or holds something else.
    """
    with _store_errors(path):
        if str(path) != IN_MEMORY:
            make_private(Path(path))
        connection = sqlite3.connect(path, timeout=busy_seconds, autocommit=True)
    with closing(connection):
        with _store_errors(path):
            connection.execute("PRAGMA foreign_keys = ON")
            _enable_wal(connection, busy_seconds)
            migrate(connection)
        store = ChatStore(connection, path, is_alive)
        store.give_up_stale()
        yield store


def _enable_wal(connection: sqlite3.Connection, busy_seconds: float, pause: Callable[[float], None] = sleep) -> None:
    """Set the journal mode to WAL, so that readers never wait; SQLite's own timeout does not cover this statement."""
    until = monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= until:
                raise
            pause(RETRY_SECONDS)
        else:
            return


class ChatStore:
    """An open file of threads. Every method raises `StoreError` if the file cannot be read or written."""

    def __init__(self, connection: sqlite3.Connection, path: Path | str, is_alive: Callable[[str], bool]) -> None:
        self._connection = connection
        self._path = path
        self._is_alive = is_alive
        self._me = this_process()

    def give_up_stale(self) -> None:
        """Mark pending turns as errors if their process has ended."""
        with self._transaction():
            for id_, owner, began_at in self._all("SELECT id, owner, began_at FROM turn WHERE state = 'pending'"):
                if self._is_stale(owner, began_at):
                    self._end(id_, "error", error=GONE)

    def open_thread(self, place: ChatPlace, name: str | None = None) -> ChatThread:
        """The thread of that name, created if missing; without a name always a new one."""
        with self._transaction():
            if name and (found := self._named(place, name)):
                return found
            [(id_,)] = self._all(
                "INSERT INTO thread (gateway, agent, name, conversation_id, created_at) VALUES (?, ?, ?, ?, ?) "
                "RETURNING id",
                *(place.gateway, place.agent, name, f"chat-{uuid.uuid4()}", _now()),
            )
            return self._threads("id = ?", id_)[0]

    def find(self, place: ChatPlace, name: str) -> ChatThread | None:
        """The thread of that name, or of that number: `#3`, or `3`, which needs no quotes in a shell."""
        found, number = self._named(place, name), name.removeprefix("#")
        if found is None and number.isdecimal():
            of_place = "id = ? AND gateway = ? AND agent = ?"
            found = next(iter(self._threads(of_place, int(number), place.gateway, place.agent)), None)
        return found

    def name_thread(self, place: ChatPlace, thread: ChatThread, name: str) -> ChatThread:
        """Rename a thread.

        Raises:
            UsageError: another thread with this agent has that name.
        """
        with self._transaction():
            other = self._named(place, name)
            if other is not None and other.id != thread.id:
                raise UsageError(NAME_TAKEN.format(name))
            self._all("UPDATE thread SET name = ? WHERE id = ?", name, thread.id)
            return self._threads("id = ?", thread.id)[0]

    def summaries(self, place: ChatPlace) -> list[Summary]:
        """The threads with an agent that have turns, by their last turn, newest first."""
        query = """SELECT thread.id, name, conversation_id, count(*), sum(state = 'error'), max(began_at),
            (SELECT message FROM turn AS f WHERE f.thread_id = thread.id AND f.number = 1)
            FROM thread JOIN turn ON turn.thread_id = thread.id WHERE gateway = ? AND agent = ?
            GROUP BY thread.id ORDER BY max(turn.id) DESC"""
        return [Summary(ChatThread(*row[:3]), *row[3:]) for row in self._all(query, place.gateway, place.agent)]

    def turns(self, thread: ChatThread) -> list[ChatTurn]:
        """All turns, oldest first."""
        query = """SELECT number, state, message, images, answer, error, params, tools, began_at, ended_at
            FROM turn WHERE thread_id = ? ORDER BY number"""
        return [
            ChatTurn(number, state, message, tuple(json.loads(images)), answer, error, json.loads(params), *rest)
            for number, state, message, images, answer, error, params, *rest in (
                (*row[:7], tuple(json.loads(row[7])), *row[8:]) for row in self._all(query, thread.id)
            )
        ]

    def begin(
        self, thread: ChatThread, message: str, images: Sequence[dict[str, str]], params: Mapping[str, Any]
    ) -> int:
        """Add a pending turn and return its number. No other turn begins before it ends.

        Raises:
            ChatBusyError: another chat's turn waits for its answer.
        """
        with self._transaction():
            query = "SELECT id, owner, began_at FROM turn WHERE thread_id = ? AND state = 'pending'"
            for id_, owner, began_at in self._all(query, thread.id):
                if owner != self._me and not self._is_stale(owner, began_at):
                    why = f"another chat (process {owner.partition(':')[0]}) waits for an answer in this thread"
                    raise ChatBusyError(f"Not sent: {why}. Wait for it, or begin another thread with /clear.")
                self._end(id_, "error", error=GONE)
            [(number,)] = self._all(
                "INSERT INTO turn (thread_id, number, state, owner, message, images, params, began_at) VALUES (?, "
                "(SELECT coalesce(max(number), 0) + 1 FROM turn WHERE thread_id = ?), 'pending', ?, ?, ?, ?, ?) "
                "RETURNING number",
                *(thread.id, thread.id, self._me, message, json.dumps([*images]), json.dumps(params), _now()),
            )
            return int(number)

    def complete(self, thread: ChatThread, number: int, answer: str, tools: Sequence[str]) -> None:
        """End a turn with its answer.

        Raises:
            StoreError: the turn is not pending any more: another chat took this process for ended.
        """
        with self._transaction():
            self._end(self._pending(thread, number), "complete", answer=answer, tools=tools)

    def fail(self, thread: ChatThread, number: int, error: str, *, seen: str = "", tools: Sequence[str] = ()) -> None:
        """End a turn without an answer; `seen` is the part that was shown.

        Raises:
            StoreError: as `complete`.
        """
        with self._transaction():
            self._end(self._pending(thread, number), "error", error=error, answer=seen or None, tools=tools)

    def _pending(self, thread: ChatThread, number: int) -> int:
        query = "SELECT id FROM turn WHERE thread_id = ? AND number = ? AND state = 'pending'"
        found = self._all(query, thread.id, number)
        if not found:
            raise StoreError(f"Turn {number} was given up by another chat meanwhile; its answer is not kept.")
        return int(found[0][0])

    def _end(
        self, id_: int, state: str, *, answer: str | None = None, error: str | None = None, tools: Sequence[str] = ()
    ) -> None:
        query = "UPDATE turn SET state = ?, answer = ?, error = ?, tools = ?, ended_at = ? WHERE id = ?"
        self._all(query, state, answer, error, json.dumps(tools), _now(), id_)

    def _is_stale(self, owner: str, began_at: str) -> bool:
        is_old = datetime.now(UTC) - datetime.fromisoformat(began_at) > OLDEST_PENDING
        return is_old or not self._is_alive(owner)

    def _named(self, place: ChatPlace, name: str) -> ChatThread | None:
        found = self._threads("gateway = ? AND agent = ? AND name = ?", place.gateway, place.agent, name)
        return found[0] if found else None

    def _threads(self, condition: str, *values: object) -> list[ChatThread]:
        rows = self._all(f"SELECT id, name, conversation_id FROM thread WHERE {condition}", *values)  # noqa: S608  ours
        return [ChatThread(*row) for row in rows]

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with _store_errors(self._path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _store_errors(self._path), transaction(self._connection):
            yield


@contextmanager
def _store_errors(path: Path | str) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        raise StoreError(f"No threads can be kept in {path}: {error}.") from error
    except (sqlite3.Error, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(
            f"Threads cannot be kept in {path}: {why}. --db names another file, or {IN_MEMORY}."
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
