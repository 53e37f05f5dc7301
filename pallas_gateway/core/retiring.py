"""Agents that are no longer hosted and still answer earlier requests.

One that is configured again meanwhile is the same agent: its calls, limits and metrics continue.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics


class RetiringAgents:
    """Waits for the last requests of agents, each in a task of `tasks`."""

    def __init__(self, tasks: TaskOwner, metrics: Metrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self._retiring: dict[str, HostedAgent] = {}

    def retire(
        self, agent: HostedAgent, last_requests: Coroutine[Any, Any, None], leaving: asyncio.Task[None] | None
    ) -> None:
        """Remove the metrics of an agent after its last request; `leaving` ends when its runtime was left."""
        self._retiring[agent.name] = agent

        async def retiring() -> None:
            await last_requests
            if leaving is not None:
                await asyncio.wait({leaving})
            if self._retiring.get(agent.name) is agent:  # it has not come back
                del self._retiring[agent.name]
                self._metrics.forget_calls(agent.name)
                if agent.identity is not None:  # people make and delete these at will
                    self._metrics.forget_counts(agent.name)

        self._tasks.spawn(retiring(), name=f"last requests of {agent.name}", report=True)

    def take_back(self, name: str) -> HostedAgent | None:
        """Return the retiring agent of that name, which is hosted again; None if there is none."""
        return self._retiring.pop(name, None)
