"""Turns of ended processes, with which this process goes on by itself: without a request, and so without a token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.hosting.call_request import requested
from pallas_gateway.hosting.long_call import TRY_AGAIN_SECONDS
from pallas_gateway.threads.records import GAVE_UP, TurnOutcome
from pallas_gateway.web.threads.live_turn import LiveTurn
from pallas_gateway.web.threads.stored_turn import turn_in
from pallas_gateway.web.threads.turn_call import begin_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.call import Call
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.hosting.call_request import CallRequest
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.long_calls.records import ClaimedTask
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
        note_end(self._gateway, task, GAVE_UP)

    async def _end(self, claimed: ClaimedTurn, reason: str, why: str) -> None:
        note_end(self._gateway, claimed.task, reason)
        await self._services().threads.store.end_turn(claimed.lease, TurnOutcome(error_reason=reason, error=why))


def note_end(gateway: Gateway, task: AnyRow | ClaimedTask, reason: str) -> None:
    """Note in the audit log the end of a turn that nobody runs: other ends are noted where the turn ran."""
    facts = {"caller": task.principal, "agent": task.agent, "api": "threads", "call_id": task.call_id}
    gateway.trail.record("call_end", "error", {**facts, "reason": reason})
