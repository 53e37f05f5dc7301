"""Gateways with agents of the database, which a test changes as the HTTP API does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.features.definitions.service import Definitions, Editor
from tests.support.gateway import Agent, Project, Running, write_project
from tests.support.stored_threads import agents_feature_of
from tests.support.waiting import eventually

MODEL = "generic.test-model"
RELEASED: dict[str, Any] = {"models": ["generic.*"], "agents": ["*"]}
ME = Editor(owner="key:me", name="me", may_run=lambda _: True)


def definition(word: str, **keys: Any) -> dict[str, Any]:
    return {"instruction": f"You say {word}.", "model": MODEL, **keys}


def project_of(
    path: Path, llm_url: str, agents: Mapping[str, Agent] | None = None, database: str | None = None, **gateway: Any
) -> Project:
    settings = {"database": database or f"sqlite:///{path}/pallas.db", "agents_may_use": RELEASED, **gateway}
    return write_project(path / "project", agents or {"filed": Agent()}, llm_url=llm_url, gateway=settings)


def definitions_of(served: Running) -> Definitions:
    return agents_feature_of(served.gateway).definitions


async def applied(served: Running, name: str = "") -> None:
    """Return when the gateway uses, or refuses, all changes made before."""
    assert await served.gateway.until_applied(name, 30)


async def ready(served: Running, name: str) -> HostedAgent:
    agents = served.gateway
    await eventually(lambda: (one := agents.agents.get(name)) and one.runtime is not None, what=f"{name} is ready")
    return agents.agents[name]
