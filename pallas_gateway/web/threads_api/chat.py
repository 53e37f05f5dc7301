"""One message of a client: the turn of its thread, the call of the agent, and what the client is told."""

from __future__ import annotations

import logging
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
from pallas_gateway.errors import AgentUnavailableError, CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.threads.records import Outcome
from pallas_gateway.threads.store import storable
from pallas_gateway.web.threads_api import answers
from pallas_gateway.web.threads_api.errors import response_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.threads.turns import OpenTurn, Turns
    from pallas_gateway.web.connection import ServerSentEvents

    type Tell = Callable[[answers.Json], Awaitable[None]]

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

    `wait_seconds` is how long it may wait for another message of the thread. `is_first`: the thread was made for it and
    is taken back if the call is refused.
    """

    agent: HostedAgent
    call: Call
    turns: Turns
    running: RunningCalls
    wait_seconds: float
    is_first: bool
    _turn: int | None = None

    async def whole(self) -> tuple[Ended, Response]:
        """Make the call; the response tells of its end."""
        ended = await self._ended(_tell_nobody, live=False)
        if isinstance(ended.outcome, GatewayError):
            return ended, response_to(ended.outcome, about=self._about())
        return ended, JSONResponse(self._answer(ended.outcome))

    async def streamed(self, events: ServerSentEvents) -> tuple[Ended, Response | None]:
        """Make the call and tell of it; a response only for what was refused before its turn had begun."""

        async def tell(told: answers.Json) -> None:
            await events.data(answers.line(told))

        async with events.kept_alive():
            ended = await self._ended(tell, live=True)
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
        thread_id = self.call.conversation_id or ""
        taken = self.turns.turn(thread_id, self.call.message, self.call.call_id, wait_seconds=self.wait_seconds)
        async with taken as turn:
            self._turn = turn.number
            if not self.is_first:
                await self._tell_thread(tell)
            try:
                reply = await self._reply(turn, tell, live=live)
            except (CallRefusedError, AgentUnavailableError):
                if self.is_first:
                    await turn.forget_thread()
                    self._turn = None
                raise
            await turn.end(_outcome(reply))
        return reply

    async def _tell_thread(self, tell: Tell) -> None:
        """As soon as it will stay: a client that is cut off from its first answer has to know where to find it."""
        await tell({"type": "thread", **self._about()})

    async def _reply(self, turn: OpenTurn, tell: Tell, *, live: bool) -> Reply:
        if self.running.draining:  # it has waited for its turn meanwhile
            raise cut_off(stopping=True)
        call = replace(self.call, history=turn.history)
        async with begun(self.agent, call, self.running, live=live) as events:
            async for told in events:
                if isinstance(told, Admitted) and self.is_first:
                    await self._tell_thread(tell)
                if isinstance(told, Replied):
                    # A sentence of the gateway's alone is no answer, and the model shall not read it as its own.
                    return replace(told.reply, failure="deadline") if told.timed_out else told.reply
                if (shown := answers.event(told)) is not None:
                    await tell(shown)
        raise CallFailedError("The call ended without an answer.", reason="internal_error")

    def _about(self) -> answers.Json:
        if self._turn is None:
            return {} if self.is_first else {"threadId": self.call.conversation_id}
        return {"threadId": self.call.conversation_id, "turnIndex": self._turn}

    def _last_event(self, outcome: Reply | GatewayError) -> answers.Json:
        if isinstance(outcome, GatewayError):
            return {"type": "error", "message": str(outcome), "reason": outcome.reason, **self._about()}
        return {"type": "final", **self._answer(outcome)}

    def _answer(self, reply: Reply) -> answers.Json:
        told = {"stopReason": reply.stop_reason, "usage": reply.usage.as_dict(), "callId": self.call.call_id}
        notes = params_meta(reply)
        return {**self._about(), **answers.said(_message(reply)), **told, **({"params": notes} if notes else {})}


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


async def _tell_nobody(_: answers.Json) -> None:
    """A response in one piece tells of the end alone."""
