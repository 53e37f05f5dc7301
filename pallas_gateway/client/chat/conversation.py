"""A conversation in progress. Each turn is stored before it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.client.agent_client import CallResult
from pallas_gateway.client.call_settings import without_effect
from pallas_gateway.client.chat.chat_store import StoreError
from pallas_gateway.client.chat.chat_turns import ChatPlace, rows_of, trimmed
from pallas_gateway.client.output import CANCELLED, counted, without_controls
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pallas_gateway.client.agent_client import AgentClient, ChatCapabilities
    from pallas_gateway.client.chat.chat_store import ChatStore
    from pallas_gateway.client.chat.chat_turns import ChatThread, ChatTurn
    from pallas_gateway.client.chat.screen import Screen

_NORMAL_STOP = "endTurn"


class TurnFailedError(GatewayError):
    """The call failed; the message is the agent's sentence."""

    reason = "turn_failed"


@dataclass
class Conversation:
    """The agent, the thread, and the parameters and images of the next message.

    `name` is for a thread that has no turns yet. `known` is the number of the last turn that this chat has shown or
    sent; `left_out` (turns) and `noted` (parameters without effect) were reported already.
    """

    client: AgentClient
    store: ChatStore
    screen: Screen
    capabilities: ChatCapabilities
    thread: ChatThread | None = None
    name: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, str]] = field(default_factory=list)
    known: int = 0
    left_out: int = 0
    noted: str = ""

    @property
    def place(self) -> ChatPlace:
        """The agent that its threads belong to."""
        return ChatPlace.of(self.client.url, self.client.agent)

    def turns(self) -> list[ChatTurn]:
        """The turns of the present thread."""
        return self.store.turns(self.thread) if self.thread else []

    def switch_to(self, thread: ChatThread | None) -> list[ChatTurn]:
        """Continue a thread with the parameters of its last turn, and return its turns; None begins a new thread."""
        self.thread, self.name, self.images = thread, None, []
        turns = self.turns()
        self.known, self.left_out = len(turns), 0
        if turns:
            self.parameters = dict(turns[-1].params)
        return turns

    async def send(self, text: str) -> None:
        """Run one turn: store it, send it, show the answer and store it. Images without an answer stay for the next.

        Raises:
            GatewayError: there is no answer; the turn, if it was begun, is an error with the reason.
        """
        message = text.encode("utf-8", "replace").decode()  # a terminal in another encoding lets surrogates through
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
        self._note_end(answer)

    async def _ask(self, thread: ChatThread, number: int, message: str) -> CallResult:
        if (others := number - self.known - 1) > 0:
            self.screen.note(f"({counted(others, 'turn')} of another chat came before this one; /export shows them)")
        self.known = number
        async with self.client.open(self.screen) as connection:
            self.capabilities = connection.capabilities
            optional = {  # only what is set: an older gateway refuses arguments that it does not know
                "history": rows_of(self.sendable(message)),
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

    def sendable(self, message: str = "") -> list[ChatTurn]:
        """The turns that are sent with a message; reports how many no longer fit into the model's window."""
        window = self.capabilities.window
        turns, dropped = trimmed(self.turns(), window, message, len(self.images))
        if dropped > self.left_out and window is not None:
            why = f"the model's context window of {window.context_window:,} tokens has no room for more"
            self.screen.note(f"(the oldest {counted(dropped, 'turn')} of this thread no longer go along: {why})")
        self.left_out = dropped
        return turns

    def _note_end(self, answer: CallResult) -> None:
        if answer.others:
            self.screen.note(f"(not shown: {', '.join(answer.others)}; `pallas-gateway call --json` has it)")
        if (note := without_effect(answer.params)) != self.noted:
            self.noted = note
            if note:
                self.screen.note(f"({note})")
        if (reason := answer.meta.get("stop_reason", _NORMAL_STOP)) != _NORMAL_STOP:
            self.screen.note(f"(stopped: {reason})")
