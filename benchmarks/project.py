"""A project of agents on disk, as the gateway and fast-agent's own server both run it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.processes import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGE = "bench_agents"
_FIRST_PORT = 24_200


@dataclass(frozen=True)
class Agent:
    """One agent of the project.

    `llm_url`: base URL of its LLM; None for fast-agent's `passthrough`. `downstreams`: URLs, or commands of stdio
    servers, by server name; a name means one server throughout a project. `settings`: more of its block in agents.yaml.
    `model`: with its provider. `servers`: more settings of downstreams, by server name. `peers`: names of agents that
    its model calls: downstreams of the gateway's agents, and tools of agno's and fast-agent's. `human_input`: it can
    ask by itself.
    """

    llm_url: str | None = None
    downstreams: tuple[tuple[str, str], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "generic.scripted"
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    human_input: bool = False


def with_peers_as_downstreams(agents: Mapping[str, Agent]) -> dict[str, Agent]:
    """The same agents for the gateway: peers are downstreams at documented addresses, where nothing listens."""
    peers = dict.fromkeys(peer for agent in agents.values() for peer in agent.peers)
    ports = {peer: _FIRST_PORT + number for number, peer in enumerate(peers)}
    servers = {peer: (peer, f"http://localhost:{port}/mcp") for peer, port in ports.items()}
    return {
        name: replace(
            agent,
            downstreams=(*agent.downstreams, *(servers[peer] for peer in agent.peers)),
            settings={**agent.settings, **({"port": ports[name]} if name in ports else {})},
            peers=(),
        )
        for name, agent in agents.items()
    }


def write_project(folder: Path, agents: Mapping[str, Agent], *, gateway: Mapping[str, Any] | None = None) -> None:
    """Write agents.yaml, fastagent.config.yaml and a module per agent to `folder`."""
    package = folder / PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, agent in agents.items():
        (package / f"{name}.py").write_text(_module(name, agent))
        (package / f"{name}.config.yaml").write_text(yaml.safe_dump(_settings(agent)))
    every = {server: url for agent in agents.values() for server, url in agent.downstreams}
    more = {server: settings for agent in agents.values() for server, settings in agent.servers.items()}
    united = Agent(None, tuple(every.items()), servers=more)
    (folder / "fastagent.config.yaml").write_text(yaml.safe_dump(_settings(united)))
    document = {
        "name": "bench",
        "agents": {name: {"module": f"{PACKAGE}.{name}", **agent.settings} for name, agent in agents.items()},
        "gateway": {"port": 0, **(gateway or {})},
    }
    (folder / "agents.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def _settings(agent: Agent) -> dict[str, Any]:
    """What makes fast-agent's own server quiet and stateless; the gateway sets the same by itself."""
    settings: dict[str, Any] = {
        "default_model": agent.model if agent.llm_url else "passthrough",
        agent.model.partition(".")[0]: {"api_key": "not-a-key", "base_url": agent.llm_url or ""},
        "session_history": False,
        "logger": {"type": "none", "progress_display": False, "show_chat": False, "show_tools": False},
    }
    if agent.downstreams:
        servers = {name: {**_server(one), **agent.servers.get(name, {})} for name, one in agent.downstreams}
        settings["mcp"] = {"servers": servers}
    return settings


def _server(url_or_command: str) -> dict[str, Any]:
    if url_or_command.startswith("http"):
        return {"transport": "http", "url": url_or_command}
    command, *args = url_or_command.split()
    environment = {"PYTHONPATH": str(REPOSITORY)}  # a stdio server inherits little
    return {"transport": "stdio", "command": command, "args": args, "env": environment}


def _module(name: str, agent: Agent) -> str:
    """The gateway imports it; run as a program it is fast-agent's own server, in which peers are agents of its own."""
    servers = [server for server, _ in agent.downstreams]
    peers = "".join(
        f'@fast.agent(name="{peer}", instruction="You are {peer}.")\nasync def {peer}() -> None: ...\n\n\n'
        for peer in agent.peers
    )
    options = f"servers={servers!r}, agents={list(agent.peers)!r}"
    options += ", human_input=True" if agent.human_input else ""
    return _MODULE.format(name=name, peers=peers, options=options)


_MODULE = textwrap.dedent("""\
    import asyncio
    import sys
    from pathlib import Path

    from fast_agent import FastAgent

    config = Path(__file__).with_name("{name}.config.yaml")
    fast = FastAgent("{name}", config_path=str(config), parse_cli_args=__name__ == "__main__")


    {peers}@fast.agent(name="{name}", instruction="You are {name}.", {options}, default=True)
    async def agent() -> None: ...


    async def main() -> None:
        async with fast.run():
            pass


    if __name__ == "__main__":
        asyncio.run(main())
    """)
