"""Calls of MCP clients that become tasks (`io.modelcontextprotocol/tasks`): they go on without a request.

Until then a call is a `WaitingCall`. Then its course and its questions are stored, and requests to any process of the
gateway ask for it. After its process was killed or stopped, another one goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.events.progress import ProgressCounter
from pallas_gateway.core.call_request import CallRequest
from pallas_gateway.core.long_calls.long_call import LongCall, task_of
from pallas_gateway.core.long_calls.records import TooManyTasksError
from pallas_gateway.core.waiting_calls import WaitingCall
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.events.events import Event
    from pallas_gateway.calls.events.queue import EventQueue
    from pallas_gateway.calls.questions import Answer, Mode, Question
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.recorder import LatestStep
    from pallas_gateway.core.long_calls.records import ClaimedTask, NewTask
    from pallas_gateway.doors.mcp.tasks import McpTasks

NOT_YET_SECONDS = 0.1
"""Pause before a call that waits for its slot is looked at again."""
_log = logging.getLogger("pallas.tasks_of_clients")


class TaskCall(LongCall, WaitingCall):
    """A call that may become a task.

    Args:
        agent: answers.
        call: what is asked.
        modes: of questions that the client supports.
        tasks: of the gateway.
        arguments: of the tool, as the client gave them.
        claimed: the task, if another process has begun it.
    """

    def __init__(  # noqa: PLR0913  what a request says of its call
        self,
        agent: HostedAgent,
        call: Call,
        modes: Collection[Mode],
        tasks: McpTasks,
        arguments: Mapping[str, Any],
        *,
        claimed: ClaimedTask | None = None,
    ) -> None:
        call = replace(call, may_become_task=True)
        super().__init__(agent, call, modes, long_calls=tasks.long_calls, claimed=claimed)
        self.ask_seconds = tasks.limits.ask_seconds
        self.sink = _Steps(self.events, self.step)
        self._tasks = tasks
        self._arguments = arguments
        self._is_refused = False

    # Becoming a task

    @override
    def until_asked(self, work: asyncio.Task[Reply]) -> asyncio.Task[Any]:
        """Return a task that ends with the call, with its next question, or when the call has become a task."""
        if not self.declares_tasks or self._tasks.settings is None:
            return super().until_asked(work)
        return asyncio.create_task(self._until_task(work), name="next question, or task")

    async def _until_task(self, work: asyncio.Task[Reply]) -> None:
        drain = asyncio.get_running_loop().create_future()
        due = self.call.began + self._tasks.limits.after_seconds
        with self.agent.calls.ended_by_drain(lambda: None if drain.done() else drain.set_result(None)):
            ends: list[asyncio.Future[Any]] = [work, self.asked, drain]
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
        async with self.changing:
            if self._instance is None or self.open or work.done():
                return NOT_YET_SECONDS
            try:
                row = await self.become_task()
            except (DatabaseUnavailableError, TooManyTasksError) as error:
                if not self._is_refused:
                    about = {"agent": self.agent.name, "call_id": self.call.call_id, "reason": error.reason}
                    # The call goes on with its request; logged once.
                    _log.warning("call becomes no task", extra=about)
                self._is_refused = True
                return max(self._tasks.limits.after_seconds, 1.0)
            if row is not None:
                self.created = self._tasks.created(row)
        self.extend(self._tasks.limits.timeout_seconds)
        self._tasks.note_created(self.call)
        self._tasks.spawn(self.finish(work, CallRequest(self.agent, self.call)))
        return None

    @override
    def new_task(self) -> NewTask:
        request, limits = {"arguments": self._arguments, "modes": [*self.modes]}, self._tasks.limits
        can_move = self.journal is not None and self.call.caller.bearer is None
        of_client = {"seconds": limits.ttl_seconds, "most": limits.most_per_caller}
        return task_of(self.agent, self.call, request, can_move=can_move, **of_client)

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
        try:
            await self.worked(work)
            with request.answering():
                request.ended(self.result_of(work))
            if self.recorder is not None and not self.recorder.is_lost:
                await self._tasks.ended(self, self.recorder.held, request)
        finally:
            self.end_task()

    @override
    def lose(self) -> None:
        if self.recorder is not None and self.recorder.was_cancelled:
            self.cancel(self.call.caller.name)
        self.cut()

    @override
    async def put(self, question: Question) -> Answer:
        """Return the answer that the client gives with a later request, if the call is a task at any process."""
        async with self.changing:  # a question that arises while the call becomes a task is the task's
            is_task = self.recorder is not None
        return await (super().put(question) if is_task else WaitingCall.put(self, question))


class _Steps:
    """The `EventSink` of a call: its latest step is shown to clients that ask for its task."""

    def __init__(self, events: EventQueue, latest: LatestStep) -> None:
        self._events = events
        self._latest = latest
        self._counter = ProgressCounter()

    def put(self, event: Event) -> None:
        if (progress := self._counter.of(event)) is not None:
            self._latest.text = cleaned(progress.message)
        self._events.put(event)
