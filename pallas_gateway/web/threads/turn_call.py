"""The call of an agent in a turn of a thread: its events for clients, its questions, and what is stored."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.conversation import history_rows, parse_history
from pallas_gateway.calls.parameters import parse
from pallas_gateway.calls.questions import MODES, UNASKABLE, Answer
from pallas_gateway.database.connections import tried_again
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.database.tables import tasks
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.events.answer_text import LIVE_SECONDS, text_of
from pallas_gateway.events.queue import StreamOptions
from pallas_gateway.hosting.running_call import RunningCall
from pallas_gateway.long_calls.recorder import Adopted, TaskRecorder
from pallas_gateway.long_calls.records import LONGEST_REQUEST, NewTask
from pallas_gateway.long_calls.rows import end
from pallas_gateway.tasks import TaskOwner, at_once
from pallas_gateway.telemetry.redaction import cleaned_data
from pallas_gateway.threads.records import TurnCancelledError, TurnOutcome
from pallas_gateway.web.api.requests import owner_of
from pallas_gateway.web.threads.responses import message_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Question
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.long_calls.records import ClaimedTask, Held
    from pallas_gateway.threads.live_turns import LiveTurns
    from pallas_gateway.threads.records import ClaimedTurn, Lease
    from pallas_gateway.threads.service import Threads
    from pallas_gateway.threads.store import MakeTask
    from pallas_gateway.threads.turns import OpenTurn
    from pallas_gateway.web.threads.live_turn import LiveTurn


_LEFT = "The gateway is stopping. Another process goes on: read the thread's messages in a moment."
_LEFT_ASKING = "The gateway is stopping. The question stays open: answer it again in a moment."
_NOT_NOW = ("agent_unavailable", "audit_unavailable", "busy", "limited")
"""Refusals of a call with which this process goes on: it, or another one, tries again."""
TRY_AGAIN_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
LIFE_SECONDS = 86_400.0
"""Of a task of a turn."""
_log = logging.getLogger("pallas.threads")


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of the gateway that turns need.

    Attributes:
        threads: where threads and turns are stored.
        live: turns of this process.
        queue_seconds: longest wait for another message of the thread.
        ask_seconds: time for an answer.
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

    A call in the background is a task from its start, any other one from its first question on: its course is stored,
    and another process goes on with it after this one has ended. A question is stored before clients receive it: they
    may answer at another process, or after a reload. A write that has begun ends before the turn does.

    Args:
        agent: answers.
        call: without the history of the thread.
        services: of the gateway.
        shown: the turn, for its clients.
        is_streamed: text is sent as the model produces it.
        params: of the message, as the client gave them.
        messages: as the client gave them, instead of the stored history.
        claimed: the task, if another process has begun it.
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
        claimed: ClaimedTask | None = None,
    ) -> None:
        super().__init__(agent, call, shown, StreamOptions(deltas=is_streamed, text_seconds=LIVE_SECONDS))
        self.modes = MODES
        self._services = services
        self._long_calls = services.threads.long_calls
        self._shown = shown
        self._params = params
        self._messages = messages
        self._claimed = claimed
        # An agent that stops, or has not started yet, does not say.
        self._can_move = claimed is not None or agent.keeps_journal
        self._by_owner = call.caller.bearer is not None  # which no other process has
        self._is_cancelled = False
        self._is_over = False  # open questions now end with the turn, or stay for another process
        self._turn: OpenTurn
        self._recorder: TaskRecorder | None = None
        self._open: dict[str, asyncio.Future[Answer]] = {}
        self._writing = asyncio.Lock()  # a first question at a time makes the task
        self._writes = TaskOwner()

    def new_task(self, lease: Lease) -> NewTask:
        """Return the task of the turn of a lease."""
        call, shown = self.call, self._shown
        caller = call.caller
        about = {"params": self._params, "messages": self._messages, "background": shown.in_background}
        request: dict[str, Any] = cleaned_data(about)
        return NewTask(
            owner=owner_of(caller),
            account=caller.account,
            principal=caller.principal,
            agent=self.agent.name,
            agent_id=self.agent.id,
            api="threads",
            call_id=call.call_id,
            request=request,
            by_owner=self._by_owner,
            can_move=self._can_move and len(json.dumps(request)) <= LONGEST_REQUEST,
            thread_id=lease.thread_id,
            turn=lease.turn,
            seconds=max(LIFE_SECONDS, self._services.ask_seconds),
            holder=lease.holder,
        )

    @property
    def first_task(self) -> MakeTask | None:
        """What makes the task of a turn that is one from its start; None for any other turn.

        A call in the background that could not go on elsewhere, as it needs its caller's token, is none.
        """
        goes_on = self._can_move and not self._by_owner
        return self.new_task if self._shown.in_background and goes_on else None

    async def run(self, opened: AbstractAsyncContextManager[OpenTurn]) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        shown = self._shown
        async with opened as turn:
            self._turn = turn
            shown.left_out = turn.history.left_out if self._messages is None else 0
            shown.on_left = turn.look.set  # another process may have cancelled the turn
            if shown.is_first:
                shown.on_admitted = partial(self._keep, turn)
            else:
                self._keep(turn)
            if turn.lease.task is not None:
                self._recorder = self._record(turn.lease.task)
            self.call = self._completed(turn)
            try:
                rest, reply = shown.said.ending(await self._answer())
                shown.add_text(rest)
                await turn.end(self._outcome_of(reply))
            except GatewayError as error:
                if turn.is_ended or not self.goes_on_after(error.reason):
                    raise
                await turn.leave(self._pause_after(error.reason))
                if error.reason in _NOT_NOW:
                    raise
                raise CallFailedError(_LEFT_ASKING if self._open else _LEFT, reason="stopping") from error
            finally:
                shown.on_admitted = lambda: None  # it refers to the turn: a reference cycle of the whole call
                if self._recorder is not None:
                    self._long_calls.end(self._recorder.held)
        return reply

    def _pause_after(self, reason: str) -> float:
        """Return the seconds after which another process may go on: longer after each run that was refused."""
        runs = self._claimed.runs if self._claimed is not None else 0
        return min(TRY_AGAIN_SECONDS * 2**runs, LONGEST_PAUSE_SECONDS) if reason in _NOT_NOW else 0

    def _record(self, held: Held) -> TaskRecorder:
        recorder = TaskRecorder(self._services.threads.database, held, self._services.ask_seconds, self._claimed)
        recorder.on_lost = self._turn.look.set  # the lease of the thread is lost, too
        self._long_calls.begin(recorder)
        return recorder

    def goes_on_after(self, reason: str) -> bool:
        """Return whether another process goes on with the call after it has ended here for this reason."""
        if (recorder := self._recorder) is None or self._is_cancelled:
            return False
        if recorder.is_lost or self._turn.lost is not None:
            return not (recorder.was_cancelled or isinstance(self._turn.lost, TurnCancelledError))
        if self._claimed is not None and reason in _NOT_NOW:
            return True
        moves = self._can_move and (self.is_admitted or self._claimed is not None)
        return reason == "stopped" and moves and (not self._by_owner or bool(self._open))

    def _completed(self, turn: OpenTurn) -> Call:
        """Return the call with its history, and with its course so far."""
        if self._services.keeps_steps:
            turn.step_log = self._services.threads.step_log()
        call = replace(self.call, step_log=turn.step_log, recorder=self._recorder)
        if self._claimed is not None:
            call = replace(
                call,
                history=at_once(parse_history(history_rows(self._messages)))[0],
                parameters=parse(self._params, self.agent.settings),
                given=self._claimed.answers,
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
        async with self._recording(), self._writes:
            work = self.begin()
            try:
                with self.agent.calls.ended_by_drain(self._leave):
                    await asyncio.wait({work})
            except asyncio.CancelledError:
                self._is_cancelled = self._turn.lost is None  # by the owner, or its client has left
                raise
            finally:
                self._give_up()
        return self.result_of(work)

    def _leave(self) -> None:
        """When a drain begins, leave the call to another process after the present step, if it can go on there."""
        if self._recorder is not None and not self._by_owner:
            self._recorder.leave_by(self._give_up)

    @asynccontextmanager
    async def _recording(self) -> AsyncIterator[None]:
        """Store what was noted of the course before the turn ends, or is left."""
        try:
            yield
        finally:
            if self._recorder is not None:
                await self._recorder.__aexit__()

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
            if not self._is_over:
                del self._open[question.id]
                is_given = answer.done() and not answer.cancelled()
                self._shown.close(question.id, answer.result().action if is_given else "cancel")
                if self._recorder is not None:
                    self._recorder.forget(question.id)
                    if not is_given:
                        closing = self._recorder.close(question.id, Answer("expired"))
                        self._writes.spawn(closing, name="end of a question", report=True)

    async def _store(self, question: Question, answer: asyncio.Future[Answer]) -> bool:
        """Store a question; return False if the database cannot be used, or the call has ended."""
        async with self._writing:
            if self._is_over:
                return False
            try:
                if self._recorder is None:
                    await self._become_task(question, answer)
                else:
                    waiting = self.journal.waiting(question) if self.journal is not None else ()
                    await self._recorder.ask(question, waiting, answer)
            except DatabaseUnavailableError:
                return False
        return True

    async def _become_task(self, question: Question, answer: asyncio.Future[Answer]) -> None:
        """Store the task of the call, with its course so far and its first question."""
        task = self.new_task(self._turn.lease)
        task = replace(task, can_move=task.can_move and self.journal is not None)
        spending = self.call.spending
        adopted = Adopted(self.journal, spending.tokens, spending.cost, question, answer)
        recorder = self._record(task.held)
        try:
            await recorder.begin(task, adopted, self._long_calls)
        except DatabaseUnavailableError:
            self._long_calls.end(task.held)
            self._writes.spawn(self._forget(task.id), name="end of a task")  # it may be stored nevertheless
            raise
        self._turn.lease = replace(self._turn.lease, task_id=task.id)
        self._recorder = recorder

    async def _forget(self, task_id: str) -> None:
        database = self._services.threads.database
        with suppress(DatabaseUnavailableError):
            await tried_again(lambda: database.write(lambda sql: end(sql, tasks.c.id == task_id, "cancelled")))

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


def begin_again(agent: HostedAgent, call: Call, services: Services, shown: LiveTurn, claimed: ClaimedTurn) -> None:
    """Go on with a turn in this process; `shown` has its events and its end."""
    request, task, lease = claimed.task.request, claimed.task, claimed.lease
    about_turn = {"agent": task.agent, "call_id": task.call_id, "thread_id": lease.thread_id, "turn": lease.turn}
    # The process that ran a turn has ended, or has left it. This one goes on from the last stored step.
    _log.info("turn continued", extra={**about_turn, "why": task.why, "run": task.runs, "steps": len(task.rows)})
    shown.in_background = shown.in_background or bool(request.get("background"))
    shown.number = lease.turn  # so a client that leaves at once leaves it running
    about = {"params": request["params"], "messages": request["messages"], "claimed": task}
    running = TurnCall(agent, call, services, shown, is_streamed=True, **about)
    room = services.threads.room_for(agent.context_window(None)) if request["messages"] is None else None
    services.live.begin(shown, running.run(services.threads.turns.claimed_turn(claimed, room=room)))
