"""Calls of MCP clients that become tasks (`io.modelcontextprotocol/tasks`): they go on without a request.

Until then a call is a `WaitingCall`. Then its course and its questions are stored, and requests to any process of the
gateway ask for it. After its process was killed or stopped, another one goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.questions import EXPIRED, Answer
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.events.progress import ProgressCounter
from pallas_gateway.hosting.call_request import CallRequest
from pallas_gateway.hosting.waiting_calls import WaitingCall
from pallas_gateway.long_calls.recorder import Adopted
from pallas_gateway.long_calls.records import TooManyTasksError
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Mode, Question
    from pallas_gateway.events.events import Event
    from pallas_gateway.events.queue import EventQueue
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.long_calls.recorder import TaskRecorder
    from pallas_gateway.mcp_server.tasks import McpTasks

NOT_NOW = ("agent_unavailable", "audit_unavailable", "busy", "limited")
"""Refusals of a call with which this process goes on: it, or another one, tries again."""
NOT_YET_SECONDS = 0.1
"""Pause before a call that waits for its slot is looked at again."""
_log = logging.getLogger("pallas.tasks_of_clients")


class TaskCall(WaitingCall):
    """A call that may become a task.

    Args:
        agent: answers.
        call: what is asked.
        modes: of questions that the client supports.
        tasks: of the gateway.
        arguments: of the tool, as the client gave them.

    Attributes:
        recorder: stores the course of a call that is a task.
        can_move: another process can go on with the task.
        is_continued: another process has begun the task.
    """

    def __init__(
        self, agent: HostedAgent, call: Call, modes: Collection[Mode], tasks: McpTasks, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__(agent, replace(call, may_become_task=True), modes)
        self.recorder: TaskRecorder | None = None
        self.can_move = False
        self.is_continued = call.recorder is not None
        self.ask_seconds = tasks.limits.ask_seconds
        self.arguments = arguments
        self.sink = self._steps = _Steps(self.events)
        self._tasks = tasks
        self._changing = asyncio.Lock()  # a question that arises while the call becomes a task is the task's
        self._is_cut = self._is_refused = False

    # Becoming a task

    @override
    def until_asked(self, work: asyncio.Task[Reply]) -> asyncio.Task[Any]:
        """Return a task that ends with the call, with its next question, or when the call has become a task."""
        if not self.declares_tasks or self._tasks.settings is None:
            return super().until_asked(work)
        return asyncio.create_task(self._until_task(work), name="next question, or task")

    async def _until_task(self, work: asyncio.Task[Reply]) -> None:
        begin_of_drain = asyncio.get_running_loop().create_future()
        due = self.call.began + self._tasks.limits.after_seconds

        def hurry() -> None:
            if not begin_of_drain.done():
                begin_of_drain.set_result(None)

        with self.agent.calls.ended_by_drain(hurry):
            ends: list[asyncio.Future[Any]] = [work, self.asked, begin_of_drain]
            while True:
                left = max(due - monotonic(), 0)
                await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if work.done() or self.asked.done():
                    return
                if (pause := await self._try_to_become_task(work)) is None:
                    return
                due, ends = monotonic() + pause, ends[:2]

    async def _try_to_become_task(self, work: asyncio.Task[Reply]) -> float | None:
        """Store the task; return None if the call is one now, else the seconds until the next attempt."""
        async with self._changing:
            if self._instance is None or self.open or work.done():
                return NOT_YET_SECONDS
            new = self._tasks.new_task(self)
            self.can_move = new.can_move
            recorder, spending = self._tasks.recorder(new.held), self.call.spending
            recorder.step = self._steps.latest
            adopted = Adopted(self.journal, spending.tokens, spending.cost)
            try:
                row = await recorder.begin(new, adopted, self._tasks.long_calls)
            except (DatabaseUnavailableError, TooManyTasksError) as error:
                if not self._is_refused:
                    about = {"agent": self.agent.name, "call_id": self.call.call_id, "reason": error.reason}
                    # The call goes on with its request, as without tasks; it is tried again, and logged once.
                    _log.warning("call becomes no task", extra=about)
                self._is_refused = True
                return max(self._tasks.limits.after_seconds, 1.0)
            except asyncio.CancelledError:  # its client has left, and does not know of the task
                recorder.lose()
                self._tasks.forget(new.held)
                raise
            if row is not None:
                self.created = self._tasks.created(row)
            self.continue_with(recorder)
        self.extend(self._tasks.limits.timeout_seconds)
        self._tasks.note_created(self.call)
        self._tasks.spawn(self.finish(work, CallRequest(self.agent, self.call)))
        return None

    def continue_with(self, recorder: TaskRecorder) -> None:
        """Store the course of the call by `recorder` from now on, which has its task."""
        self.recorder = self._steps.recorder = recorder
        recorder.on_lost = self._lose
        self._tasks.long_calls.begin(recorder)

    @override
    def leave(self) -> None:
        if self.recorder is None:
            super().leave()
        else:
            self.events.lose()
            self.work = None  # see `abandon`

    # The end

    async def finish(self, work: asyncio.Task[Reply], request: CallRequest) -> None:
        """Wait for the end of the task's run, and store it; `request` gets the outcome."""
        if (recorder := self.recorder) is None:
            return
        try:
            with self.agent.calls.ended_by_drain(self._leave_to_others):
                await asyncio.wait({work})
            await recorder.__aexit__()
        finally:
            self._tasks.long_calls.end(recorder.held)
            recorder.on_lost, recorder.on_boundary = lambda: None, None  # which refer to this call
        with request.answering():
            request.ended(self.result_of(work))
        if not recorder.is_lost:
            await self._tasks.end(self, recorder.held, request)

    def goes_on_after(self, reason: str) -> bool:
        """Return whether another process goes on with the call after it has ended here for this reason."""
        if self.recorder is None:
            return False
        if self.recorder.is_lost:
            return not self.recorder.was_cancelled
        return self.can_move and (reason == "stopped" or (self.is_continued and reason in NOT_NOW))

    def _leave_to_others(self) -> None:
        if self.recorder is not None and self.can_move:
            self.recorder.leave_by(self.cut)

    def _lose(self) -> None:
        if self.recorder is not None and self.recorder.was_cancelled:
            self.cancel(self.call.caller.name)
        self.cut()

    @override
    def cut(self) -> None:
        self._is_cut = True  # its open questions stay, if another process goes on
        super().cut()

    # Questions

    @override
    async def put(self, question: Question) -> Answer:
        """Return the answer that the client gives with a later request, if the call is a task at any process."""
        async with self._changing:
            recorder = self.recorder
        if recorder is None:
            return await super().put(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self.journal.waiting(question) if self.journal is not None else ()
        with self._closing(recorder, question, answer), self.agent.calls.ended_by_drain(self.cut):
            await recorder.ask(question, waiting, answer)
            await asyncio.wait({answer}, timeout=self._tasks.limits.ask_seconds)
        return answer.result() if answer.done() else EXPIRED

    @contextmanager
    def _closing(self, recorder: TaskRecorder, question: Question, answer: asyncio.Future[Answer]) -> Iterator[None]:
        try:
            yield
        finally:
            recorder.forget(question.id)
            if not (answer.done() or self._is_cut or self.agent.calls.draining):
                self._tasks.spawn(recorder.close(question.id, EXPIRED))


class _Steps:
    """The `EventSink` of a call: its latest step is shown to clients that ask for its task."""

    def __init__(self, events: EventQueue) -> None:
        self.latest = ""
        self.recorder: TaskRecorder | None = None
        self._events = events
        self._counter = ProgressCounter()

    def put(self, event: Event) -> None:
        if (progress := self._counter.of(event)) is not None:
            self.latest = cleaned(progress.message)
            if self.recorder is not None:
                self.recorder.step = self.latest
        self._events.put(event)
