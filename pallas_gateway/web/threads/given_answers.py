"""A request with answers to the questions of a turn; its response is that of the turn from there on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pallas_gateway.threads.records import QuestionNotOpenError
from pallas_gateway.web.threads.errors import ApiError
from pallas_gateway.web.threads.live_turn import ShownTurn
from pallas_gateway.web.threads.stored_turn import StoredTurn, turn_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.agents.answering import Answered
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.threads.records import Thread
    from pallas_gateway.threads.service import Threads
    from pallas_gateway.web.threads.live_turn import LiveTurn, LiveTurns
    from pallas_gateway.web.threads.responses import TurnResponse


@dataclass(slots=True)
class GivenAnswers:
    """Answers and the response: `parse`, `answer` and `deliver` are the arguments of `serve_call`.

    Attributes:
        thread: the caller's own; its latest turn asks.
        given: answers by the ids of their questions; without any, the request goes on with the turn.
        threads: where the turn is stored.
        live: turns of this process.
        response: to the request.
    """

    thread: Thread
    given: Mapping[str, Answer]
    threads: Threads
    live: LiveTurns
    response: TurnResponse
    _turn: LiveTurn | StoredTurn | None = None  # None before the answers were given

    async def parse(self, asked: Call) -> Call:
        """Give the answers; return the call of the turn.

        Raises:
            GatewayError: a question is not open, an answer does not fit it, or the database is not available.
        """
        thread_id = self.thread.id
        turn = await turn_in(self.threads.store, thread_id, self.thread.turns)
        questions = {one.id: one for one in turn.asks}
        for question_id, answer in self.given.items():
            _refuse_misfit(question_id, questions.get(question_id), answer)
        live = self.live.find(thread_id, turn.number)
        self._turn = live or StoredTurn(thread_id, turn, self.threads.store)
        if self.given:
            await self.threads.questions.give(thread_id, self.given)
            self._turn.answered(self.given)
        return replace(asked, call_id=turn.call_id, conversation_id=thread_id)

    async def answer(self, call: Call) -> Reply:
        """Return the reply of the turn; with JSON, that the agent asks, as long as a question is open."""
        del call
        turn, events = self._turn, self.response.events
        if turn is None:
            raise RuntimeError("the answers were not given")
        return await (turn.reply() if events is None else turn.stream(events))

    async def deliver(self, answered: Answered) -> None:
        """Send the response, or its end."""
        await self.response.end(answered, self._turn or ShownTurn(self.thread.id))


def _refuse_misfit(question_id: str, question: Question | None, answer: Answer) -> None:
    if question is None:
        raise QuestionNotOpenError(question_id)
    if (why := question.misfit(answer)) is not None:
        raise ApiError(f"The answer to '{question_id}' does not fit: {why}. Send another one.", reason="bad_answer")
