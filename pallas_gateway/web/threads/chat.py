"""A chat request: the turn of its thread, the call of the agent, and the response."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp_types import ImageContent
from starlette.responses import JSONResponse

from pallas_gateway.agent_server.tools import params_meta
from pallas_gateway.agents.event_stream import begun
from pallas_gateway.calls.call import Image, Message
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events import Admitted, Replied, text_of
from pallas_gateway.errors import GatewayError
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.records import NewThread, Outcome, ThreadNotFoundError
from pallas_gateway.threads.rows import storable
from pallas_gateway.web.threads import answers, requests
from pallas_gateway.web.threads.errors import ApiError, response_to
from pallas_gateway.web.threads.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from pallas_gateway.agents.answering import Answered
    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.threads.records import Thread
    from pallas_gateway.threads.service import Threads
    from pallas_gateway.threads.turns import OpenTurn
    from pallas_gateway.web.connection import ServerSentEvents

    type SendEvent = Callable[[answers.Json], None]

DONE = "[DONE]"  # the last event of every stream


@dataclass(slots=True)
class Chat:
    """One message and its response: `parse`, `answer` and `deliver` are the arguments of `serve_call`.

    Attributes:
        agent: the agent called.
        body: the request's body, not validated.
        threads: where the thread and its turns are stored.
        running: calls of this process.
        http: scope, receive and send of the request.
        events: the response if it is a stream.
        wait_seconds: longest wait for another message of the thread.
    """

    agent: HostedAgent
    body: Mapping[str, Any]
    threads: Threads
    running: RunningCalls
    http: tuple[Scope, Receive, Send]
    events: ServerSentEvents | None
    wait_seconds: float
    _new: NewThread | None = None  # created for this message; deleted if the agent does not begin to answer
    _thread_id: str | None = None
    _turn: int | None = None  # None before the turn is stored
    _left_out: int = 0

    async def parse(self, asked: Call) -> Call:
        """Return the call with what the body says; `conversation_id` is its thread.

        Raises:
            CallRefusedError: the body is invalid.
            GatewayError: the thread or its database is not available.
        """
        request = requests.chat_request(self.body, self.agent.settings, max_images=self.agent.max_history_entries)
        thread = await self._thread(request.thread_id, asked.caller)
        self._thread_id = thread.id
        return replace(asked, message=request.message, parameters=request.parameters, conversation_id=thread.id)

    async def answer(self, call: Call) -> Reply:
        """Return the agent's reply; its turn is stored, and its events were sent if the response is a stream."""
        if self.events is None:
            return await self._run_turn(call, lambda _: None, live=False)
        return await self._streamed(call, self.events)

    async def deliver(self, answered: Answered) -> None:
        """Send the response, or its end."""
        outcome, events = answered.outcome, self.events
        if events is not None and (events.has_begun or self._turn is not None or not answered.has_failed):
            await events.data(answers.line(self._last_event(answered)))
            await events.data(DONE)
            await events.end()
        elif isinstance(outcome, GatewayError):
            await response_to(outcome, about=self._about())(*self.http)
        else:
            await JSONResponse(self._answer(answered.call, outcome))(*self.http)

    async def _streamed(self, call: Call, events: ServerSentEvents) -> Reply:
        """Run the call in a task of its own, so that its turn ends with its reply even if the client reads slowly."""
        outbox, tasks = Outbox(), TaskOwner()
        answering = tasks.spawn(self._run_turn(call, outbox.put, live=True), name=f"answer {call.call_id}")
        answering.add_done_callback(lambda _: outbox.close())
        try:
            async with events.kept_alive(), aclosing(outbox.lines()) as lines:
                async for line in lines:
                    await events.data(line)
        finally:
            await tasks.cancel_all()
        return answering.result()

    async def _thread(self, thread_id: str | None, caller: Caller) -> Thread | NewThread:
        if thread_id is None:
            self._new = NewThread(owner_of(caller), self.agent.name)
            return self._new
        thread = await self.threads.store.find(thread_id, owner_of(caller))
        if thread.agent != self.agent.name:
            raise ThreadNotFoundError(f"no thread '{thread_id}'")
        return thread

    async def _run_turn(self, call: Call, send_event: SendEvent, *, live: bool) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        turns = self.threads.turns
        if self._new is not None:
            opened = turns.first_turn(self._new, call.message, call.call_id)
        else:
            opened = turns.turn(self._thread_id or "", call.message, call.call_id, wait_seconds=self.wait_seconds)
        async with opened as turn:
            self._left_out = turn.history.left_out
            if self._new is None:
                self._keep(turn, send_event)
            reply = await self._reply(call, turn, send_event, live=live)
            await turn.end(_outcome(reply))
        return reply

    def _keep(self, turn: OpenTurn, send_event: SendEvent) -> None:
        """Keep the turn and send its thread at once: a client that loses the connection can find its answer there."""
        turn.keep()
        self._turn = turn.number
        send_event({"type": "thread", **self._about()})

    async def _reply(self, call: Call, turn: OpenTurn, send_event: SendEvent, *, live: bool) -> Reply:
        if self.running.draining:  # the drain may have begun while the call waited for its turn
            raise cut_off(stopping=True)
        call = replace(call, history=turn.history.messages)
        async with begun(self.agent, call, self.running, live=live) as events:
            async for event in events:
                if isinstance(event, Admitted) and self._new is not None:
                    self._keep(turn, send_event)
                if isinstance(event, Replied):
                    return event.reply
                if (document := answers.event_of(event)) is not None:
                    send_event(document)
        raise AssertionError("the last event is the reply")

    def _about(self) -> answers.Json:
        if self._turn is not None:
            return {"threadId": self._thread_id, "turnIndex": self._turn}
        return {} if self._new is not None or self._thread_id is None else {"threadId": self._thread_id}

    def _last_event(self, answered: Answered) -> answers.Json:
        outcome = answered.outcome
        if isinstance(outcome, GatewayError):
            return {"type": "error", "message": str(outcome), "reason": outcome.reason, **self._about()}
        return {"type": "final", **self._answer(answered.call, outcome)}

    def _answer(self, call: Call, reply: Reply) -> answers.Json:
        outcome = {"stopReason": reply.stop_reason, "usage": reply.usage.as_dict(), "callId": call.call_id}
        optional = {"params": params_meta(reply), "turnsLeftOut": self._left_out}
        notes = {name: value for name, value in optional.items() if value}
        return {**self._about(), **answers.content_of(_message(reply)), **outcome, **notes}


def owner_of(caller: Caller) -> str:
    """Return the owner of a caller's threads; raises `ApiError` if the token names none."""
    if caller.owner is None:
        message = "The token does not say whose it is (no 'sub', 'client_id' or 'azp'), so it cannot own threads."
        raise ApiError(message, reason="no_owner")
    return caller.owner


def _outcome(reply: Reply) -> Outcome:
    usage = reply.usage.as_dict()
    if reply.failure is not None:
        return Outcome(None, reply.stop_reason, usage, reply.failure, text_of(reply))
    return Outcome(_message(reply), reply.stop_reason, usage)


def _message(reply: Reply) -> Message:
    """The answer as it is stored and sent: its text and images, the only blocks that a model accepts in a history."""
    images = [Image(block.data, block.mime_type) for block in reply.content if isinstance(block, ImageContent)]
    return Message("assistant", storable(text_of(reply)), tuple(images))
