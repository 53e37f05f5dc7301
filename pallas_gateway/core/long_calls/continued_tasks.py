"""Tasks of ended processes, with which this process goes on by itself: without a request, and so without a token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import and_

from pallas_gateway.core.call_books import note_end_of_task
from pallas_gateway.core.call_request import requested
from pallas_gateway.core.long_calls.long_call import TRY_AGAIN_SECONDS
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.shared.database.tables import tasks

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Api, Call
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.long_calls.records import ClaimedTask
    from pallas_gateway.core.long_calls.service import LongCalls
    from pallas_gateway.shared.database.tables import AnyRow


class ContinuedTasks(ABC):
    """Goes on with the tasks of one API, which says how one is run and ended."""

    api: Api

    def __init__(self, gateway: Gateway, long_calls: LongCalls) -> None:
        self._gateway = gateway
        self.long_calls = long_calls
        self.long_calls.doors[self.api] = self

    async def claim(self) -> ClaimedTask | None:
        """Take a task that nobody runs, of an agent that takes calls."""
        gateway = self._gateway
        if gateway.calls.draining or gateway.lacks_stored_agents:
            return None
        its = and_(tasks.c.api == self.api, tasks.c.agent.not_in(gateway.not_ready))
        return await self.long_calls.claim(its)

    def go_on(self, task: ClaimedTask) -> None:
        """Run a task to its end, or until this process ends; one that may not go on is ended."""
        self._gateway.turns_and_nested.spawn(self._go_on(task), name="task of an ended process", report=True)

    async def _go_on(self, task: ClaimedTask) -> None:
        gateway = self._gateway
        caller, agent = gateway.caller_named(task.principal, task.account), gateway.agents.get(task.agent)
        if agent is None or agent.id != task.agent_id:
            await self._end_at_rest(task, "agent_gone", f"There is no agent '{task.agent}' any more.")
            return
        if caller is None:
            await self._end_at_rest(task, "key_removed", "The key of the caller has been removed.")
            return
        method = "tools/call" if self.api == "mcp" else None
        with requested(agent, caller, {}, call_id=task.call_id, api=self.api, mcp_method=method) as request:
            with request.answering():
                await request.decoded(partial(self.decode, task, agent))
            if not request.has_outcome:
                await self.run(task, agent, request)
            elif isinstance(refusal := request.outcome, CallRefusedError):
                await self._end_at_rest(task, refusal.reason, str(refusal))
            else:  # the database did not answer in time
                await self.long_calls.leave(task, TRY_AGAIN_SECONDS)

    async def _end_at_rest(self, task: ClaimedTask, reason: str, why: str) -> None:
        note_end_of_task(self._gateway.trail, task, reason)
        await self.end(task, reason, why)

    @abstractmethod
    async def decode(self, task: ClaimedTask, agent: HostedAgent, asked: Call) -> Call:
        """Add what is asked to the call of a task; raises as the decoder of a request."""

    @abstractmethod
    async def run(self, task: ClaimedTask, agent: HostedAgent, request: CallRequest) -> None:
        """Run a task, and store its end; `request` gets the outcome."""

    @abstractmethod
    async def end(self, task: ClaimedTask, reason: str, why: str) -> None:
        """End a task that may not go on."""

    @abstractmethod
    async def give_up(self, sql: AsyncConnection, task: AnyRow) -> bool:
        """End a task that nobody can go on with, in the transaction that has found it, and note it in the audit log.

        Returns False if it goes on.
        """
