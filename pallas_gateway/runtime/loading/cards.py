"""fast-agent's agent cards: read by its own loader, and made fit for what the gateway does with servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fast_agent.config import MCPSettings

from pallas_gateway.runtime.failures import told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fast_agent.agents.agent_types import AgentConfig
    from fast_agent.config import MCPServerSettings, Settings
    from fast_agent.core.fastagent import FastAgent


def read_card(fast: FastAgent, card: Path, settings: Settings) -> Iterator[str]:
    """Add the agents of a card, or of all cards in a folder, to `fast`, and their servers to `settings`.

    What is wrong comes out; other things than the servers and models they name.
    """
    if not card.exists():
        yield f"no such file or folder: {card}"
        return
    try:
        fast.load_agents(card)
    except Exception as error:  # noqa: BLE001  a card may hold anything, and name files that hold anything
        yield told(error)
        return
    for data in fast.agents.values():
        yield from _declare_servers(data["config"], settings)


def _declare_servers(config: AgentConfig, settings: Settings) -> Iterator[str]:
    """Have servers that a card declares itself (`mcp_connect`) be like those of the project.

    fast-agent would make them when the agent starts, under names that nobody knows: without the limits, health checks
    and metrics of the others, and with a browser login for a 401. Those of a provider it keeps.
    """
    mcp = settings.mcp = settings.mcp or MCPSettings()
    defaults = mcp.defaults.model_dump()
    own = [entry for entry in config.mcp_connect if entry.connector_id is None]
    config.mcp_connect = [entry for entry in config.mcp_connect if entry.connector_id is not None]
    for index, entry in enumerate(own):
        try:
            server = entry.materialize(source_path=f"mcp_connect[{index}]", defaults=defaults)
        except Exception as error:  # noqa: BLE001  told like all else that is wrong with a card
            yield f"agent '{config.name}': mcp_connect: {told(error)}"
            continue
        name = server.name or f"server-{index + 1}"
        if not _same(mcp.servers.setdefault(name, server), server):
            yield f"agent '{config.name}': mcp_connect: there is another server '{name}'; give this one another name"
        config.servers = [*dict.fromkeys((*config.servers, name))]


def _same(one: MCPServerSettings, other: MCPServerSettings) -> bool:
    return _settings(one) == _settings(other)


def _settings(server: MCPServerSettings) -> dict[str, Any]:
    return server.model_dump(exclude={"name"})
