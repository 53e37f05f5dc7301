"""Configurations with agents of the database, and callers that change these."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.downstream_servers import DownstreamServer
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.features.definitions.service import Definitions, Editor
from tests.support.stored_threads import services

RELEASED: dict[str, Any] = {
    "models": ["openai.*"],
    "servers": {"notes": ["get_*", "search"], "files": ["*"]},
    "agents": ["*"],
}
FILE_AGENTS: dict[str, dict[str, Any]] = {"desk": {"instruction": "You are the desk."}, "coded": {"module": "coded"}}
SIMPLE: dict[str, Any] = {"instruction": "You help.", "model": "openai.gpt-5"}


def configured(
    released: dict[str, Any] | None = None,
    agents: dict[str, dict[str, Any]] | None = None,
    *,
    default_model: str | None = "openai.gpt-5",
    forwarding: Collection[str] = (),
    **gateway: Any,
) -> Configuration:
    settings = {"agents_may_use": RELEASED if released is None else released, **gateway}
    data = {"name": "project", "agents": FILE_AGENTS if agents is None else agents, "gateway": settings}
    servers = {
        name: DownstreamServer(name, "http", forward_inbound_auth=name in forwarding)
        for name in ("notes", "files", "secret", "shared")
    }
    fastagent = FastAgentFile(default_model=default_model, servers=servers)
    return Configuration(Deployment.model_validate(data), Path("agents.yaml"), {}, fastagent)


def editor(name: str = "ann", *, cannot_run: Collection[str] = (), **values: Any) -> Editor:
    return Editor(owner=f"key:{name}", name=name, may_run=lambda agent: agent not in cannot_run, **values)


@asynccontextmanager
async def definitions(url: str, configuration: Configuration | None = None) -> AsyncGenerator[Definitions]:
    """Open a database; the configuration can be changed by `present.configuration`."""
    present = configuration or configured()
    async with services(url, configuration=lambda: present) as stored:
        yield stored.definitions
