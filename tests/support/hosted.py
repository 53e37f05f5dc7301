"""Hosted agents on an in-memory runtime, as every test makes them."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from pallas_gateway.calls.call import Call, Reply
from pallas_gateway.calls.trail import Trail
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.core.admission import Admission, Limit
from pallas_gateway.core.agent_state import SharedServices, State
from pallas_gateway.core.call_books import books
from pallas_gateway.core.calls import Calls
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.core.parts import ProcessParts
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics

from .memory_runtime import NEVER, MemoryAgent, MemoryAgentRuntime


@dataclass(frozen=True)
class Hosting:
    """A hosted agent and all it shares with others."""

    agent: HostedAgent
    tasks: TaskOwner
    calls: Calls
    metrics: Metrics

    def metric(self, name: str, **labels: str) -> float | None:
        labels = {"agent": self.agent.name, **labels}
        return self.metrics.registry.get_sample_value(f"pallas_{name}", labels)

    def outcomes(self) -> dict[str, float]:
        """Calls by outcome, without the outcomes that none had."""
        counted = {outcome: self.metric("send_message_total", outcome=outcome) for outcome in ("ok", "error")}
        return {outcome: count for outcome, count in counted.items() if count}

    def begin(self, call: Call) -> asyncio.Task[Reply]:
        return RunningCall(self.agent, call).begin()

    async def answer(self, call: Call) -> Reply:
        return await self.agent.answer(RunningCall(self.agent, call))

    @property
    def states(self) -> dict[str, float]:
        return {state.value: self.metric("agent_state", state=state.value) or 0.0 for state in State}


def pending(
    name: str = "echo",
    memory: MemoryAgent | None = None,
    *,
    calls: int | None = None,
    gateway_calls: int | None = None,
    queue_seconds: float = 0,
    max_nesting: int = 8,
    heartbeat_seconds: float = NEVER,
    depends_on: Iterable[str] = (),
    tasks: TaskOwner | None = None,
) -> Hosting:
    """An agent that was not started; with `memory` one that is ready. `calls` and `gateway_calls` may run at once."""
    tasks = TaskOwner() if tasks is None else tasks  # an empty one is false
    parts, metrics = ProcessParts(), Metrics(CollectorRegistry())
    parts.calls.listeners = books(metrics)
    agent = HostedAgent(
        name,
        AgentSettings(module=f"agents.{name}", depends_on=tuple(depends_on)),
        Admission(own=Limit(calls), gateway=Limit(gateway_calls), queue_seconds=queue_seconds),
        SharedServices(parts.calls, tasks, metrics, Trail(), max_nesting, heartbeat_seconds),
    )
    if memory is not None:
        agent.set_state(State.READY, runtime=MemoryAgentRuntime(memory))
    return Hosting(agent, tasks, parts.calls, metrics)


@asynccontextmanager
async def ready(memory: MemoryAgent | None = None, **options: object) -> AsyncGenerator[Hosting]:
    """An agent that takes calls until the block ends; `options` are those of `pending`."""
    hosting = pending("echo", memory or MemoryAgent(), **options)  # type: ignore[arg-type]
    async with hosting.tasks:
        yield hosting
