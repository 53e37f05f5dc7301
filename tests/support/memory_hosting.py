"""Gateways of in-memory agents, whose configuration a test changes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pallas_gateway.calls.call import Reply
from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.configuration import Configuration, StoredIdentity
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.core.agent_set import Changes
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from pallas_gateway.urls import Addresses
from tests.support.configuration import load_deployment
from tests.support.memory_runtime import MemoryAgent, MemoryRuntime, a_call
from tests.support.waiting import eventually


@dataclass
class Hosting:
    gateway: Gateway
    servers: McpServers
    memory: dict[str, MemoryAgent]
    folder: Path

    def agent(self, name: str) -> HostedAgent:
        return self.gateway.agents[name]

    async def up(self, *names: str) -> None:
        await eventually(lambda: all(self.agent(name).runtime is not None for name in names), what=f"{names} up")

    async def reload(self, agents: Mapping[str, Any], **gateway: Any) -> Changes:
        return await self.gateway.reload(configuration(self.folder, agents, gateway))

    async def reload_stored(self, agents: Mapping[str, Any], *stored: "StoredAgent") -> Changes:
        """Reload with agents of the database beside `agents`; one that has a name of those is claimed."""
        return await self.gateway.reload(with_stored(configuration(self.folder, agents, {}), stored))

    def call(self, name: str, text: str = "hello") -> asyncio.Task[Reply]:
        return RunningCall(self.agent(name), a_call(text, agent=name)).begin()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.gateway.metrics.registry.get_sample_value(f"pallas_{name}", labels)

    def series_of(self, name: str) -> set[str]:
        """The gauges that speak of an agent."""
        families = self.gateway.metrics.registry.collect()
        gauges = (family for family in families if family.type == "gauge")
        return {g.name for g in gauges for sample in g.samples if sample.labels.get("agent") == name}


@dataclass(frozen=True)
class StoredAgent:
    """An agent of the database; `settings` as in agents.yaml, with a module of its name."""

    name: str
    id: str = "1"
    version: int = 1
    refused: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def with_stored(files: Configuration, stored: Sequence[StoredAgent]) -> Configuration:
    at = datetime(2026, 11, 24, tzinfo=UTC)
    deployment = files.deployment
    settings = {one.name: AgentSettings(module=f"agents.{one.name}", **one.settings) for one in stored}
    known = {one.name: StoredIdentity(one.id, one.version, "key:me", one.refused, at, at) for one in stored}
    claimed = {name: one for name, one in known.items() if name in deployment.agents}
    agents = {**settings, **deployment.agents}
    hosted = {name: one for name, one in known.items() if name not in claimed}
    return replace(files, deployment=deployment.model_copy(update={"agents": agents}), stored=hosted, claimed=claimed)


def configuration(folder: Path, agents: Mapping[str, Any], gateway: Mapping[str, Any]) -> Configuration:
    entries = {name: {"module": f"agents.{name}", **settings} for name, settings in agents.items()}
    document = {"name": "test", "namespace": "com.example", "agents": entries, "gateway": {"port": 0, **gateway}}
    (folder / "agents.yaml").write_text(yaml.safe_dump(document))
    return load_deployment(folder / "agents.yaml", environ={}).with_bound_port(1)


@asynccontextmanager
async def hosting(
    folder: Path, memory: dict[str, MemoryAgent], agents: Mapping[str, Any], **gateway: Any
) -> AsyncIterator[Hosting]:
    first = configuration(folder, agents, gateway)
    one = Gateway(first, Addresses(first), MemoryRuntime(memory), features=FEATURES)
    servers = McpServers(one)
    one.serve_by(servers)
    async with one, one.hosting():
        yield Hosting(one, servers, memory, folder)
