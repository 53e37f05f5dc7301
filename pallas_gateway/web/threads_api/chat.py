"""One message of a client: the turn of its thread, the call of the agent, and what the client is told."""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from mcp_types import ImageContent
from starlette.responses import JSONResponse

from pallas_gateway.agent_server.tools import call_meta, params_meta
from pallas_gateway.agents.event_stream import begun
from pallas_gateway.calls.call import Image, Message
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events import Admitted, Replied, text_of
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.records import Outcome
from pallas_gateway.threads.rows import storable
from pallas_gateway.web.threads_api import answers
from pallas_gateway.web.threads_api.errors import response_to
from pallas_gateway.web.threads_api.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.responses import Response

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.threads.records import NewThread
    from pallas_gateway.threads.turns import OpenTurn, Turns
    from pallas_gateway.web.connection import ServerSentEvents

    type Tell = Callable[[answers.Json], None]

DONE = "[DONE]"
"""The last event of every stream."""
_log = logging.getLogger("pallas.threads")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a message came to: the answer, or why there is none; `reply` is there if the agent has replied at all.

    `turn` is None if none was begun, because the thread or its database could not be had.
    """

    outcome: Reply | GatewayError
    turn: int | None
    reply: Reply | None
    seconds: float

    @property
    def has_failed(self) -> bool:
        """Whether there is no answer."""
        return isinstance(self.outcome, GatewayError)


@dataclass(slots=True)
class Chat:
    """A message that was understood, and may be answered by `agent`; `call.conversation_id` is its thread.

    `wait_seconds` is how long it may wait for another message of the thread. `new` is the thread if it is created for
    this message; it is deleted again if the agent does not begin to answer.
    """

    agent: HostedAgent
    call: Call
    turns: Turns
    running: RunningCalls
    wait_seconds: float
    new: NewThread | None
    _turn: int | None = None
    _left_out: int = 0

    async def whole(self) -> tuple[Ended, Response]:
        """Make the call; the response tells of its end."""
        ended = await self._ended(_tell_nobody, live=False)
        if isinstance(ended.outcome, GatewayError):
            return ended, response_to(ended.outcome, about=self._about())
        return ended, JSONResponse(self._answer(ended.outcome))

    async def streamed(self, events: ServerSentEvents) -> tuple[Ended, Response | None]:
        """Make the call and tell of it; a response only for what was refused before its turn had begun.

        The call is made in a task of its own, so that its turn ends when its answer exists, whenever the client reads.
        """
        outbox, tasks = Outbox(), TaskOwner()
        answering = tasks.spawn(self._ended(outbox.put, live=True), name=f"answer {self.call.call_id}")
        answering.add_done_callback(lambda _: outbox.close())
        try:
            async with events.kept_alive(), aclosing(outbox.lines()) as lines:
                async for line in lines:
                    await events.data(line)
        finally:
            await tasks.cancel_all()
        ended = answering.result()
        if isinstance(ended.outcome, GatewayError) and ended.turn is None and not events.has_begun:
            return ended, response_to(ended.outcome, about=self._about())
        await events.data(answers.line(self._last_event(ended.outcome)))
        await events.data(DONE)
        await events.end()
        return ended, None

    def facts(self, ended: Ended) -> dict[str, Any]:
        """The facts of the call, for its trace."""
        reason = ended.outcome.reason if isinstance(ended.outcome, GatewayError) else ended.outcome.stop_reason
        return call_meta(self.call, stop_reason=reason, seconds=ended.seconds, reply=ended.reply)

    async def _ended(self, tell: Tell, *, live: bool) -> Ended:
        started, reply = monotonic(), None
        outcome: Reply | GatewayError
        try:
            reply = await self._replied(tell, live=live)
            outcome = _failure_of(reply) or reply
        except GatewayError as error:
            outcome = error
        except Exception:  # noqa: BLE001  the last line before the client: it gets a sentence, the log the traceback
            _log.exception("call failed")
            message = f"The gateway failed to answer; its log has the reason under {self.call.call_id}."
            outcome = CallFailedError(message, reason="internal_error")
        return Ended(outcome, self._turn, reply, monotonic() - started)

    async def _replied(self, tell: Tell, *, live: bool) -> Reply:
        """Have the agent answer within a turn of the thread, and write down what came of it."""
        async with self._begun_turn() as turn:
            self._left_out = turn.history.left_out
            if self.new is None:
                self._tell_thread(turn, tell)
            reply = await self._reply(turn, tell, live=live)
            await turn.end(_outcome(reply))
        return reply

    def _begun_turn(self) -> AbstractAsyncContextManager[OpenTurn]:
        message, call_id = self.call.message, self.call.call_id
        if self.new is not None:
            return self.turns.first_turn(self.new, message, call_id)
        return self.turns.turn(self.call.conversation_id or "", message, call_id, wait_seconds=self.wait_seconds)

    def _tell_thread(self, turn: OpenTurn, tell: Tell) -> None:
        """As soon as it will stay: a client that is cut off from its first answer has to know where to find it."""
        turn.keep()
        self._turn = turn.number
        tell({"type": "thread", **self._about()})

    async def _reply(self, turn: OpenTurn, tell: Tell, *, live: bool) -> Reply:
        if self.running.draining:  # it has waited for its turn meanwhile
            raise cut_off(stopping=True)
        call = replace(self.call, history=turn.history.messages)
        async with begun(self.agent, call, self.running, live=live) as events:
            async for told in events:
                if isinstance(told, Admitted) and self.new is not None:
                    self._tell_thread(turn, tell)
                if isinstance(told, Replied):
                    # A sentence of the gateway's alone is no answer, and the model shall not read it as its own.
                    return replace(told.reply, failure="deadline") if told.timed_out else told.reply
                if (shown := answers.event(told)) is not None:
                    tell(shown)
        raise CallFailedError("The call ended without an answer.", reason="internal_error")

    def _about(self) -> answers.Json:
        if self._turn is None:
            return {} if self.new is not None else {"threadId": self.call.conversation_id}
        return {"threadId": self.call.conversation_id, "turnIndex": self._turn}

    def _last_event(self, outcome: Reply | GatewayError) -> answers.Json:
        if isinstance(outcome, GatewayError):
            return {"type": "error", "message": str(outcome), "reason": outcome.reason, **self._about()}
        return {"type": "final", **self._answer(outcome)}

    def _answer(self, reply: Reply) -> answers.Json:
        told = {"stopReason": reply.stop_reason, "usage": reply.usage.as_dict(), "callId": self.call.call_id}
        notes = {"params": params_meta(reply), "turnsLeftOut": self._left_out}
        about = {name: value for name, value in notes.items() if value}
        return {**self._about(), **answers.said(_message(reply)), **told, **about}


def _failure_of(reply: Reply) -> GatewayError | None:
    return CallFailedError(storable(text_of(reply)), reason=reply.failure) if reply.failure is not None else None


def _outcome(reply: Reply) -> Outcome:
    usage = reply.usage.as_dict()
    if reply.failure is not None:
        return Outcome(None, reply.stop_reason, usage, reply.failure, text_of(reply))
    return Outcome(_message(reply), reply.stop_reason, usage)


def _message(reply: Reply) -> Message:
    """The answer as later calls are told of it, and clients: of other blocks than text and images no model is told."""
    images = [Image(block.data, block.mime_type) for block in reply.content if isinstance(block, ImageContent)]
    return Message("assistant", storable(text_of(reply)), tuple(images))


def _tell_nobody(_: answers.Json) -> None:
    """A response in one piece tells of the end alone."""
