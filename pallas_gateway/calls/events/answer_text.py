"""The text of the served agent, for APIs whose stream is that text: OpenAI's and threads'. Each text is sent once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_types import TextContent

from pallas_gateway.calls.events.events import Emitter, TextDelta, TurnEnded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.events.events import Event
    from pallas_gateway.calls.events.queue import EventQueue

LIVE_SECONDS = 0.05
"""Seconds between two pieces of live text."""
TURN_BREAK = "\n\n"
"""Separates the texts of two turns, and streamed text from text that the gateway adds at the end."""
_FAILED_TURNS = frozenset({"error", "timeout", "cancelled"})
"""Stop reasons of turns whose text is an error message of fast-agent instead of an answer."""


def text_of(reply: Reply) -> str:
    """Return the text of the final answer, as the result of `send_message` has it."""
    return "\n".join(_texts(reply))


def _texts(reply: Reply) -> list[str]:
    return [block.text for block in reply.content if isinstance(block, TextContent)]


class AnswerText:
    """The text of one call so far. Text of inner agents and peers is no part of it."""

    def __init__(self) -> None:
        self._turn = 0
        self._of_turn: list[str] = []
        self._turns: list[str] = []

    def of(self, event: Event) -> str:
        """Return the text that an event adds. All texts, joined without separators, are the text of the agent."""
        match event:
            case TextDelta() if event.emitter.is_served:
                return self._more(event.iteration, event.text)
            case TurnEnded() if event.emitter.is_served and event.stop_reason not in _FAILED_TURNS:
                self._turns.append(event.text)
                said = "".join(self._of_turn) if event.iteration == self._turn else ""
                return self._more(event.iteration, _unsaid(said, event.text))
        return ""

    def ending(self, reply: Reply) -> tuple[str, Reply]:
        """Return the rest of the text, and the reply.

        The reply is the failure `deadline` if the deadline came before any text. Its content is then a sentence of the
        gateway, which is no part of the text.
        """
        texts = _texts(reply)
        if "deadline" in reply.halted and len(texts) == 1 and not self._turn:
            reply = replace(reply, failure="deadline")
        return ("" if reply.failure is not None else self._rest(texts)), reply

    def _more(self, turn: int, text: str) -> str:
        if not text or turn == self._turn:
            self._of_turn.append(text)
            return text
        is_first = self._turn == 0
        self._turn, self._of_turn = turn, [text]
        return text if is_first else TURN_BREAK + text

    def _rest(self, texts: Sequence[str]) -> str:
        """Return what was not sent of the final answer: of the last turn, and a note if the call was stopped."""
        said, whole = "".join(self._of_turn), "\n".join(texts)
        if whole.startswith(said):
            return whole.removeprefix(said)
        new = [text for text in texts if text not in self._turns]
        return "".join(TURN_BREAK + text for text in new)


class AnswerSink:
    """The `EventSink` of a reader that takes the text of the agent and nothing else."""

    def __init__(self, said: AnswerText, events: EventQueue) -> None:
        self._said = said
        self._events = events

    def put(self, event: Event) -> None:
        if text := self._said.of(event):
            self._events.put(TextDelta(Emitter("", None), 0, text))


def _unsaid(said: str, whole: str) -> str:
    """Return the part of `whole` that was not sent; all of it, after a break, if another text was sent.

    A provider's second try after a broken stream says everything again, so `said` may end with the whole.
    """
    if whole.startswith(said):
        return whole.removeprefix(said)
    return "" if said.strip().endswith(whole.strip()) else TURN_BREAK + whole
