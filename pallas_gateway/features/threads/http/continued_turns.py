"""Turns of threads of ended processes, with which this process goes on by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, override

from pallas_gateway.core.call_books import note_end_of_task
from pallas_gateway.core.long_calls.continued_tasks import ContinuedTasks
from pallas_gateway.features.threads.http.live_turn import LiveExchange
from pallas_gateway.features.threads.http.stored_turn import turn_in
from pallas_gateway.features.threads.http.turn_call import begin_again
from pallas_gateway.features.threads.records import ClaimedExchange, ExchangeOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Call
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.records import ClaimedTask
    from pallas_gateway.features.threads.http.turn_call import Services
    from pallas_gateway.features.threads.service import Threads
    from pallas_gateway.shared.database.tables import AnyRow


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
