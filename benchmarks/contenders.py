"""What is measured: how each server is started, and how one of its agents is called."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.fakes.downstream import FACT, TOKEN_PATH, TOOL
from benchmarks.fakes.llm import texts_of
from benchmarks.processes import HOST, REPOSITORY, Process, free_port, python, running
from benchmarks.project import PACKAGE, Agent, with_peers_as_downstreams, write_project

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

AGNO_PYTHON = REPOSITORY / "benchmarks/agno/.venv/bin/python"
MESSAGE = "What do you know about bees?"
GATEWAY = "gateway"
AGNO = "agno"
FLOOR = "floor"
FAST_AGENT = "fast-agent"
FAST_AGENT_SHARED_TRUST = "fast-agent, trust store shared"
FAKES = "fakes alone"


@dataclass(frozen=True)
class Endpoint:
    """One agent of a running server: where it is and how to call it. `expected` is in every right answer.

    `bearer`: the caller's token, if it has one.
    """

    process: Process
    path: str
    tool: str
    arguments: Mapping[str, Any]
    expected: str
    bearer: str | None = None

    def saying(self, **arguments: Any) -> Endpoint:
        """The same with more arguments."""
        return replace(self, arguments={**self.arguments, **arguments})


@asynccontextmanager
async def gateway(
    folder: Path,
    agents: Mapping[str, Agent],
    *,
    options: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    program: str = "pallas_gateway",
) -> AsyncIterator[dict[str, Endpoint]]:
    """The gateway with all the agents; `program` is the module that is run."""
    write_project(folder, with_peers_as_downstreams(agents), gateway=settings)
    port = free_port()
    command = python("-m", program, "serve", "--port", str(port), *options)
    # The log as an operator has it, one line per call, in a file.
    ready = "/readyz?strict=1"
    async with running(
        command, folder=folder, name="gateway", port=port, ready_path=ready, environment=environment
    ) as process:
        yield {
            name: Endpoint(process, f"/agents/{name}/mcp", "send_message", {"message": MESSAGE}, _expected(agent))
            for name, agent in agents.items()
        }


@asynccontextmanager
async def fast_agent(folder: Path, name: str, agent: Agent, *, shared_trust: bool = False) -> AsyncIterator[Endpoint]:
    """fast-agent's own server with one agent, an instance per request.

    With `shared_trust` it finds an empty trust store, which takes no time to load: only plain HTTP is measured.
    """
    write_project(folder, {name: agent})
    port = free_port()
    options = ("--transport", "http", "--port", str(port), "--instance-scope", "request", "--no-home", "--quiet")
    environment = {"PYTHONPATH": str(folder)}
    if shared_trust:
        (folder / "no-certificates").mkdir()
        environment["SSL_CERT_DIR"] = str(folder / "no-certificates")
    command = python("-m", f"{PACKAGE}.{name}", *options)
    async with running(command, folder=folder, name=name, port=port, environment=environment) as process:
        yield Endpoint(process, "/mcp", name, {"message": MESSAGE}, _expected(agent))


@asynccontextmanager
async def agno(folder: Path, agents: Mapping[str, Agent]) -> AsyncIterator[dict[str, Endpoint]]:
    """agno's AgentOS with all the agents."""
    folder.mkdir(parents=True)
    document = {
        name: {"llm_url": agent.llm_url, "downstreams": [url for _, url in agent.downstreams], "peers": agent.peers}
        for name, agent in agents.items()
    }
    (folder / "agents.json").write_text(json.dumps(document))
    port = free_port()
    command: list[str | Path] = [AGNO_PYTHON, REPOSITORY / "benchmarks/agno/serve.py", str(port), "agents.json"]
    async with running(command, folder=folder, name="agno", port=port, environment={"PYTHONPATH": ""}) as process:
        yield {
            name: Endpoint(process, "/mcp", "run_agent", {"agent_id": name, "message": MESSAGE}, _expected(agent))
            for name, agent in agents.items()
        }


@asynccontextmanager
async def floor(folder: Path) -> AsyncIterator[Endpoint]:
    """FastMCP on Hypercorn, no agent."""
    async with running(python("-m", "benchmarks.floor"), folder=folder, name="floor") as process:
        yield Endpoint(process, "/mcp", "echo", {"message": MESSAGE}, MESSAGE)


@asynccontextmanager
async def llm(folder: Path) -> AsyncIterator[Process]:
    """The scripted LLM."""
    async with running(python("-m", "benchmarks.fakes.llm"), folder=folder, name="llm") as process:
        yield process


@asynccontextmanager
async def downstreams(folder: Path) -> AsyncIterator[Process]:
    """The MCP servers that agents call."""
    async with running(python("-m", "benchmarks.fakes.downstream"), folder=folder, name="downstreams") as process:
        yield process


def llm_url(process: Process, kind: str = "answer", seconds: float = 0, pieces: int | None = None) -> str:
    """Base URL of the scripted LLM; see benchmarks/fakes/llm.py."""
    how = f"{seconds:g}" if pieces is None else f"{seconds:g}x{pieces}"
    return f"http://{HOST}:{process.port}/{kind}/{how}/v1"


def downstream(process: Process, name: str, delay_ms: int = 0) -> tuple[str, str]:
    """An MCP server's name and URL; see benchmarks/fakes/downstream.py."""
    return name, f"http://{HOST}:{process.port}/{name}/{delay_ms}/mcp"


def token_exchange(process: Process) -> dict[str, str]:
    """Settings of a server whose token is issued by the stand-in for an authorization server."""
    return {"token_endpoint": f"http://{HOST}:{process.port}{TOKEN_PATH}", "client_id": "benchmark"}


def bare_downstream(process: Process) -> Endpoint:
    """An MCP stand-in called without anything between: what the load generator and a stand-in can do."""
    return Endpoint(process, "/alone/0/mcp", TOOL, {"topic": "bees"}, FACT)


def _expected(agent: Agent) -> str:
    return "".join(texts_of(urlsplit(agent.llm_url).path)).strip() if agent.llm_url else MESSAGE
