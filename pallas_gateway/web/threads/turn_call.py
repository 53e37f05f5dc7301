"""The call of a turn: its questions are stored first, then put to the clients of the turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, override

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.questions import MODES, UNASKABLE
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.events.answer_text import LIVE_SECONDS
from pallas_gateway.events.queue import StreamOptions
from pallas_gateway.hosting.running_call import RunningCall
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.question_store import Waits
from pallas_gateway.threads.records import CheckpointRecord

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.threads.records import Lease
    from pallas_gateway.web.threads.turn_run import TurnRun


class TurnCall(RunningCall):
    """The call of a turn, which puts its questions to the clients of the turn; an async context manager.

    A question is stored before clients receive it: they may answer at another process, or after a reload. The end of a
    question is stored while the call continues. A write that has begun ends before the turn does: `__aexit__` waits.

    Attributes:
        is_over: the call has ended; its open questions end with the turn, or stay for another process.
        can_be_resumed: another process can continue the call from where it waited last.
    """

    def __init__(self, call: Call, lease: Lease, run: TurnRun) -> None:
        options = StreamOptions(deltas=run.is_streamed, text_seconds=LIVE_SECONDS)
        super().__init__(run.agent, call, run.shown, options)
        self.modes = MODES
        self.is_over = self.can_be_resumed = False
        self._lease = lease
        self._run = run
        self._open: dict[str, asyncio.Future[Answer]] = {}
        self._writing = asyncio.Lock()  # two writes at once would each store where the call waits
        self._writes = TaskOwner()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._writes.__aexit__()

    async def work(self) -> Reply:
        """Return the reply.

        Raises:
            CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
        """
        if self.agent.calls.draining:  # the drain may have begun while the call waited for its turn
            raise cut_off(stopping=True)
        async with self:
            work = self.begin()
            try:
                await asyncio.wait({work})
            finally:
                self.give_up()
        return self.result_of(work)

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
                self._run.shown.ask(question)
            with self.agent.calls.ended_by_drain(lambda: None if answer.done() else self.give_up()):
                return await answer
        finally:
            del self._open[question.id]
            if not self.is_over:
                has_answer = answer.done() and not answer.cancelled()
                self._run.shown.close(question.id, answer.result().action if has_answer else "cancel")
                self._writes.spawn(self._close(question.id), name="end of a question", report=True)

    async def _store(self, question: Question, answer: asyncio.Future[Answer]) -> bool:
        """Store a question; return False if the database cannot be used, or the call has ended."""
        async with self._writing:
            if self.is_over:
                return False
            try:
                await self._run.services.threads.questions.open(self._lease, question, answer, self._waits())
            except DatabaseUnavailableError:
                return False
        return True

    async def _close(self, question_id: str) -> None:
        async with self._writing:
            if not self.is_over:  # else the open questions end with the turn, or stay for another process
                await self._run.services.threads.questions.close_one(self._lease, question_id, self._waits())

    def give_up(self) -> None:
        """End the call, if it runs."""
        self.is_over = True
        self.cut()

    def _waits(self) -> Waits | None:
        """Return where the call waits for answers to the open questions; None if it cannot be resumed from there."""
        questions = {id_ for id_, answer in self._open.items() if not answer.done()}
        checkpoint = self.checkpoint(questions) if questions else None
        self.can_be_resumed = checkpoint is not None
        run = self._run
        return (
            Waits(CheckpointRecord(checkpoint, run.params, run.messages), run.services.ask_seconds)
            if checkpoint
            else None
        )
