"""Turns of ended processes, with which this process goes on by itself: without a request, and so without a token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.hosting.call_books import note_end_of_task
from pallas_gateway.hosting.call_request import requested
from pallas_gateway.threads.records import GAVE_UP, TurnOutcome
from pallas_gateway.web.threads.live_turn import LiveTurn
from pallas_gateway.web.threads.stored_turn import turn_in
from pallas_gateway.web.threads.turn_call import TRY_AGAIN_SECONDS, begin_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.call import Call
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.hosting.call_request import CallRequest
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.threads.records import ClaimedTurn
    from pallas_gateway.web.threads.turn_call import Services


class ContinuedTurns:
    """Goes on with claimed turns; `services` returns what turns need, by the present configuration."""

    def __init__(self, gateway: Gateway, services: Callable[[], Services]) -> None:
        self._gateway = gateway
        self._services = services

    async def go_on(self, claimed: ClaimedTurn) -> None:
        """Run a turn to its end, or until this process ends; a turn that may not go on ends as failed."""
        task, lease, services = claimed.task, claimed.lease, self._services()
        caller, agent = self._gateway.caller_named(task.principal, task.account), self._gateway.agents.get(task.agent)
        if agent is None or agent.id != task.agent_id:
            await self._end(claimed, "agent_gone", f"There is no agent '{task.agent}' any more.")
            return
        if caller is None:
            await self._end(claimed, "key_removed", "The key of the caller has been removed.")
            return
        shown = LiveTurn(lease.thread_id, is_first=False, in_background=True)
        with requested(agent, caller, {}, call_id=task.call_id, api="threads") as request, request.answering():
            call = await self._decoded(request, claimed)
            begin_again(agent, call, services, shown, claimed)
            request.ended(await shown.ended())

    async def _decoded(self, request: CallRequest, claimed: ClaimedTurn) -> Call:
        lease, threads = claimed.lease, self._services().threads

        async def decode(asked: Call) -> Call:
            turn = await turn_in(threads.store, lease.thread_id, lease.turn)
            return replace(asked, message=turn.question, conversation_id=lease.thread_id)

        try:
            return await request.decoded(decode)
        except CallRefusedError as refusal:
            await self._end(claimed, refusal.reason, str(refusal))
            raise
        except GatewayError:  # the database did not answer in time
            await threads.turns.leave(claimed, TRY_AGAIN_SECONDS)
            raise

    def given_up(self, task: AnyRow) -> None:
        """Note in the audit log that nobody goes on with a task."""
        note_end_of_task(self._gateway.trail, task, GAVE_UP)

    async def _end(self, claimed: ClaimedTurn, reason: str, why: str) -> None:
        note_end_of_task(self._gateway.trail, claimed.task, reason)
        await self._services().threads.store.end_turn(claimed.lease, TurnOutcome(error_reason=reason, error=why))
