"""Requests for a turn: a message with its thread, or answers to questions; the response is (the rest of) the turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pallas_gateway.core.long_calls.long_call import task_of
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import parsed
from pallas_gateway.doors.api.requests import owner_of
from pallas_gateway.features.threads.http import requests
from pallas_gateway.features.threads.http.live_turn import LiveExchange, ShownExchange
from pallas_gateway.features.threads.http.models import ChatRequest
from pallas_gateway.features.threads.http.stored_turn import ExchangeLeftError, StoredExchange, turn_in
from pallas_gateway.features.threads.http.turn_call import LIFE_SECONDS, ExchangeCall, begin_again
from pallas_gateway.features.threads.records import NewThread, QuestionNotOpenError, ThreadNotFoundError
from pallas_gateway.tasks import in_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.threads.http import models
    from pallas_gateway.features.threads.http.responses import ExchangeResponse
    from pallas_gateway.features.threads.http.turn_call import Services
    from pallas_gateway.features.threads.records import ClaimedExchange, ThreadRecord
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
        most_bytes = self.services.settings.max_message_bytes
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
                wait_seconds=self.services.settings.queue_seconds,
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


@dataclass(slots=True)
class GivenAnswers:
    """Answers and the response to them.

    Attributes:
        agent: that of the thread.
        thread: the caller's own; its latest turn asks.
        given: answers by the ids of their questions; without any, the request goes on with the turn.
        body: of the request; its switches are those of a call that is resumed.
        services: of the gateway.
        response: to the request.
        may_be_taken: the process that ran the call may have taken the answers before it ended.
    """

    agent: HostedAgent
    thread: ThreadRecord
    given: Mapping[str, Answer]
    body: models.GivenAnswers
    services: Services
    response: ExchangeResponse
    may_be_taken: bool = False
    _claimed: ClaimedExchange | None = None
    _turn: LiveExchange | StoredExchange | None = None  # None before the answers were given

    async def respond(self, request: CallRequest) -> None:
        """Send the whole response."""
        with request.answering():
            request.ended(await self._reply(await request.decoded(self._decoded)))
        await self.response.end(request, self._turn or ShownExchange(self.thread.id))

    async def _decoded(self, asked: Call) -> Call:
        """Pass the answers to the turn; return its call.

        Raises:
            GatewayError: a question is not open, an answer does not fit it, or the database is not available.
        """
        thread_id, threads = self.thread.id, self.services.threads
        turn = await turn_in(threads.store, thread_id, self.thread.turns)
        questions = {one.id: one for one in turn.asks}
        if self.may_be_taken:
            self.given = {id_: answer for id_, answer in self.given.items() if id_ in questions}
        for question_id, answer in self.given.items():
            refuse_misfit(question_id, questions.get(question_id), answer)
        call = replace(asked, message=turn.question, call_id=turn.call_id, conversation_id=thread_id)
        live = self.services.live.find(thread_id, turn.number)
        owner = owner_of(asked.caller)
        self._turn = live or StoredExchange(thread_id, turn, threads, owner)
        if self.given:
            older = partial(task_of, self.agent, call, thread_id=thread_id, turn=turn.number, seconds=LIFE_SECONDS)
            await threads.give(thread_id, turn.number, self.given, older)
            self._turn.answered(self.given)
            if live is None:  # else a client that leaves meanwhile would be no client of the turn
                self._claimed = await threads.claim(thread_id, turn.number, owner)
        return call

    async def _reply(self, call: Call) -> Reply:
        """Return the reply of the turn; with JSON, that the agent asks, as long as a question is open."""
        if self._claimed is not None:  # with the token of this request it goes on here
            self._turn = self._continued(call, self._claimed)
        try:
            return await self._followed()
        except ExchangeLeftError as left:
            self._turn = self._continued(call, left.claimed)
            return await self._followed()

    async def _followed(self) -> Reply:
        turn, events = self._turn, self.response.events
        if turn is None:
            raise RuntimeError("the answers were not given")
        return await (turn.stream(events) if self.response.is_stream else turn.reply())

    def _continued(self, call: Call, claimed: ClaimedExchange) -> LiveExchange:
        """Go on with a turn in this process after another process has left it."""
        switches = {"in_background": self.body.background, "as_assistant": self.body.assistant_stream}
        turn = LiveExchange(self.thread.id, is_first=False, **switches)
        begin_again(self.agent, call, self.services, turn, claimed)
        return turn


def refuse_misfit(question_id: str, question: Question | None, answer: Answer) -> None:
    """Refuse an answer to a question that is not open (None), or that does not fit it."""
    if question is None:
        raise QuestionNotOpenError(question_id)
    if (why := question.misfit(answer)) is not None:
        raise ApiError(f"The answer to '{question_id}' does not fit: {why}. Send another one.", reason="bad_answer")
