"""A chat request: a message, and the turn of its thread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pallas_gateway.doors.api.models import parsed
from pallas_gateway.doors.api.requests import owner_of
from pallas_gateway.features.threads.http import requests
from pallas_gateway.features.threads.http.live_turn import LiveExchange, ShownExchange
from pallas_gateway.features.threads.http.models import ChatRequest
from pallas_gateway.features.threads.http.turn_call import ExchangeCall
from pallas_gateway.features.threads.records import NewThread, ThreadNotFoundError
from pallas_gateway.tasks import in_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.threads.http.responses import ExchangeResponse
    from pallas_gateway.features.threads.http.turn_call import Services
    from pallas_gateway.features.threads.records import ThreadRecord
    from pallas_gateway.identity.caller import Caller


@dataclass(slots=True)
class NewExchange:
    """One message and its response.

    Attributes:
        agent: the agent called.
        body: the request's body, not validated.
        services: of the gateway.
        response: to the request.
    """

    agent: HostedAgent
    body: Mapping[str, Any]
    services: Services
    response: ExchangeResponse
    _new: NewThread | None = None  # created for this message; deleted if the agent does not begin to answer
    _turn: ShownExchange = field(default_factory=ShownExchange)
    _asked: ChatRequest = field(init=False)

    async def respond(self, request: CallRequest) -> None:
        """Send the whole response."""
        with request.answering():
            request.ended(await self._reply(await request.decoded(self._decoded)))
        await self.response.end(request, self._turn)

    async def _decoded(self, asked: Call) -> Call:
        """Return the call with the content of the body; `conversation_id` is its thread.

        Raises:
            CallRefusedError: the body is invalid.
            GatewayError: the thread or its database is not available.
        """
        self._asked = parsed(ChatRequest, self.body)
        most_bytes = self.services.max_message_bytes
        call, skipped = await in_parts(requests.with_message(asked, self._asked, self.agent, most_bytes))
        thread = await self._thread(self._asked.thread_id, asked.caller)
        call = replace(call, conversation_id=thread.id)
        skipped.warn(call)
        return call

    async def _reply(self, call: Call) -> Reply:
        """Return the agent's reply, which is stored; with JSON, that the agent asks, as soon as it does.

        The call runs in a task of its own: its turn ends with its reply even if the client reads slowly.
        """
        thread_id, turns, events = call.conversation_id or "", self.services.threads.turns, self.response.events
        asked = self._asked
        switches = {"in_background": asked.background, "as_assistant": asked.assistant_stream}
        self._turn = turn = LiveExchange(thread_id, is_first=self._new is not None, **switches)
        running = ExchangeCall(
            self.agent,
            call,
            self.services,
            turn,
            is_streamed=self.response.is_stream,
            params=asked.params,
            messages=asked.messages,
        )
        if self._new is not None:
            opened = turns.first_turn(self._new, call.message, call.call_id, task=running.first_task)
        else:
            window = self.agent.context_window(call.parameters.model)
            room = self.services.threads.room_for(window) if asked.messages is None else None
            opened = turns.turn(
                thread_id,
                call.message,
                call.call_id,
                wait_seconds=self.services.queue_seconds,
                room=room,
                replaces=asked.replaces,
                task=running.first_task,
            )
        self.services.live.begin(turn, running.run(opened))
        return await (turn.stream(events) if self.response.is_stream else turn.reply())

    async def _thread(self, thread_id: str | None, caller: Caller) -> ThreadRecord | NewThread:
        if thread_id is None:
            self._new = NewThread(owner_of(caller), self.agent.name, self.agent.id)
            return self._new
        thread = await self.services.threads.store.find(thread_id, owner_of(caller))
        if (thread.agent, thread.agent_id) != (self.agent.name, self.agent.id):
            raise ThreadNotFoundError(f"no thread '{thread_id}'")
        self._turn.thread_id = thread.id
        return thread
