"""The call of an agent in a turn of a thread: its events for clients, its questions, and what is stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.parameters import parse
from pallas_gateway.calls.questions import UNASKABLE
from pallas_gateway.errors import CallFailedError
from pallas_gateway.events.call_events import Admitted, Asked, DrainBegun, QuestionClosed, Replied, text_of
from pallas_gateway.hosting.event_stream import begun
from pallas_gateway.threads.question_store import Waits
from pallas_gateway.threads.records import CheckpointRecord, ThreadsUnavailableError, TurnOutcome
from pallas_gateway.web.threads import answers
from pallas_gateway.web.threads.responses import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.threads.live_turns import LiveTurns
    from pallas_gateway.threads.service import Threads
    from pallas_gateway.threads.turns import OpenTurn
    from pallas_gateway.web.threads.live_turn import LiveTurn


_LEFT = "The gateway is stopping. The question stays open: answer it again in a moment."


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of the gateway that turns need.

    Attributes:
        threads: where threads and turns are stored.
        running: calls of this process.
        live: turns of this process.
        queue_seconds: longest wait for another message of the thread.
        ask_seconds: time in which a turn can be resumed.
    """

    threads: Threads
    running: RunningCalls
    live: LiveTurns[LiveTurn]
    queue_seconds: float
    ask_seconds: float


@dataclass(slots=True)
class TurnRun:
    """One run of the call of a turn.

    Attributes:
        agent: answers.
        services: of the gateway.
        shown: the turn, for its clients.
        is_streamed: text is sent as the model produces it.
        params: of the message, as the client gave them.
        given: answers to questions of a resumed call.
        as_assistant: the events are payloads of the assistant stream.
    """

    agent: HostedAgent
    services: Services
    shown: LiveTurn
    is_streamed: bool
    params: Mapping[str, Any] | None = None
    given: Mapping[str, Answer] = field(default_factory=dict)
    as_assistant: bool = False
    _resumed: CheckpointRecord | None = None
    _checkpoint: Callable[[Set[str]], str | None] = lambda _: None
    _can_be_resumed: bool = False

    async def run(self, call: Call, opened: AbstractAsyncContextManager[OpenTurn]) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        async with opened as turn:
            self.shown.left_out = turn.history.left_out
            self.shown.on_left = turn.look.set  # another process may have cancelled the turn
            if not self.shown.is_first:
                self._keep(turn)
            try:
                reply = await self._reply(self._call(call, turn), turn)
            except CallFailedError as error:
                if error.reason != "stopped" or not self._can_be_resumed:
                    raise
                await turn.leave()
                raise CallFailedError(_LEFT, reason="stopping") from error
            await turn.end(_outcome(reply))
        return reply

    def resume(self, checkpoint: CheckpointRecord) -> None:
        """Go on from where another process has left the call."""
        self._resumed, self.params = checkpoint, checkpoint.params
        self.given = {**checkpoint.answers, **self.given}

    def _call(self, call: Call, turn: OpenTurn) -> Call:
        call = replace(call, history=turn.history.messages)
        if self._resumed is None:
            return call
        parameters = parse(self.params, self.agent.settings)
        return replace(call, parameters=parameters, checkpoint=self._resumed.checkpoint, given=self.given)

    def _keep(self, turn: OpenTurn) -> None:
        """Keep the turn and send its thread at once: a client that loses the connection can find its answer there."""
        turn.keep()
        self.services.live.stored(self.shown, turn.number)

    async def _reply(self, call: Call, turn: OpenTurn) -> Reply:
        running = self.services.running
        if running.draining:  # the drain may have begun while the call waited for its turn
            raise cut_off(stopping=True)
        options = {"live": self.is_streamed, "payloads": self.as_assistant}
        async with begun(self.agent, call, running, asks=True, **options) as events:
            async for event in events:
                match event:
                    case Admitted() if self.shown.is_first:
                        self._keep(turn)
                    case Asked() | QuestionClosed() | DrainBegun():
                        await self._note(event, turn)
                    case Replied(reply):
                        return reply
                    case _ if (document := answers.event_of(event, as_assistant=self.as_assistant)) is not None:
                        self.shown.send(document)
        raise AssertionError("the last event is the reply")

    async def _note(self, event: Asked | QuestionClosed | DrainBegun, turn: OpenTurn) -> None:
        """Note a question that is asked or closed.

        Raises:
            CallFailedError: `stopped`: the gateway is stopping, and the call waits for its caller.
        """
        if isinstance(event, Asked):
            await self._ask(event, turn)
        elif isinstance(event, QuestionClosed):
            self.shown.close(event.id, event.action)
            await self.services.threads.questions.close_one(turn.lease, event.id, self._waits())
        if self.services.running.draining and self.shown.questions:
            raise cut_off(stopping=True)

    async def _ask(self, asked: Asked, turn: OpenTurn) -> None:
        """Store a question before clients hear of it: they may answer at another process, or after a reload."""
        self._checkpoint, question = asked.checkpoint, asked.question
        try:
            waits = self._waits(question.id)
            await self.services.threads.questions.open(turn.lease, question, asked.answer, waits)
        except ThreadsUnavailableError:
            if not asked.answer.done():
                asked.answer.set_result(UNASKABLE)
        if not asked.answer.done():
            self.shown.ask(question)

    def _waits(self, *more: str) -> Waits | None:
        """Return where the call waits for answers to the open questions; None if it cannot be resumed from there."""
        questions = {*self.shown.questions, *more}
        checkpoint = self._checkpoint(questions) if questions else None
        self._can_be_resumed = checkpoint is not None
        return Waits(CheckpointRecord(checkpoint, self.params), self.services.ask_seconds) if checkpoint else None


def _outcome(reply: Reply) -> TurnOutcome:
    usage = reply.usage.as_dict()
    if reply.failure is not None:
        return TurnOutcome(None, reply.stop_reason, usage, reply.failure, text_of(reply))
    return TurnOutcome(message_of(reply), reply.stop_reason, usage)
