"""A conversation in progress: one turn after the other, each written down before it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.cli.agent_client import ChatCapabilities
from pallas_gateway.cli.chat.options import CANCELLED
from pallas_gateway.cli.chat.screen import harmless
from pallas_gateway.cli.chat.store import StoreError
from pallas_gateway.cli.chat.trimming import Trimmed, trimmed
from pallas_gateway.cli.chat.turns import Place, rows_of
from pallas_gateway.cli.parameters import without_effect
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from pallas_gateway.cli.agent_client import AgentClient, Answer
    from pallas_gateway.cli.chat.screen import Screen
    from pallas_gateway.cli.chat.store import Store
    from pallas_gateway.cli.chat.turns import Thread, Turn

ENDED_AS_USUAL = "endTurn"


class TurnFailedError(GatewayError):
    """The agent's answer is that there is none; the message is its sentence."""

    reason = "turn_failed"


@dataclass
class Conversation:
    """Whom one talks to, the thread it goes into, and what goes along with the next message.

    `name` is for a thread that has no turns yet. `known` is the last turn that this chat has shown or sent;
    `left_out` turns and `told_params` have been told already.
    """

    line: AgentClient
    store: Store
    screen: Screen
    capabilities: ChatCapabilities
    thread: Thread | None = None
    name: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, str]] = field(default_factory=list)
    known: int = 0
    left_out: int = 0
    told_params: str = ""

    @property
    def place(self) -> Place:
        """Whom its threads are with."""
        return Place.of(self.line.url, self.line.agent)

    def turns(self) -> list[Turn]:
        """The present thread's."""
        return self.store.turns(self.thread) if self.thread else []

    def turn_to(self, thread: Thread | None) -> None:
        """Go on with a thread, with the parameters its last turn had; None begins a new one."""
        self.thread, self.name = thread, None
        turns = self.turns()
        self.known, self.left_out = len(turns), 0
        self.images = []
        if turns:
            self.parameters = dict(turns[-1].params)

    async def say(self, text: str) -> None:
        """One turn: written down, sent, shown, and its end written down. Images that got no answer stay for the next.

        Raises:
            GatewayError: there is no answer; the turn, if it was begun, is an error that says why.
        """
        # What a terminal in another encoding let through is no text that could be kept or sent.
        message = text.encode("utf-8", "replace").decode()
        thread = self.thread = self.thread or self.store.open_thread(self.place, self.name)
        number = self.store.begin(thread, message, self.images, self.parameters)
        self.screen.begin()
        try:
            answer = await self._ask(thread, number, message)
        except BaseException as error:
            self._give_up(thread, number, error)
            raise
        self.images = []
        self.store.complete(thread, number, answer.text, self.screen.tools)
        self._tell_end(answer)

    async def _ask(self, thread: Thread, number: int, message: str) -> Answer:
        earlier = [turn for turn in self.store.turns(thread) if turn.number < number]
        self._tell_foreign(number)
        async with self.line.open(self.screen) as connection:
            self.capabilities = connection.capabilities
            sent = trimmed(earlier, self.capabilities.window, message=message, images=len(self.images))
            self._tell_left_out(sent)
            arguments = {**self._arguments(message, sent), "conversation_id": thread.conversation_id}
            answer = await connection.ask(arguments, live=self.screen.is_live)
            if answer.is_error:
                raise TurnFailedError(harmless(answer.text) or "The agent failed without a word.")
            self.screen.finish(answer.text)
            return answer

    def _arguments(self, message: str, sent: Trimmed) -> dict[str, Any]:
        """Only what there is: an older gateway refuses arguments it does not know."""
        arguments: dict[str, Any] = {"message": message}
        if history := rows_of(sent.kept):
            arguments["history"] = history
        if self.images:
            arguments["images"] = self.images
        if self.parameters:
            arguments["params"] = self.parameters
        return arguments

    def _give_up(self, thread: Thread, number: int, error: BaseException) -> None:
        """Whatever it was, the turn does not wait any longer; that it cannot be written down hides no other reason."""
        self.screen.stop()
        cancelled = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
        why = CANCELLED if cancelled else str(error) or type(error).__name__
        try:
            self.store.fail(thread, number, why, seen=self.screen.seen, tools=self.screen.tools)
        except StoreError as trouble:
            self.screen.problem(str(trouble))

    def _tell_foreign(self, number: int) -> None:
        if number > self.known + 1:
            count = number - self.known - 1
            self.screen.note(f"({_turns(count)} of another chat came before this one; /export shows them)")
        self.known = number

    def tell_what_fits(self) -> None:
        """Say of a thread that is resumed how many of its turns are left out of the next call."""
        self._tell_left_out(trimmed(self.turns(), self.capabilities.window, message="", images=0))

    def _tell_left_out(self, sent: Trimmed) -> None:
        if sent.dropped > self.left_out and self.capabilities.window is not None:
            tokens = f"{self.capabilities.window.context_window:,} tokens"
            why = f"the model's context window of {tokens} has no room for more"
            self.screen.note(f"(the oldest {_turns(sent.dropped)} of this thread no longer go along: {why})")
        self.left_out = sent.dropped

    def _tell_end(self, answer: Answer) -> None:
        if answer.others:
            self.screen.note(f"(not shown: {', '.join(answer.others)}; `pallas-gateway call --json` has it)")
        if (told := without_effect(answer.params)) != self.told_params:
            self.told_params = told
            if told:
                self.screen.note(f"({told})")
        reason = answer.meta.get("stop_reason", ENDED_AS_USUAL)
        if reason != ENDED_AS_USUAL:
            self.screen.note(f"(stopped: {reason})")


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"
