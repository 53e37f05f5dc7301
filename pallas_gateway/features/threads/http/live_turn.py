"""A turn whose call runs in this process, and the clients that wait for it.

It may have several clients: the one that sent the message, and those that answered a question of it. When the last
one disconnects, the call ends, unless a question is open: then it waits for the answer, which another request brings.
A call in the background goes on without clients, and each new client receives its events from the beginning.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events.answer_text import AnswerText
from pallas_gateway.calls.events.events import (
    PROGRESS,
    Admitted,
    Emitter,
    FromPeer,
    QuestionAsked,
    QuestionClosed,
    TextDelta,
    ToolsEnded,
    TurnEnded,
)
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from pallas_gateway.features.threads.http import answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine
    from typing import Any

    from pallas_gateway.calls.events.events import Event
    from pallas_gateway.calls.questions import Action, Question
    from pallas_gateway.long_responses import ServerSentEvents
    from pallas_gateway.tasks import TaskOwner

_MAY_MISS = (*PROGRESS, TextDelta, TurnEnded, ToolsEnded, FromPeer)
"""Events that a client may miss: the last event of its stream has the whole answer."""
INPUT_NEEDED = Reply((), "input_needed")
"""The reply of a request that ends with questions."""


@dataclass(slots=True)
class ShownExchange:
    """The part of a turn that its responses show.

    Attributes:
        thread_id: None before the request was checked.
        number: None before the turn is stored.
        is_first: its thread was created for it, and is not there before the turn.
        left_out: older turns that the model was not sent.
        questions: those that are open, by their ids.
    """

    thread_id: str | None = None
    number: int | None = None
    is_first: bool = False
    left_out: int = 0
    questions: dict[str, Question] = field(default_factory=dict)

    def about(self) -> answers.Json:
        """Return `threadId` and `turnIndex`, if a client can use them."""
        if self.number is not None:
            return {"threadId": self.thread_id, "turnIndex": self.number}
        return {} if self.is_first or self.thread_id is None else {"threadId": self.thread_id}

    def answered(self, question_ids: Collection[str]) -> None:
        """Remove questions from the open ones: requests wait for later questions only."""
        for question_id in question_ids:
            self.questions.pop(question_id, None)


class LiveExchange(ShownExchange):
    """A turn whose call runs in this process; the `EventSink` of the call.

    Attributes:
        kind: the type of the first event.
        in_background: the call goes on without clients.
        as_assistant: the clients' events are payloads of the assistant stream.
        on_admitted: called when the call is admitted.
        on_left: called when the last client leaves a call in the background.
        said: the text of the agent so far.
    """

    kind = "thread"

    def __init__(
        self, thread_id: str, *, is_first: bool, in_background: bool = False, as_assistant: bool = False
    ) -> None:
        super().__init__(thread_id, is_first=is_first)
        self.in_background = in_background
        self.as_assistant = as_assistant
        self.on_admitted: Callable[[], None] = lambda: None
        self.on_left: Callable[[], None] = lambda: None
        self.said = AnswerText()
        self._work: asyncio.Task[Reply]
        self._asked = asyncio.Event()
        self._readers: list[EventQueue] = []
        self._missed = _queue()
        self._clients = 0

    # the call

    def begin(self, work: asyncio.Task[Reply]) -> None:
        """Set the task of the call; its end is the end of all streams."""
        self._work = work
        work.add_done_callback(self._ended)

    def stored(self, number: int) -> None:
        """Set the number, and send it with the thread to every client: the first event of each stream."""
        self.number = number
        for reader in (*self._readers, self._missed):
            reader.put(Admitted())

    def put(self, event: Event) -> None:
        """Send an event to the clients that read, or keep it for the next one."""
        text = self.said.of(event)
        match event:
            case Admitted():
                self.on_admitted()
            case QuestionAsked() | QuestionClosed():
                pass  # a question is stored before clients receive it: see `ask` and `close`
            case TextDelta() if not self.as_assistant:
                self._send(replace(event, text=text))
            case TurnEnded() if not self.as_assistant:
                self._send(TextDelta(event.emitter, event.iteration, text))
                self._send(event)
            case _:
                self._send(event)

    def add_text(self, text: str) -> None:
        """Send text that is of no turn, unless the clients read payloads."""
        if not self.as_assistant:
            self._send(TextDelta(Emitter("", None), 0, text))

    def _send(self, event: Event) -> None:
        for reader in (*self._readers, *((self._missed,) if self.in_background or not self._readers else ())):
            reader.put(event)

    def ask(self, question: Question) -> None:
        """Send an open question to all clients."""
        self.questions[question.id] = question
        self._asked.set()
        for reader in self._readers:  # a client that comes later is told of all that are open
            reader.put(QuestionAsked(question, question.message))

    @override
    def answered(self, question_ids: Collection[str]) -> None:
        """Remove questions from the open ones; `reply` waits for later questions only."""
        super().answered(question_ids)
        if not self.questions:
            self._asked.clear()

    def close(self, question_id: str, action: Action) -> None:
        """Send all clients the end of a question."""
        self.answered([question_id])
        for reader in self._readers:
            reader.put(QuestionClosed(question_id, action))

    async def ended(self) -> Reply:
        """Wait for the end, without a client; return the reply.

        Raises:
            GatewayError: the call has failed or was cancelled.
        """
        await asyncio.wait({self._work})
        return self._result()

    async def cancel(self) -> None:
        """End the call, and wait until its turn is stored as cancelled."""
        self._work.cancel()
        await asyncio.wait({self._work})

    def _ended(self, _: asyncio.Task[Reply]) -> None:
        for reader in self._readers:
            reader.close()

    # its clients

    async def reply(self) -> Reply:
        """Return the reply, or `INPUT_NEEDED` as soon as a question is open."""
        async with self._client():
            asked = asyncio.create_task(self._asked.wait())
            try:
                await asyncio.wait({self._work, asked}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
        return self._result() if self._work.done() else INPUT_NEEDED

    async def stream(self, events: ServerSentEvents) -> Reply:
        """Send the unread and all later events, in the background all events; return the reply."""
        queue, self._missed = self._missed, self._missed.copy() if self.in_background else _queue()
        self._readers.append(queue)
        if self.number is not None and not self.in_background:
            self._missed.put(Admitted())
        for question in self.questions.values():
            queue.put(QuestionAsked(question, question.message))
        if self._work.done():
            queue.close()
        async with self._client():
            try:
                events.keep_alive()
                async with aclosing(queue.events()) as unread:
                    async for event in unread:
                        for document in self._documents(event):
                            await events.data(answers.line(document))
            finally:
                self._readers.remove(queue)
        return self._result()

    def _documents(self, event: Event) -> list[answers.Json]:
        if isinstance(event, Admitted):
            return [{"type": self.kind, **self.about()}]
        # In the context of the call, which has the tokens to hide: that of a client may have another one.
        context = self._work.get_context()
        return context.run(partial(answers.documents_of, event, as_assistant=self.as_assistant))

    def _result(self) -> Reply:
        """Return the reply.

        Raises:
            GatewayError: the call has failed or was cancelled.
        """
        if self._work.cancelled():
            raise cut_off(stopping=False)
        return self._work.result()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[None]:
        """Count a client for the block; if it is the last one and leaves the block early, the call ends.

        A call in the background goes on once its turn is stored, as does one with open questions.
        """
        self._clients += 1
        try:
            yield
        except BaseException:
            if self._clients == 1 and self.in_background and self.number is not None:
                self.on_left()
            elif self._clients == 1 and not self.questions:
                await self.cancel()
            raise
        finally:
            self._clients -= 1


def _queue() -> EventQueue:
    return EventQueue(StreamOptions(deltas=True), _MAY_MISS)


class LiveExchanges:
    """The stored turns whose calls run in this process; the gateway has them, because a reload makes new routes."""

    def __init__(self, tasks: TaskOwner) -> None:
        """`tasks` owns the calls."""
        self._tasks = tasks
        self._turns: dict[tuple[str | None, int | None], LiveExchange] = {}

    def begin(self, turn: LiveExchange, call: Coroutine[Any, Any, Any]) -> None:
        work = self._tasks.spawn(call, name=f"answer in thread {turn.thread_id}")
        turn.begin(work)
        work.add_done_callback(lambda _: self._turns.pop((turn.thread_id, turn.number), None))

    def stored(self, turn: LiveExchange, number: int) -> None:
        """Note the number of a turn: from here on it can be found, and its clients can find its answer."""
        self._turns[turn.thread_id, number] = turn
        turn.stored(number)

    def find(self, thread_id: str, number: int) -> LiveExchange | None:
        return self._turns.get((thread_id, number))
