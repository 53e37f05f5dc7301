"""A hosted agent that is ready, on an in-memory runtime."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from pallas_gateway.agents.admission import Admission, Limit
from pallas_gateway.agents.agent_state import HostContext, State
from pallas_gateway.agents.hosted_agent import HostedAgent
from pallas_gateway.calls.nesting import RunningCalls
from pallas_gateway.config.model.schema import AgentSettings
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics

from .memory_runtime import NEVER, MemoryAgent, MemoryAgentRuntime


@asynccontextmanager
async def hosted(
    memory: MemoryAgent, *, calls: int | None = None, tasks: TaskOwner | None = None
) -> AsyncGenerator[tuple[HostedAgent, RunningCalls]]:
    """The agent `echo` with room for so many calls, which run in `tasks`."""
    running = RunningCalls()
    async with TaskOwner() if tasks is None else tasks as owner:
        around = HostContext(running, owner, Metrics(CollectorRegistry()), 8, NEVER)
        admission = Admission(own=Limit(calls), gateway=Limit(None), queue_seconds=0)
        agent = HostedAgent("echo", AgentSettings(module="agents.echo"), admission, around)
        agent.enter(State.READY, runtime=MemoryAgentRuntime(memory))
        yield agent, running
