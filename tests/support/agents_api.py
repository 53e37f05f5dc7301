"""`/api/v1/agents` of a gateway whose operator has released a model and a sub-agent, for callers with each right."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pallas_gateway.identity.static_keys import hash_of
from tests.support.gateway import Agent, Project, Running, running, write_project

INSTRUCTION = "You write poems about the sea."
POEM = {"instruction": INSTRUCTION, "model": "passthrough"}
RELEASED: Mapping[str, Any] = {"models": ["passthrough"], "agents": ["*"], "most": {"max_iterations": 20}}
KEYS: Mapping[str, tuple[str, ...]] = {
    "owner": ("create:agents",),
    "creator": ("create:agents", "run:agents:echo"),
    "nobody": (),
    "viewer": ("view:agents",),
    "runner": ("run:agents",),
    "reader": ("view:agents", "view:instructions"),
    "editor": ("edit:agents:poet",),
    "editor-of-another": ("edit:agents:other",),
    "editor-of-all": ("edit:agents",),
    "deleter": ("view:agents:poet", "delete:agents:poet"),
    "deleter-of-all": ("view:agents", "delete:agents"),
    "operator": ("edit:agents", "delete:agents"),
    "everything": (
        "run:agents", "view:instructions", "create:agents", "edit:agents", "delete:agents",
    ),
}  # fmt: skip
AGENTS = {
    "echo": Agent(),
    "secret": Agent(),
}
DECLARED: Mapping[str, Any] = {"instruction": "You are declared.", "model": "passthrough", "max_iterations": 7}


@dataclass(frozen=True)
class AgentsApi:
    """A client of the API; `key` is the caller, None for one without a token."""

    served: Running
    http: httpx.AsyncClient

    async def ask(
        self,
        method: str,
        path: str = "",
        *,
        key: str | None = "owner",
        json: Any = None,
        match: str | None = None,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> httpx.Response:
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **({"If-Match": match} if match else {})}
        return await self.http.request(
            method, f"/agents{path}", json=json, params=query, headers={**sent, **(headers or {})}
        )

    async def get(self, path: str = "", **options: Any) -> httpx.Response:
        return await self.ask("GET", path, **options)

    async def make(
        self, name: str = "poet", *, key: str = "owner", wait: bool = False, **changes: Any
    ) -> dict[str, Any]:
        """Make an agent, which must be accepted; with `wait` it is served then."""
        query: dict[str, Any] = {"wait": "true"} if wait else {}
        made = await self.ask("POST", key=key, json={"name": name, **POEM, **changes}, **query)
        assert made.status_code == 201, made.text
        return dict(made.json())

    async def document(self, name: str = "poet", *, key: str = "owner") -> dict[str, Any]:
        return dict((await self.get(f"/{name}", key=key)).raise_for_status().json())


def project_of(path: Path, *, auth: bool = True, registry: str = "open", **gateway: Any) -> Project:
    """Write a project with two agents of modules and one of an instruction; `secret` is hidden from most callers."""
    tokens = [{"name": name, "sha256": hash_of(name), "grants": [*grants]} for name, grants in KEYS.items()]
    settings = {
        "database": "sqlite:///pallas.db",
        "agents_may_use": RELEASED,
        **({"auth": {"tokens": tokens, "registry": registry}} if auth else {}),
        **gateway,
    }
    project = write_project(path, AGENTS, gateway=settings)
    project.edit(lambda document: document["agents"].update(declared=dict(DECLARED)))
    return project


@asynccontextmanager
async def agents_api(path: Path, **settings: Any) -> AsyncIterator[AgentsApi]:
    async with agents_api_of(project_of(path, **settings)) as api:
        yield api


@asynccontextmanager
async def agents_api_of(project: Project) -> AsyncIterator[AgentsApi]:
    async with running(project) as served:
        base = f"{served.base_url}/api/v1"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
            yield AgentsApi(served, http)
