"""A call that is a task, or may become one: another process goes on with it after this one has ended.

The doors say what a run needs to begin again, when a call becomes a task, and what its end is.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.questions import EXPIRED, UNASKABLE, Answer
from pallas_gateway.core.long_calls.recorder import LatestStep, TaskRecorder
from pallas_gateway.core.long_calls.records import LONGEST_REQUEST, NewTask
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Action, Question
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.recorder import Asked
    from pallas_gateway.core.long_calls.records import ClaimedTask, Held
    from pallas_gateway.core.long_calls.service import LongCalls
    from pallas_gateway.shared.database.tables import AnyRow

NOT_NOW = ("agent_unavailable", "audit_unavailable", "busy", "limited")
"""Refusals of a call with which this process goes on: it, or another one, tries again."""
TRY_AGAIN_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0


def task_of(
    agent: HostedAgent, call: Call, request: Mapping[str, Any], *, can_move: bool = True, **of_door: Any
) -> NewTask:
    """Return the task of a call; `request` is what a run needs to begin again."""
    caller, cleaned = call.caller, cleaned_data(request)
    is_short = len(json.dumps(cleaned)) <= LONGEST_REQUEST
    return NewTask(
        owner=caller.owner or "",
        account=caller.account,
        principal=caller.principal,
        agent=agent.name,
        agent_id=agent.id,
        api=call.api,
        call_id=call.call_id,
        conversation_id=call.conversation_id,
        request=cleaned if is_short else None,
        by_owner=caller.bearer is not None,  # no other process has that token
        can_move=can_move and is_short,
        **of_door,
    )


class LongCall(RunningCall, ABC):
    """A call whose course is stored from when on it is a task.

    A question is stored before clients receive it: they may answer at another process, or after a reload. A write that
    has begun ends before the call does.

    Attributes:
        long_calls: the tasks of this process.
        recorder: stores the course of a call that is a task.
        claimed: the task, if another process has begun it.
        can_move: another process can go on with it.
        step: the latest one, stored with the course.
        changing: held while a question is stored, and while the call becomes a task.
        is_cut: open questions now end with the call, or stay for another process.
    """

    def __init__(self, *of_call: Any, long_calls: LongCalls, claimed: ClaimedTask | None = None) -> None:
        super().__init__(*of_call)
        self.long_calls = long_calls
        self.recorder: TaskRecorder | None = None
        self.claimed = claimed
        self.can_move = True
        self.step = LatestStep()
        self.changing = asyncio.Lock()
        self.is_cut = False
        self._writes = TaskOwner()

    # Becoming a task

    @abstractmethod
    def new_task(self) -> NewTask:
        """Return the task that the call becomes now."""

    async def become_task(self, asked: Asked | None = None) -> AnyRow | None:
        """Store the task of the running call, with its course so far and perhaps its first question; return its row.

        Raises:
            TooManyTasksError: the caller may have no further task; as the next one.
            DatabaseUnavailableError: it is not stored; steps of the call are not either.
        """
        new = self.new_task()
        recorder = self._recorder_of(new.held)
        try:
            row = await recorder.begin(new, self.long_calls, self.journal, self.call.spending, asked)
        except (DatabaseUnavailableError, asyncio.CancelledError):
            self.long_calls.forget(new.held)  # it may be stored nevertheless, and its client does not know of it
            raise
        self.can_move = new.can_move
        self.record_by(recorder)
        return row

    def record(self, held: Held) -> None:
        """Store the course of a call that has not begun and whose task is stored already."""
        self.record_by(recorder := self._recorder_of(held))
        given = self.claimed.answers if self.claimed is not None else self.call.given
        self.call = replace(self.call, recorder=recorder, given=given)

    def _recorder_of(self, held: Held) -> TaskRecorder:
        return TaskRecorder(self.long_calls.database, held, self.ask_seconds or 0.0, self.claimed, self.step)

    def record_by(self, recorder: TaskRecorder) -> None:
        """Store the course of the call by `recorder` from now on, which has its task."""
        self.recorder, self.is_task = recorder, True
        recorder.on_lost = self.lose
        self.long_calls.begin(recorder)

    # The end of a run

    async def worked(self, work: asyncio.Task[Reply]) -> None:
        """Wait for the end of a run, which a drain leaves to another process after the present step, if it can move."""
        try:
            async with self._writes:
                try:
                    with self.agent.calls.ended_by_drain(self._leave_to_others):
                        await asyncio.wait({work})
                finally:
                    self.cut()
        finally:
            if self.recorder is not None:
                await self.recorder.end()

    def _leave_to_others(self) -> None:
        if (
            (recorder := self.recorder) is not None
            and self.can_move
            and recorder.can_move
            and self.call.caller.bearer is None
        ):
            recorder.on_boundary = self.cut

    def end_task(self) -> None:
        """Run the task no more: its end is stored, or it is left."""
        if (recorder := self.recorder) is not None:
            self.long_calls.end(recorder.held)
            recorder.on_lost, recorder.on_boundary = lambda: None, None  # which refer to this call

    def lose(self) -> None:
        """End the run, because the task was cancelled, or is that of another process."""
        self.cut()

    @override
    def cut(self) -> None:
        self.is_cut = True
        super().cut()

    def goes_on_after(self, reason: str) -> bool:
        """Return whether another process goes on with the call after it has ended here for this reason."""
        if (recorder := self.recorder) is None:
            return False
        if recorder.is_lost:
            return not recorder.was_cancelled
        if self.claimed is not None and reason in NOT_NOW:
            return True
        moves = self.can_move and recorder.can_move and (self.is_admitted or self.claimed is not None)
        return reason == "stopped" and moves and (self.call.caller.bearer is None or bool(recorder.open_questions))

    def pause_after(self, reason: str) -> float:
        """Return the seconds after which another process may go on: longer after each run that was refused."""
        runs = self.claimed.runs if self.claimed is not None else 0
        return min(TRY_AGAIN_SECONDS * 2**runs, LONGEST_PAUSE_SECONDS) if reason in NOT_NOW else 0

    # Questions

    @override
    async def put(self, question: Question) -> Answer:
        """Return the answer that a client gives, at this or another process; the first question makes the task."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        storing = self._writes.spawn(self._store(question, answer), name="question of a task")
        try:
            if not await asyncio.shield(storing):
                return UNASKABLE
            if not answer.done():
                self.show_question(question)
            with self.agent.calls.ended_by_drain(lambda: None if answer.done() else self.cut()):
                await asyncio.wait({answer}, timeout=self.ask_seconds)
            return answer.result() if answer.done() else EXPIRED
        finally:
            if not self.is_cut and (answer.done() or not self.agent.calls.draining):
                self._close(question, answer.result() if answer.done() else None)

    async def _store(self, question: Question, answer: asyncio.Future[Answer]) -> bool:
        """Store a question; return False if the database cannot be used, or the call has ended."""
        async with self.changing:
            if self.is_cut:
                return False
            try:
                if self.recorder is None:
                    await self.become_task((question, answer))
                else:
                    waiting = self.journal.waiting(question) if self.journal is not None else ()
                    await self.recorder.ask(question, waiting, answer)
            except DatabaseUnavailableError:
                return False
        return True

    def _close(self, question: Question, answer: Answer | None) -> None:
        self.show_answer(question.id, answer.action if answer is not None else "cancel")
        if self.recorder is not None:
            self.recorder.open_questions.pop(question.id, None)
            if answer is None:
                closing = self.recorder.close(question.id, EXPIRED)
                self._writes.spawn(closing, name="end of a question", report=True)

    def show_question(self, question: Question) -> None:
        """Show clients that read the events a question that is open now."""

    def show_answer(self, question_id: str, action: Action) -> None:
        """Show them that it is open no more."""
