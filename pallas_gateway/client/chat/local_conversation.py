"""A conversation whose threads are kept on this machine. Each turn is stored before it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, override

from pallas_gateway.client.agent_client import CallResult
from pallas_gateway.client.chat.chat_store import StoreError
from pallas_gateway.client.chat.chat_turns import rows_of, trimmed
from pallas_gateway.client.chat.conversation import (
    NAME_TAKEN,
    NORMAL_STOP,
    Conversation,
    TurnFailedError,
    sendable_text,
)
from pallas_gateway.client.output import CANCELLED, counted, without_controls
from pallas_gateway.client.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.client.chat.chat_store import ChatStore
    from pallas_gateway.client.chat.chat_turns import ChatThread, ChatTurn, Summary


@dataclass(kw_only=True)
class LocalConversation(Conversation):
    """With a store on this machine.

    `known` is the number of the last turn that this chat has shown or sent; `left_out` turns were reported already.
    """

    store: ChatStore
    known: int = 0
    left_out: int = 0

    @property
    @override
    def labels(self) -> Sequence[str]:
        return [one.thread.label for one in self.store.summaries(self.place)]

    @override
    async def turns(self) -> list[ChatTurn]:
        return self._turns()

    @override
    async def summaries(self) -> list[Summary]:
        return self.store.summaries(self.place)

    @override
    async def find(self, name: str) -> ChatThread | None:
        return self.store.find(self.place, name)

    @override
    async def save(self, name: str) -> None:
        if self.thread is not None:
            self.thread = self.store.name_thread(self.place, self.thread, name)
        elif self.store.find(self.place, name) is not None:
            raise UsageError(NAME_TAKEN.format(name))
        else:
            self.name = name

    @override
    async def switch_to(self, thread: ChatThread | None) -> list[ChatTurn]:
        """Continue a thread with the parameters of its last turn."""
        self.thread, self.name, self.images = thread, None, []
        turns = self._turns()
        self.known, self.left_out = len(turns), 0
        if turns:
            self.parameters = dict(turns[-1].params)
        return turns

    @override
    def note_window(self, turns: Sequence[ChatTurn]) -> None:
        self._sendable(turns)

    @override
    async def catch_up(self, turns: Sequence[ChatTurn]) -> None:
        """Wait for nothing: a call ends with its client."""

    def _turns(self) -> list[ChatTurn]:
        return self.store.turns(self.thread) if self.thread else []

    @override
    async def send(self, text: str) -> None:
        """Store a turn, send it, show the answer and store it; without an answer, the turn is an error."""
        message = sendable_text(text)
        thread = self.thread = self.thread or self.store.open_thread(self.place, self.name)
        number = self.store.begin(thread, message, self.images, self.parameters)
        self.screen.begin()
        try:
            answer = await self._ask(thread, number, message)
        except BaseException as error:
            self.screen.end_line()
            cancelled = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
            why = CANCELLED if cancelled else str(error) or type(error).__name__
            try:
                self.store.fail(thread, number, why, seen=self.screen.shown, tools=self.screen.tools)
            except StoreError as failure:  # reported here, so that it does not hide the first error
                self.screen.problem(str(failure))
            raise
        self.images = []
        self.store.complete(thread, number, answer.text, self.screen.tools)
        self.note_end(answer.meta.get("stop_reason", NORMAL_STOP), answer.params, answer.others)

    async def _ask(self, thread: ChatThread, number: int, message: str) -> CallResult:
        if (others := number - self.known - 1) > 0:
            self.screen.note(f"({counted(others, 'turn')} of another chat came before this one; /export shows them)")
        self.known = number
        async with self.client.open(self.screen) as connection:
            self.capabilities = connection.capabilities
            optional = {  # only what is set: an older gateway refuses arguments that it does not know
                "history": rows_of(self._sendable(self._turns(), message)),
                "images": self.images,
                "params": self.parameters,
            }
            arguments = {"message": message, **{name: value for name, value in optional.items() if value}}
            arguments["conversation_id"] = thread.conversation_id
            answer = CallResult.of(await connection.call(arguments, live=self.screen.is_live))
            if answer.is_error:
                raise TurnFailedError(without_controls(answer.text) or "The agent failed without a word.")
            self.screen.finish(answer.text)
            return answer

    def _sendable(self, all_turns: Sequence[ChatTurn], message: str = "") -> list[ChatTurn]:
        """The turns that are sent with a message; reports how many no longer fit into the model's window."""
        window = self.capabilities.window
        turns, dropped = trimmed(all_turns, window, message, len(self.images))
        if dropped > self.left_out and window is not None:
            why = f"the model's context window of {window.context_window:,} tokens has no room for more"
            self.screen.note(f"(the oldest {counted(dropped, 'turn')} of this thread no longer go along: {why})")
        self.left_out = dropped
        return turns
