"""A chat request: the turn of its thread, and the call of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pallas_gateway.agents.event_stream import begun
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events import Admitted, Asked, QuestionClosed, Replied, text_of
from pallas_gateway.calls.questions import UNASKABLE
from pallas_gateway.threads.records import NewThread, Outcome, ThreadNotFoundError, ThreadsUnavailableError
from pallas_gateway.web.threads import answers, requests
from pallas_gateway.web.threads.errors import ApiError
from pallas_gateway.web.threads.live_turn import LiveTurn, LiveTurns, ShownTurn
from pallas_gateway.web.threads.responses import message_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.agents.answering import Answered
    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.threads.records import Thread
    from pallas_gateway.threads.service import Threads
    from pallas_gateway.threads.turns import OpenTurn
    from pallas_gateway.web.threads.responses import TurnResponse

_MODES: tuple[Mode, ...] = ("form", "url")


@dataclass(slots=True)
class Chat:
    """One message and its response: `parse`, `answer` and `deliver` are the arguments of `serve_call`.

    Attributes:
        agent: the agent called.
        body: the request's body, not validated.
        threads: where the thread and its turns are stored.
        running: calls of this process.
        live: turns of this process.
        response: to the request.
        wait_seconds: longest wait for another message of the thread.
    """

    agent: HostedAgent
    body: Mapping[str, Any]
    threads: Threads
    running: RunningCalls
    live: LiveTurns
    response: TurnResponse
    wait_seconds: float
    _new: NewThread | None = None  # created for this message; deleted if the agent does not begin to answer
    _turn: ShownTurn = field(default_factory=ShownTurn)

    async def parse(self, asked: Call) -> Call:
        """Return the call with what the body says; `conversation_id` is its thread.

        Raises:
            CallRefusedError: the body is invalid.
            GatewayError: the thread or its database is not available.
        """
        request = requests.chat_request(self.body, self.agent.settings, max_images=self.agent.max_history_entries)
        thread = await self._thread(request.thread_id, asked.caller)
        return replace(asked, message=request.message, parameters=request.parameters, conversation_id=thread.id)

    async def answer(self, call: Call) -> Reply:
        """Return the agent's reply, which is stored; with JSON, that the agent asks, as soon as it does.

        The call runs in a task of its own: its turn ends with its reply even if the client reads slowly.
        """
        self._turn = turn = LiveTurn(call.conversation_id or "", is_first=self._new is not None)
        self.live.begin(turn, self._run_turn(call, turn))
        events = self.response.events
        return await (turn.reply() if events is None else turn.stream(events))

    async def deliver(self, answered: Answered) -> None:
        """Send the response, or its end."""
        await self.response.end(answered, self._turn)

    async def _thread(self, thread_id: str | None, caller: Caller) -> Thread | NewThread:
        if thread_id is None:
            self._new = NewThread(owner_of(caller), self.agent.name)
            return self._new
        thread = await self.threads.store.find(thread_id, owner_of(caller))
        if thread.agent != self.agent.name:
            raise ThreadNotFoundError(f"no thread '{thread_id}'")
        self._turn.thread_id = thread.id
        return thread

    async def _run_turn(self, call: Call, shown: LiveTurn) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        turns = self.threads.turns
        if self._new is not None:
            opened = turns.first_turn(self._new, call.message, call.call_id)
        else:
            thread_id = call.conversation_id or ""
            opened = turns.turn(thread_id, call.message, call.call_id, wait_seconds=self.wait_seconds)
        async with opened as turn:
            shown.left_out = turn.history.left_out
            if self._new is None:
                self._keep(turn, shown)
            reply = await self._reply(call, turn, shown)
            await turn.end(_outcome(reply))
        return reply

    def _keep(self, turn: OpenTurn, shown: LiveTurn) -> None:
        """Keep the turn and send its thread at once: a client that loses the connection can find its answer there."""
        turn.keep()
        self.live.stored(shown, turn.number)

    async def _reply(self, call: Call, turn: OpenTurn, shown: LiveTurn) -> Reply:
        if self.running.draining:  # the drain may have begun while the call waited for its turn
            raise cut_off(stopping=True)
        call, live = replace(call, history=turn.history.messages), self.response.events is not None
        async with begun(self.agent, call, self.running, live=live, modes=_MODES) as events:
            async for event in events:
                match event:
                    case Admitted() if self._new is not None:
                        self._keep(turn, shown)
                    case Asked():
                        await self._ask(event, turn, shown)
                    case QuestionClosed(question_id, action):
                        await self.threads.questions.close_one(turn.lease, question_id)
                        shown.close(question_id, action)
                    case Replied(reply):
                        return reply
                    case _ if (document := answers.event_of(event)) is not None:
                        shown.send(document)
        raise AssertionError("the last event is the reply")

    async def _ask(self, asked: Asked, turn: OpenTurn, shown: LiveTurn) -> None:
        """Store a question before clients hear of it: they may answer at another process, or after a reload."""
        try:
            await self.threads.questions.open(turn.lease, asked.question, asked.answer)
        except ThreadsUnavailableError:
            if not asked.answer.done():
                asked.answer.set_result(UNASKABLE)
        if not asked.answer.done():
            shown.ask(asked.question)


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
    return Outcome(message_of(reply), reply.stop_reason, usage)
