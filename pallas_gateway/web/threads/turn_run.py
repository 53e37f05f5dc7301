"""The call of an agent in a turn of a thread: its events for clients, its questions, and what is stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.conversation import history_rows, parse_history
from pallas_gateway.calls.parameters import parse
from pallas_gateway.errors import CallFailedError
from pallas_gateway.events.answer_text import text_of
from pallas_gateway.threads.records import CheckpointRecord, TurnOutcome
from pallas_gateway.web.threads.responses import message_of
from pallas_gateway.web.threads.turn_call import TurnCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.hosting.hosted_agent import HostedAgent
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
        live: turns of this process.
        queue_seconds: longest wait for another message of the thread.
        ask_seconds: time in which a turn can be resumed.
        keeps_steps: tool calls and their results are stored.
        max_message_bytes: longest text of a message.
    """

    threads: Threads
    live: LiveTurns[LiveTurn]
    queue_seconds: float
    ask_seconds: float
    keeps_steps: bool
    max_message_bytes: int


@dataclass(slots=True)
class TurnRun:
    """One run of the call of a turn.

    Attributes:
        agent: answers.
        services: of the gateway.
        shown: the turn, for its clients.
        is_streamed: text is sent as the model produces it.
        params: of the message, as the client gave them.
        messages: as the client gave them, instead of the stored history.
        given: answers to questions of a resumed call.
    """

    agent: HostedAgent
    services: Services
    shown: LiveTurn
    is_streamed: bool
    params: Mapping[str, Any] | None = None
    messages: Sequence[Any] | None = None
    given: Mapping[str, Answer] = field(default_factory=dict)
    _resumed: CheckpointRecord | None = None

    async def run(self, call: Call, opened: AbstractAsyncContextManager[OpenTurn]) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        async with opened as turn:
            self.shown.left_out = turn.history.left_out if self.messages is None else 0
            self.shown.on_left = turn.look.set  # another process may have cancelled the turn
            if self.shown.is_first:
                self.shown.on_admitted = partial(self._keep, turn)
            else:
                self._keep(turn)
            running = TurnCall(self._call(call, turn), turn.lease, self)
            try:
                rest, reply = self.shown.said.ending(await running.work())
                self.shown.add_text(rest)
            except CallFailedError as error:
                if error.reason != "stopped" or not running.can_be_resumed:
                    raise
                await turn.leave()
                raise CallFailedError(_LEFT, reason="stopping") from error
            finally:
                self.shown.on_admitted = lambda: None  # it refers to the turn: a reference cycle of the whole call
            await turn.end(self._outcome(reply))
        return reply

    def resume(self, checkpoint: CheckpointRecord) -> None:
        """Go on from where another process has left the call."""
        self._resumed, self.params, self.messages = checkpoint, checkpoint.params, checkpoint.messages
        self.given = {**checkpoint.answers, **self.given}

    def _call(self, call: Call, turn: OpenTurn) -> Call:
        if self.services.keeps_steps:
            turn.step_log = self.services.threads.step_log()
        if self._resumed is None:
            history = turn.history.messages if self.messages is None else call.history
            return replace(call, history=history, step_log=turn.step_log)
        return replace(
            call,
            history=turn.history.messages if self.messages is None else parse_history(history_rows(self.messages))[0],
            parameters=parse(self.params, self.agent.settings),
            checkpoint=self._resumed.checkpoint,
            given=self.given,
            step_log=turn.step_log,
        )

    def _keep(self, turn: OpenTurn) -> None:
        """Keep the turn and send its thread at once: a client that loses the connection can find its answer there."""
        turn.keep()
        self.services.live.stored(self.shown, turn.number)

    def _outcome(self, reply: Reply) -> TurnOutcome:
        failed = reply.failure is not None
        return TurnOutcome(
            None if failed else message_of(reply),
            reply.stop_reason,
            reply.usage.as_dict(),
            reply.failure,
            text_of(reply) if failed else None,
            model=reply.turns[-1].model if reply.turns else None,
            params=self.params,
        )
