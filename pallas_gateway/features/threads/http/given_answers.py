"""A request with answers to the questions of a turn; its response is the rest of the turn's response."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pallas_gateway.core.long_calls.long_call import task_of
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.requests import owner_of
from pallas_gateway.features.threads.http.live_turn import LiveExchange, ShownExchange
from pallas_gateway.features.threads.http.stored_turn import ExchangeLeftError, StoredExchange, turn_in
from pallas_gateway.features.threads.http.turn_call import LIFE_SECONDS, begin_again
from pallas_gateway.features.threads.records import QuestionNotOpenError

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
