"""Turns of ended processes, with which this process goes on by itself: without a request, and so without a token."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError
from pallas_gateway.hosting.call_request import requested
from pallas_gateway.identity.caller import ANONYMOUS, ANONYMOUS_NAME
from pallas_gateway.threads.records import TurnOutcome
from pallas_gateway.web.threads.live_turn import LiveTurn
from pallas_gateway.web.threads.stored_turn import turn_in
from pallas_gateway.web.threads.turn_call import begin_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.call import Call
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.threads.records import ClaimedTurn
    from pallas_gateway.web.threads.turn_call import Services

_log = logging.getLogger("pallas.threads")


class ContinuedTurns:
    """Goes on with claimed turns; `services` returns what turns need, by the present configuration."""

    def __init__(self, gateway: Gateway, services: Callable[[], Services]) -> None:
        self._gateway = gateway
        self._services = services

    async def go_on(self, claimed: ClaimedTurn) -> None:
        """Run a turn to its end, or until this process ends; a turn that may not go on ends as failed."""
        task, lease, services = claimed.task, claimed.lease, self._services()
        about = {"agent": task.agent, "call_id": task.call_id, "thread_id": lease.thread_id, "turn": lease.turn}
        # The process that ran a turn has ended, or has left it. This one goes on from the last stored step.
        _log.info("turn continued", extra={**about, "run": task.runs, "steps": len(task.rows)})
        caller, agent = self._caller(task.principal), self._gateway.agents.get(task.agent)
        if agent is None or agent.id != task.agent_id:
            await self._end(claimed, "agent_gone", f"There is no agent '{task.agent}' any more.")
            return
        if caller is None:
            await self._end(claimed, "key_removed", "The key of the caller has been removed.")
            return
        shown = LiveTurn(lease.thread_id, is_first=False, in_background=True)
        with requested(agent, caller, {}, call_id=task.call_id, api="threads") as request, request.answering():

            async def decode(asked: Call) -> Call:
                turn = await turn_in(services.threads.store, lease.thread_id, lease.turn)
                return replace(asked, message=turn.question, conversation_id=lease.thread_id)

            try:
                call = await request.decoded(decode)
            except CallRefusedError as refusal:
                await self._end(claimed, refusal.reason, str(refusal))
                raise
            begin_again(agent, call, services, shown, claimed)
            request.ended(await shown.ended())

    async def _end(self, claimed: ClaimedTurn, reason: str, why: str) -> None:
        await self._services().threads.store.end_turn(claimed.lease, TurnOutcome(error_reason=reason, error=why))

    def _caller(self, principal: str) -> Caller | None:
        """Return the caller as the present configuration knows it; None if its key is gone, or has expired."""
        authenticator = self._gateway.authenticator
        if principal == ANONYMOUS_NAME:
            caller: Caller | None = ANONYMOUS if authenticator is None else authenticator.anonymous
        else:
            caller = authenticator.key_named(principal.removeprefix("key:")) if authenticator is not None else None
        return caller.among(self._gateway.configuration.stored_owners) if caller is not None else None
