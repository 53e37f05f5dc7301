"""Conversations on this machine: one JSON file each, in the form of `/export FILE.json`, which is replaced in one step.

Each has a lock file, so that two chats do not write the same conversation. The system releases the lock of a chat that
was killed.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.client.chat.transcript import as_json, from_json
from pallas_gateway.client.output import problem
from pallas_gateway.client.private_files import lock_now, replace_file
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pallas_gateway.client.chat.chat_turns import Chat, ChatThread


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
