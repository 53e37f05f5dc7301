"""The tools of an agent that declare that they change nothing: `readOnlyHint` in their annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_types import Tool

_KNOWN = "fast_agent.agents."
"""Package of the classes of agents; a class of the project, or an agent elsewhere, may do anything."""


def only_reads(tool: Tool) -> bool:
    """Return True if a tool declares that it changes nothing."""
    return tool.annotations is not None and tool.annotations.read_only_hint is True


async def local_tools_only_read(agents: Iterable[Any]) -> bool:
    """Return True if no unconnected agent has a tool that may change something: a function, a shell, files.

    The tools of servers are not among theirs before they are connected. Tools that call another of the agents do
    nothing else, and servers that are attached later are unknown.
    """
    for agent in agents:
        if not type(agent).__module__.startswith(_KNOWN) or agent.config.mcp_connect:
            return False
        others = getattr(agent, "_child_agents", ())  # of an agent that has others as tools
        if any(not only_reads(tool) for tool in (await agent.list_tools()).tools if tool.name not in others):
            return False
    return True
