"""The call of an agent in a turn of a thread: its events for clients, its questions, and what is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.conversation import history_rows, parse_history
from pallas_gateway.calls.parameters import parse
from pallas_gateway.calls.questions import MODES, UNASKABLE
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.errors import CallFailedError
from pallas_gateway.events.answer_text import LIVE_SECONDS, text_of
from pallas_gateway.events.queue import StreamOptions
from pallas_gateway.hosting.running_call import RunningCall
from pallas_gateway.tasks import TaskOwner, at_once
from pallas_gateway.threads.question_store import Waits
from pallas_gateway.threads.records import CheckpointRecord, TurnOutcome
from pallas_gateway.web.threads.responses import message_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.threads.live_turns import LiveTurns
    from pallas_gateway.threads.records import Lease
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


class TurnCall(RunningCall):
    """The call of a turn, which puts its questions to the clients of the turn.

    A question is stored before clients receive it: they may answer at another process, or after a reload. The end of a
    question is stored while the call continues. A write that has begun ends before the turn does.

    Args:
        agent: answers.
        call: without the history of the thread.
        services: of the gateway.
        shown: the turn, for its clients.
        is_streamed: text is sent as the model produces it.
        params: of the message, as the client gave them.
        messages: as the client gave them, instead of the stored history.
        given: answers to questions of a resumed call.
    """

    def __init__(  # noqa: PLR0913  what a request says of its turn
        self,
        agent: HostedAgent,
        call: Call,
        services: Services,
        shown: LiveTurn,
        *,
        is_streamed: bool,
        params: Mapping[str, Any] | None = None,
        messages: Sequence[Any] | None = None,
        given: Mapping[str, Answer] | None = None,
    ) -> None:
        super().__init__(agent, call, shown, StreamOptions(deltas=is_streamed, text_seconds=LIVE_SECONDS))
        self.modes = MODES
        self._services = services
        self._shown = shown
        self._params = params
        self._messages = messages
        self._given = given or {}
        self._resumed: CheckpointRecord | None = None
        self._is_over = False  # open questions now end with the turn, or stay for another process
        self._can_be_resumed = False  # from where it waited last, by another process
        self._lease: Lease
        self._open: dict[str, asyncio.Future[Answer]] = {}
        self._writing = asyncio.Lock()  # two writes at once would each store where the call waits
        self._writes = TaskOwner()

    async def run(self, opened: AbstractAsyncContextManager[OpenTurn]) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        shown = self._shown
        async with opened as turn:
            self._lease = turn.lease
            shown.left_out = turn.history.left_out if self._messages is None else 0
            shown.on_left = turn.look.set  # another process may have cancelled the turn
            if shown.is_first:
                shown.on_admitted = partial(self._keep, turn)
            else:
                self._keep(turn)
            self.call = self._completed(turn)
            try:
                rest, reply = shown.said.ending(await self._answer())
                shown.add_text(rest)
            except CallFailedError as error:
                if error.reason != "stopped" or not self._can_be_resumed:
                    raise
                await turn.leave()
                raise CallFailedError(_LEFT, reason="stopping") from error
            finally:
                shown.on_admitted = lambda: None  # it refers to the turn: a reference cycle of the whole call
            await turn.end(self._outcome_of(reply))
        return reply

    def resume(self, checkpoint: CheckpointRecord) -> None:
        """Go on from where another process has left the call."""
        self._resumed, self._params, self._messages = checkpoint, checkpoint.params, checkpoint.messages
        self._given = {**checkpoint.answers, **self._given}

    def _completed(self, turn: OpenTurn) -> Call:
        """Return the call with its history, and with where another process has left it."""
        if self._services.keeps_steps:
            turn.step_log = self._services.threads.step_log()
        call = replace(self.call, step_log=turn.step_log)
        if self._resumed is not None:
            call = replace(
                call,
                history=at_once(parse_history(history_rows(self._messages)))[0],
                parameters=parse(self._params, self.agent.settings),
                checkpoint=self._resumed.checkpoint,
                given=self._given,
            )
        return replace(call, history=turn.history.messages) if self._messages is None else call

    def _keep(self, turn: OpenTurn) -> None:
        """Keep the turn and send its thread at once: a client that loses the connection can find its answer there."""
        turn.keep()
        self._services.live.stored(self._shown, turn.number)

    async def _answer(self) -> Reply:
        """Return the reply.

        Raises:
            CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
        """
        if self.agent.calls.draining:  # the drain may have begun while the call waited for its turn
            raise cut_off(stopping=True)
        async with self._writes:
            work = self.begin()
            try:
                await asyncio.wait({work})
            finally:
                self._give_up()
        return self.result_of(work)

    def _give_up(self) -> None:
        """End the call, if it runs."""
        self._is_over = True
        self.cut()

    @override
    async def put(self, question: Question) -> Answer:
        """Return the answer that a client gives, at this or another process."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = answer
        storing = self._writes.spawn(self._store(question, answer), name="question of a turn")
        try:
            if not await asyncio.shield(storing):
                return UNASKABLE
            if not answer.done():
                self._shown.ask(question)
            with self.agent.calls.ended_by_drain(lambda: None if answer.done() else self._give_up()):
                return await answer
        finally:
            del self._open[question.id]
            if not self._is_over:
                has_answer = answer.done() and not answer.cancelled()
                self._shown.close(question.id, answer.result().action if has_answer else "cancel")
                self._writes.spawn(self._close(question.id), name="end of a question", report=True)

    async def _store(self, question: Question, answer: asyncio.Future[Answer]) -> bool:
        """Store a question; return False if the database cannot be used, or the call has ended."""
        async with self._writing:
            if self._is_over:
                return False
            try:
                await self._services.threads.questions.open(self._lease, question, answer, self._waits())
            except DatabaseUnavailableError:
                return False
        return True

    async def _close(self, question_id: str) -> None:
        async with self._writing:
            if not self._is_over:
                await self._services.threads.questions.close_one(self._lease, question_id, self._waits())

    def _waits(self) -> Waits | None:
        """Return where the call waits for answers to the open questions; None if it cannot be resumed from there."""
        questions = {id_ for id_, answer in self._open.items() if not answer.done()}
        checkpoint = self.checkpoint(questions) if questions else None
        self._can_be_resumed = checkpoint is not None
        if checkpoint is None:
            return None
        return Waits(CheckpointRecord(checkpoint, self._params, self._messages), self._services.ask_seconds)

    def _outcome_of(self, reply: Reply) -> TurnOutcome:
        failed = reply.failure is not None
        return TurnOutcome(
            None if failed else message_of(reply),
            reply.stop_reason,
            reply.usage.as_dict(),
            reply.failure,
            text_of(reply) if failed else None,
            model=reply.turns[-1].model if reply.turns else None,
            params=self._params,
        )
