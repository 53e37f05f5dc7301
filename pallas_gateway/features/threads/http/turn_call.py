"""The call of an agent in a turn of a thread: its events for clients, its questions, and what is stored."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.conversation import history_rows, parse_history
from pallas_gateway.calls.events.answer_text import LIVE_SECONDS, text_of
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.calls.parameters import parse
from pallas_gateway.calls.questions import MODES
from pallas_gateway.core.call_books import note_end_of_task
from pallas_gateway.core.long_calls.continued_tasks import ContinuedTasks
from pallas_gateway.core.long_calls.long_call import NOT_NOW, LongCall, task_of
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.features.threads.http.live_turn import LiveExchange
from pallas_gateway.features.threads.http.responses import message_of
from pallas_gateway.features.threads.http.stored_turn import turn_in
from pallas_gateway.features.threads.records import ClaimedExchange, ExchangeOutcome
from pallas_gateway.tasks import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Action, Question
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.recorder import TaskRecorder
    from pallas_gateway.core.long_calls.records import ClaimedTask, NewTask
    from pallas_gateway.features.threads.http.live_turn import LiveExchange, LiveExchanges
    from pallas_gateway.features.threads.records import ClaimedExchange, ThreadLease
    from pallas_gateway.features.threads.service import Threads
    from pallas_gateway.features.threads.store import MakeTask
    from pallas_gateway.features.threads.turns import OpenExchange
    from pallas_gateway.shared.database.tables import AnyRow

_LEFT = "The gateway is stopping. Another process goes on: read the thread's messages in a moment."
_LEFT_ASKING = "The gateway is stopping. The question stays open: answer it again in a moment."
LIFE_SECONDS = 86_400.0
"""Of a task of a turn."""
_log = logging.getLogger("pallas.threads")


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of the gateway that turns need.

    Attributes:
        threads: where threads and turns are stored.
        live: turns of this process.
        settings: of the gateway at present.
    """

    threads: Threads
    live: LiveExchanges
    settings: GatewaySettings


class ExchangeCall(LongCall):
    """The call of a turn, which puts its questions to the clients of the turn.

    A call in the background is a task from its start, any other one from its first question on.

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
        shown: LiveExchange,
        *,
        is_streamed: bool,
        params: Mapping[str, Any] | None = None,
        messages: Sequence[Any] | None = None,
        claimed: ClaimedTask | None = None,
    ) -> None:
        options = StreamOptions(deltas=is_streamed, text_seconds=LIVE_SECONDS)
        super().__init__(agent, call, shown, options, long_calls=services.threads.long_calls, claimed=claimed)
        self.modes = MODES
        self.ask_seconds = services.settings.ask_seconds
        # An agent that stops, or has not started yet, does not say.
        self.can_move = claimed is not None or agent.keeps_journal
        self._services = services
        self._shown = shown
        self._params = params
        self._messages = messages
        self._turn: OpenExchange

    @property
    def first_task(self) -> MakeTask | None:
        """What makes the task of a turn that is one from its start; None for any other turn.

        A call in the background that could not go on elsewhere, as it needs its caller's token, is none.
        """
        goes_on = self.can_move and self.call.caller.bearer is None
        return self._task_of if self._shown.in_background and goes_on else None

    def _task_of(self, lease: ThreadLease, *, can_move: bool = True) -> NewTask:
        request = {"params": self._params, "messages": self._messages, "background": self._shown.in_background}
        of_turn = {"thread_id": lease.thread_id, "turn": lease.turn, "holder": lease.holder}
        seconds = max(LIFE_SECONDS, self._services.settings.ask_seconds)
        return task_of(self.agent, self.call, request, can_move=can_move, seconds=seconds, **of_turn)

    @override
    def new_task(self) -> NewTask:
        return self._task_of(self._turn.lease, can_move=self.can_move and self.journal is not None)

    async def run(self, opened: AbstractAsyncContextManager[OpenExchange]) -> Reply:
        """Have the agent answer within a turn of the thread, and store the outcome."""
        try:
            async with opened as turn:
                return await self._answer_in(turn)
        finally:
            self.end_task()  # its end is stored

    async def _answer_in(self, turn: OpenExchange) -> Reply:
        shown = self._shown
        self._turn = turn
        shown.left_out = turn.history.left_out if self._messages is None else 0
        shown.on_left = turn.look.set  # another process may have cancelled the turn
        if shown.is_first:
            shown.on_admitted = partial(self._keep, turn)
        else:
            self._keep(turn)
        if turn.lease.task is not None:
            self.record(turn.lease.task)
        self.call = self._completed(turn)
        try:
            rest, reply = shown.said.ending(await self._answer())
            shown.add_text(rest)
            await turn.end(self._outcome_of(reply))
        except GatewayError as error:
            if turn.is_ended or not self.goes_on_after(error.reason):
                raise
            await turn.leave(self.pause_after(error.reason))
            if error.reason in NOT_NOW:
                raise
            asks = self.recorder is not None and self.recorder.open_questions
            raise CallFailedError(_LEFT_ASKING if asks else _LEFT, reason="stopping") from error
        finally:
            shown.on_admitted = lambda: None  # it refers to the turn: a reference cycle of the whole call
        return reply

    @override
    def lose(self) -> None:
        self._turn.look.set()  # the lease of the thread is lost, too

    def _completed(self, turn: OpenExchange) -> Call:
        """Return the call with its history."""
        if self._services.settings.keep_tool_results:
            turn.step_log = self._services.threads.step_log()
        call = replace(self.call, step_log=turn.step_log)
        if self.claimed is not None:
            history, parameters = history_rows(self._messages), parse(self._params, self.agent.settings)
            call = replace(call, history=at_once(parse_history(history))[0], parameters=parameters)
        return replace(call, history=turn.history.messages) if self._messages is None else call

    def _keep(self, turn: OpenExchange) -> None:
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
        await self.worked(work := self.begin())
        return self.result_of(work)

    @override
    def record_by(self, recorder: TaskRecorder) -> None:
        super().record_by(recorder)
        self._turn.lease = replace(self._turn.lease, task_id=recorder.held.task_id)

    @override
    def show_question(self, question: Question) -> None:
        self._shown.ask(question)

    @override
    def show_answer(self, question_id: str, action: Action) -> None:
        self._shown.close(question_id, action)

    def _outcome_of(self, reply: Reply) -> ExchangeOutcome:
        failed = reply.failure is not None
        return ExchangeOutcome(
            None if failed else message_of(reply),
            reply.stop_reason,
            reply.usage.as_dict(),
            reply.failure,
            text_of(reply) if failed else None,
            model=reply.turns[-1].model if reply.turns else None,
            params=self._params,
        )


def begin_again(
    agent: HostedAgent, call: Call, services: Services, shown: LiveExchange, claimed: ClaimedExchange
) -> None:
    """Go on with a turn in this process; `shown` has its events and its end."""
    request, task, lease = claimed.task.request, claimed.task, claimed.lease
    about_turn = {"agent": task.agent, "call_id": task.call_id, "thread_id": lease.thread_id, "turn": lease.turn}
    # From the last stored step of a process that has ended or left it.
    _log.info("turn continued", extra={**about_turn, "why": task.why, "run": task.runs, "steps": len(task.rows)})
    shown.in_background = shown.in_background or bool(request.get("background"))
    shown.number = lease.turn  # so a client that leaves at once leaves it running
    about = {"params": request["params"], "messages": request["messages"], "claimed": task}
    running = ExchangeCall(agent, call, services, shown, is_streamed=True, **about)
    room = services.threads.room_for(agent.context_window(None)) if request["messages"] is None else None
    services.live.begin(shown, running.run(services.threads.turns.claimed_turn(claimed, room=room)))


class ContinuedExchanges(ContinuedTasks):
    """Goes on with turns; `services` returns what they need, by the present configuration."""

    api = "threads"

    def __init__(self, gateway: Gateway, threads: Threads, services: Callable[[], Services]) -> None:
        super().__init__(gateway, threads.long_calls)
        self._threads = threads
        self._services = services

    @override
    async def decode(self, task: ClaimedTask, agent: HostedAgent, asked: Call) -> Call:
        turn = await turn_in(self._threads.store, task.thread_id, task.turn)
        return replace(asked, message=turn.question, conversation_id=task.thread_id)

    @override
    async def run(self, task: ClaimedTask, agent: HostedAgent, request: CallRequest) -> None:
        shown = LiveExchange(task.thread_id, is_first=False, in_background=True)
        with request.answering():
            begin_again(agent, request.call, self._services(), shown, ClaimedExchange(task))
            request.ended(await shown.ended())

    @override
    async def end(self, task: ClaimedTask, reason: str, why: str) -> None:
        await self._threads.store.end_turn(ClaimedExchange(task).lease, ExchangeOutcome(error_reason=reason, error=why))

    @override
    async def give_up(self, sql: AsyncConnection, task: AnyRow) -> bool:
        if (reason := await self._threads.store.give_up(sql, task)) is not None:
            note_end_of_task(self._gateway.trail, task, reason)
        return reason is not None
