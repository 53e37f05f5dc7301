"""A call as typed events, for the APIs other than MCP; `hosting/event_stream.py` begins such a call.

`EventChannel` receives the call's events in place of the `Channel` of an MCP client: it has no task, sends nothing and
delays nothing. Only text of the served agent becomes an event; text of inner agents and peers does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.assistant_stream import ANSWER, LONGEST_RESULT, QUESTION, ToolsEnded, TurnEnded, delta
from pallas_gateway.events.channel import StreamOptions
from pallas_gateway.questions.asking import CANNOT_ASK
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence, Set

    from pallas_gateway.calls.assistant_stream import AssistantEvent, Emitter, Payload
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.questions import Action, Answer, Mode, Question
    from pallas_gateway.questions.asking import Asker

TURN_BREAK = "\n\n"
"""Separates the texts of two turns, and streamed text from text that the gateway adds at the end."""
LIVE_SECONDS = 0.05
"""Seconds between two events of live text."""
_FAILED_TURNS = frozenset({"error", "timeout", "cancelled"})
"""Stop reasons of turns whose text is an error message of fast-agent instead of an answer."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first event: the call runs, and is not refused any more."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer. All pieces, joined without separators, are the text of the served agent."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """An agent (the served one, or one inside it) calls a tool; `server` is None for a tool of no server."""

    id: str
    agent: str
    server: str | None
    name: str
    arguments: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResulted:
    """The result of the `ToolCalled` of this id; `text` has at most `assistant_stream.LONGEST_RESULT` characters."""

    id: str
    agent: str
    server: str | None
    name: str
    ok: bool
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A payload of the assistant stream, as MCP clients receive it, also of peers; only with `payloads`."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the caller, only in calls that may ask; the reader sets the `answer`.

    `checkpoint` returns where the call waits for answers to questions of these ids, for another process to resume it.
    """

    question: Question
    answer: asyncio.Future[Answer]
    checkpoint: Callable[[Set[str]], str | None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class QuestionClosed:
    """The `Asked` question of this id is answered or withdrawn."""

    id: str
    action: Action


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """The gateway is stopping; only with `asks`. A call that waits for its caller ends in this process."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The last event. The reply may be a failure (`reply.failure`).

    It is the failure `deadline` if the deadline came before any text. The reply's content is then a sentence of the
    gateway, which was not an event.
    """

    reply: Reply


type Event = Admitted | TextDelta | ToolCalled | ToolResulted | Streamed | Asked | QuestionClosed | DrainBegun | Replied


def text_of(reply: Reply) -> str:
    """Return the text of the final answer, as the result of `send_message` has it."""
    return "\n".join(_texts(reply))


def _texts(reply: Reply) -> list[str]:
    return [block.text for block in reply.content if isinstance(block, TextContent)]


class EventChannel:
    """Collects the events of a call for one reader.

    With `live`, text comes while the model produces it, otherwise at the end of each turn. Unread pieces of text are
    joined, so a slow reader costs no more memory than the answer. With `asks`, questions are events; with `payloads`,
    each payload of the assistant stream is one.
    """

    def __init__(self, *, live: bool, asks: bool = False, payloads: bool = False) -> None:
        self.options = StreamOptions(deltas=live, delta_seconds=LIVE_SECONDS)
        self._payloads = payloads
        self.checkpoint: Callable[[Set[str]], str | None] = lambda _: None
        self.asker: Asker = _EventAsker(self) if asks else CANNOT_ASK
        self._said = _Said()
        self._waiting: deque[list[str] | Event] = deque()
        self._something = asyncio.Event()
        self._closed = False

    def admitted(self) -> None:
        self._put(Admitted())

    def progress(self, message: str, *, ended: bool = False) -> None:
        """Do nothing, because other events have the same content."""

    def live_text(self, emitter: Emitter, iteration: int, text: str) -> None:
        if self._payloads:
            self._stream(delta(emitter, iteration, text))
        if emitter.is_served:
            self._text(self._said.more(iteration, text))

    def event(self, event: AssistantEvent) -> None:
        """Add the events of a turn, or of its tools; a peer's are payloads only."""
        if self._payloads:
            self._stream(event.payload())
        if isinstance(event, TurnEnded):
            self._turn_ended(event)
        elif isinstance(event, ToolsEnded):
            for one in event.results:
                call, text = one.call, cleaned_data(one.text[:LONGEST_RESULT])
                ok = not one.is_error
                self._put(ToolResulted(call.id, event.emitter.agent, call.server, call.name, ok=ok, text=text))

    def _turn_ended(self, turn: TurnEnded) -> None:
        if turn.emitter.is_served and turn.stop_reason not in _FAILED_TURNS:
            self._text(self._said.whole(turn.iteration, turn.text))
        for call in turn.tool_calls:
            arguments = cleaned_data(dict(call.arguments))
            self._put(ToolCalled(call.id, turn.emitter.agent, call.server, call.name, arguments))

    def ask(self, question: Question, answer: asyncio.Future[Answer]) -> None:
        self._put(Asked(question, answer, self.checkpoint))

    def close_question(self, question_id: str, action: Action) -> None:
        self._put(QuestionClosed(question_id, action))

    def drain(self) -> None:
        self._put(DrainBegun())

    def ending(self, reply: Reply) -> Iterator[Event]:
        """Return the last events of a call: the rest of the answer, and the reply."""
        texts = _texts(reply)
        if "deadline" in reply.halted and len(texts) == 1 and not self._said.anything:
            reply = replace(reply, failure="deadline")
        if reply.failure is None and (text := self._said.answer(texts)):
            yield TextDelta(text)
        yield Replied(reply)

    def close(self) -> None:
        """End `events` after the events so far."""
        self._closed = True
        self._something.set()

    async def events(self) -> AsyncGenerator[Event]:
        """Yield all events until `close`, in order."""
        while True:
            while self._waiting:
                one = self._waiting.popleft()
                yield TextDelta("".join(one)) if isinstance(one, list) else one
            if self._closed:
                return
            self._something.clear()
            await self._something.wait()

    def _stream(self, payload: Payload) -> None:
        if payload["kind"] not in (QUESTION, ANSWER):  # questions have events of their own
            self._put(Streamed(cleaned_data(payload)))

    def _text(self, text: str) -> None:
        if not text:
            return
        if self._waiting and isinstance(self._waiting[-1], list):
            self._waiting[-1].append(text)
        else:
            self._waiting.append([text])
        self._something.set()

    def _put(self, event: Event) -> None:
        self._waiting.append(event)
        self._something.set()


class _EventAsker:
    """The `Asker` of a call whose reader takes questions as events."""

    modes: Collection[Mode] = ("form", "url")

    def __init__(self, channel: EventChannel) -> None:
        self._channel = channel

    async def put(self, question: Question) -> Answer:
        """Return the answer that the reader sets."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._channel.ask(question, answer)
        try:
            return await answer
        finally:
            has_answer = answer.done() and not answer.cancelled()
            self._channel.close_question(question.id, answer.result().action if has_answer else "cancel")


class _Said:
    """The text of the served agent so far, so that each text is sent once. Each method returns the text to send now."""

    def __init__(self) -> None:
        self._turn = 0
        self._of_turn: list[str] = []
        self._turns: list[str] = []

    @property
    def anything(self) -> bool:
        return self._turn > 0

    def more(self, turn: int, text: str) -> str:
        """Add a piece of a turn, as its model produces it."""
        if not text or turn == self._turn:
            self._of_turn.append(text)
            return text
        is_first = self._turn == 0
        self._turn, self._of_turn = turn, [text]
        return text if is_first else TURN_BREAK + text

    def whole(self, turn: int, text: str) -> str:
        """Add the whole text of a turn, of which pieces may have been sent."""
        self._turns.append(text)
        return self.more(turn, _unsaid("".join(self._of_turn) if turn == self._turn else "", text))

    def answer(self, texts: Sequence[str]) -> str:
        """Add the final answer: the text of the last turn, with a note if the gateway has stopped the call."""
        said, whole = "".join(self._of_turn), "\n".join(texts)
        if whole.startswith(said):
            return whole.removeprefix(said)
        new = [text for text in texts if text not in self._turns]
        return "".join(TURN_BREAK + text for text in new)


def _unsaid(said: str, whole: str) -> str:
    """Return the part of `whole` that was not sent; all of it, after a break, if another text was sent.

    A provider's second try after a broken stream says everything again, so `said` may end with the whole.
    """
    if whole.startswith(said):
        return whole.removeprefix(said)
    return "" if said.strip().endswith(whole.strip()) else TURN_BREAK + whole
