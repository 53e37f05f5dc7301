"""Conversations on this machine: one JSON file each, in the form of `/export FILE.json`, which is replaced in one step.

Each has a lock file, so that two chats do not write the same conversation. The system releases the lock of a chat that
was killed. Those of `chat` of 0.1.0 are in a database of SQLite, which is read and left as it is.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from pallas_gateway.client.chat.chat_turns import NO_ANSWER, Chat, ChatThread, as_json, from_json
from pallas_gateway.client.output import problem
from pallas_gateway.client.private_files import lock_now, replace_file
from pallas_gateway.errors import GatewayError


class StoreError(GatewayError):
    """Conversations cannot be read or written."""

    reason = "store_failed"


class ChatBusyError(GatewayError):
    """Another chat waits for an answer in this thread."""

    reason = "thread_busy"


class ChatFiles:
    """The conversations in a folder, which is created if missing; None keeps them in memory.

    Every method raises `StoreError` if a file cannot be read or written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, Chat] = {}
        self._reported: set[str] = set()
        if folder is not None:
            with self._errors(folder):
                for one in (folder.parent, folder):
                    one.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, thread: str) -> Chat | None:
        """A conversation; None if there is none of that id, the name of its file (an id inside does not count)."""
        if self._folder is None:
            return self._memory.get(thread)
        path = self._folder / f"{thread}.json"
        try:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is not a regular file")  # to open a pipe would wait for a writer
            return replace(from_json(path.read_bytes()), thread=thread)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = "is damaged, or was written by a newer pallas-gateway"
            if isinstance(error, OSError):
                why = f"cannot be read: {error.strerror}"
            raise StoreError(f"{path} {why}. It is left as it is; other threads can be used.") from error

    def threads(self, place: tuple[str, str]) -> list[ChatThread]:
        """The threads with an agent, by their last turn, newest first; reports each damaged file once."""
        threads = list(self._memory)
        if self._folder is not None:
            with self._errors(self._folder):
                threads = [path.stem for path in self._folder.iterdir() if path.suffix == ".json"]
        chats = map(self._readable, threads)
        found = [chat.summary for chat in chats if chat is not None and (chat.gateway, chat.agent) == place]
        return sorted(found, key=lambda thread: thread.last_at, reverse=True)

    def _readable(self, thread: str) -> Chat | None:
        try:
            return self.read(thread)
        except StoreError as error:
            if thread not in self._reported:
                self._reported.add(thread)
                problem(str(error))
            return None

    def has(self, thread: str) -> bool:
        """True if there is a conversation of that id."""
        return thread in self._memory or (self._folder is not None and (self._folder / f"{thread}.json").exists())

    def add(self, chat: Chat) -> None:
        """Write a conversation unless there is one of its id."""
        with suppress(ChatBusyError), self.locked(chat.thread):
            if not self.has(chat.thread):
                self.write(chat)

    def write(self, chat: Chat) -> None:
        """Create or replace a conversation; within `locked`."""
        if self._folder is None:
            self._memory[chat.thread] = chat
            return
        with self._errors(self._folder):
            content = as_json(chat).encode("utf-8", "replace")  # a value of `/set` may hold surrogates
            replace_file(self._folder / f"{chat.thread}.json", content)

    @contextmanager
    def locked(self, thread: str) -> Iterator[None]:
        """Let no other chat write a conversation during the block.

        Raises:
            ChatBusyError: another chat has locked it.
        """
        if self._folder is None:
            yield
            return
        with self._errors(self._folder):
            handle = os.open(self._folder / f"{thread}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not lock_now(handle):
                why = "another chat waits for an answer in this thread"
                raise ChatBusyError(f"Not done: {why}. Wait for it, or begin another thread with /clear.")
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{path}: {error.strerror}. `--db :memory:` keeps none"
            raise StoreError(f"Threads cannot be kept in {why}.") from error


_SCHEMA = (0x50_47_43_54, 1)  # application_id `PGCT`, user_version


def older_path(environ: Mapping[str, str], home: Path) -> Path:
    """Where 0.1.0 had it by default: in the data directory of the XDG Base Directory Specification."""
    data = environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data.startswith("/") else home / ".local" / "share") / "pallas-gateway" / "chat.sqlite3"


_THREADS = """SELECT id, conversation_id FROM thread WHERE EXISTS (SELECT 1 FROM turn WHERE thread_id = thread.id)
    AND conversation_id GLOB 'chat-*' AND conversation_id NOT GLOB '*[^0-9a-z-]*'"""
"""Those with turns whose ids 0.1.0 made: an id names a file."""
_THREAD = """SELECT json_object('gateway', gateway, 'agent', agent, 'thread', conversation_id,
    'name', coalesce(name, '#' || id), 'turns', json((
        SELECT json_group_array(json_object('number', number, 'state', iif(state = 'complete', state, 'error'),
            'message', message, 'images', json(images), 'answer', answer, 'error', iif(state = 'pending', :why, error),
            'params', json(params), 'tools', json(tools), 'began_at', began_at, 'ended_at', ended_at))
        FROM (SELECT * FROM turn WHERE thread_id = :id ORDER BY number)
    ))) FROM thread WHERE id = :id"""
"""A thread in the form of `from_json`. One without a name is named by its number, `#3`."""


def import_older(path: Path, files: ChatFiles) -> bool:
    """Copy each thread of the database that has no file yet; return False if there is no database.

    Raises:
        StoreError: the database cannot be read or has another schema, or a file cannot be written.
    """
    try:
        if not path.exists():
            return False
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as database:
            schema = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"
            if database.execute(schema).fetchone() != _SCHEMA:
                raise StoreError(f"{path} is not a database of `chat` of 0.1.0; no threads were taken from it.")
            for id_, thread in database.execute(_THREADS).fetchall():
                if not files.has(thread):
                    [(document,)] = database.execute(_THREAD, {"id": id_, "why": NO_ANSWER})
                    files.add(from_json(document))
            return True
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(f"The threads of `chat` of 0.1.0 cannot be read from {path}: {error}.") from error
