"""Reads fast-agent's agent cards with fast-agent's loader, and declares their servers like those of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fast_agent.config import MCPSettings

from pallas_gateway.runtime.failures import start_reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fast_agent.agents.agent_types import AgentConfig
    from fast_agent.config import MCPServerSettings, Settings
    from fast_agent.core.fastagent import FastAgent


def read_card(fast: FastAgent, card: Path, settings: Settings) -> Iterator[str]:
    """Add the agents of a card, or of all cards in a folder, to `fast`, and their servers to `settings`.

    Yields problems of the cards, but not of the servers and models that they name.
    """
    if not card.exists():
        yield f"no such file or folder: {card}"
        return
    try:
        fast.load_agents(card)
    except Exception as error:  # noqa: BLE001  cards and the files that they name may raise anything
        yield start_reason(error)
        return
    for data in fast.agents.values():
        yield from _declare_servers(data["config"], settings)


def _declare_servers(config: AgentConfig, settings: Settings) -> Iterator[str]:
    """Add the servers that a card declares itself (`mcp_connect`) to those of the project.

    fast-agent would make them when the agent starts, under generated names: without limits, health checks and metrics,
    and with a login in the browser after a 401. Connectors of a provider are left to fast-agent.
    """
    mcp = settings.mcp = settings.mcp or MCPSettings()
    defaults = mcp.defaults.model_dump()
    own = [entry for entry in config.mcp_connect if entry.connector_id is None]
    config.mcp_connect = [entry for entry in config.mcp_connect if entry.connector_id is not None]
    for index, entry in enumerate(own):
        try:
            server = entry.materialize(source_path=f"mcp_connect[{index}]", defaults=defaults)
        except Exception as error:  # noqa: BLE001  reported like other problems of a card
            yield f"agent '{config.name}': mcp_connect: {start_reason(error)}"
            continue
        name = server.name or f"server-{index + 1}"
        if not _same(mcp.servers.setdefault(name, server), server):
            yield f"agent '{config.name}': mcp_connect: there is another server '{name}'; give this one another name"
        config.servers = [*dict.fromkeys((*config.servers, name))]


def _same(one: MCPServerSettings, other: MCPServerSettings) -> bool:
    return _settings(one) == _settings(other)


def _settings(server: MCPServerSettings) -> dict[str, Any]:
    return server.model_dump(exclude={"name"})
