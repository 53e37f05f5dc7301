"""A conversation whose threads are kept on this machine. Each turn is stored before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import override

from pallas_gateway.client.agent_client import CallResult
from pallas_gateway.client.arguments import CommandError
from pallas_gateway.client.chat.chat_files import ChatFiles, StoreError
from pallas_gateway.client.chat.chat_turns import NO_ANSWER, Chat, ChatExchange, ChatThread, rows_of, trimmed
from pallas_gateway.client.chat.conversation import NORMAL_STOP, Conversation, sendable_text
from pallas_gateway.client.output import CANCELLED, without_controls


@dataclass(kw_only=True)
class LocalConversation(Conversation):
    """With files on this machine."""

    files: ChatFiles

    @override
    async def turns(self) -> list[ChatExchange]:
        return [*self._stored(self.thread).turns] if self.thread else []

    @override
    async def list_threads(self) -> list[ChatThread]:
        return self.files.threads(self.place)

    @override
    async def renamed(self, thread: ChatThread, name: str) -> ChatThread:
        with self.files.locked(thread.id):
            self.files.write(replace(self._stored(thread), name=name))
        return ChatThread(thread.id, name)

    @override
    async def switch_to(self, thread: ChatThread | None) -> list[ChatExchange]:
        """Continue a thread with the parameters of its last turn."""
        turns = await super().switch_to(thread)
        if turns:
            self.parameters = dict(turns[-1].params)
        return turns

    @override
    async def catch_up(self, turns: Sequence[ChatExchange]) -> None:
        """Report turns that no longer fit into the model's window; a call has ended with its client."""
        self._sendable(turns)

    @override
    async def send(self, text: str) -> None:
        """Store a turn as one without an answer, send it, show the answer and store it."""
        message = sendable_text(text)
        found = await self.find(self.name) if self.thread is None and self.name else None
        self.thread = self.thread or found or ChatThread(f"chat-{token_hex(5)}", self.name)
        with self.files.locked(self.thread.id):
            chat = self._stored(self.thread)
            sent = ChatExchange(len(chat.turns) + 1, "error", message, tuple(self.images), None, NO_ANSWER)
            turn = replace(sent, params=dict(self.parameters), began_at=_now())
            self.screen.begin()
            self._store(chat, turn)
            try:
                answer = await self._ask(chat.turns, message)
            except BaseException as error:
                self.screen.end_line()
                cancelled = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
                why = CANCELLED if cancelled else str(error) or type(error).__name__
                try:
                    self._store(chat, replace(turn, error=why, answer=self.screen.shown or None))
                except StoreError as failure:  # reported here, so that it does not hide the first error
                    self.screen.problem(str(failure))
                raise
            self.images = []
            self._store(chat, replace(turn, state="complete", error=None, answer=answer.text))
        self.note_end(answer.meta.get("stop_reason", NORMAL_STOP), answer.params, answer.others)

    async def _ask(self, turns: Sequence[ChatExchange], message: str) -> CallResult:
        async with self.client.open(self.screen) as connection:
            self.capabilities = connection.capabilities
            optional = {  # only what is set: an older gateway refuses arguments that it does not know
                "history": rows_of(self._sendable(turns, message)),
                "images": self.images,
                "params": self.parameters,
                "conversation_id": self.thread.id if self.thread else "",
            }
            arguments = {"message": message, **{name: value for name, value in optional.items() if value}}
            answer = CallResult.of(await connection.call(arguments, live=self.screen.is_live))
            if answer.is_error:
                raise CommandError(without_controls(answer.text) or "The agent failed without a word.")
            self.screen.finish(answer.text)
            return answer

    def _stored(self, thread: ChatThread) -> Chat:
        return self.files.read(thread.id) or Chat(*self.place, thread.id, thread.name)

    def _store(self, chat: Chat, turn: ChatExchange) -> None:
        ended = replace(turn, tools=tuple(self.screen.tools), ended_at=_now())
        self.files.write(replace(chat, turns=(*chat.turns, ended)))

    def _sendable(self, all_turns: Sequence[ChatExchange], message: str = "") -> list[ChatExchange]:
        """The turns that are sent with a message; reports how many no longer fit into the model's window."""
        turns, dropped = trimmed(all_turns, self.capabilities.room, message, len(self.images))
        self.note_left_out(dropped, ": the model's context window has no room for more")
        return turns


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
