"""Agents that are no longer hosted and still answer earlier requests.

One that is configured again meanwhile is the same agent: its calls, limits and metrics continue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.mcp_server.agent_server import AgentServer
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Departed:
    """An agent and the server that answers its last requests."""

    agent: HostedAgent
    server: AgentServer


class RetiringAgents:
    """Closes agents after their last requests, each in a task of `tasks`."""

    def __init__(self, tasks: TaskOwner, metrics: Metrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self._going: dict[str, Departed] = {}

    def retire(self, departed: Departed, leaving: asyncio.Task[None] | None) -> None:
        """Close the server after its last request; `leaving` ends when the agent's runtime was left."""
        self._going[departed.agent.name] = departed
        self._tasks.spawn(self._close(departed, leaving), name=f"last requests of {departed.agent.name}", report=True)

    def agent(self, name: str) -> HostedAgent | None:
        """Take back the retiring agent of that name; None if there is none."""
        departed = self._going.pop(name, None)
        return departed.agent if departed else None

    async def _close(self, departed: Departed, leaving: asyncio.Task[None] | None) -> None:
        name = departed.agent.name
        try:
            await departed.server.transport.wait_until_idle()
        finally:
            departed.server.transport.close()
        if leaving is not None:
            await asyncio.wait({leaving})
        if self._going.get(name) is departed:  # it has not come back
            del self._going[name]
            self._metrics.forget_calls(name)
