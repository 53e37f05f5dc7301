"""Tools that an agent's filters keep from it are not run either; fast-agent by itself only does not list them.

A model may name a tool that it was not shown: one it guessed, or one that a text it read told it about.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.common import create_namespaced_name, get_resource_name, get_server_name
from mcp_types import CallToolResult, TextContent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fast_agent.agents.mcp_agent import McpAgent


def guarded(call: Callable[..., Awaitable[CallToolResult]]) -> Callable[..., Any]:
    """`McpAgent.call_tool`, which answers that a tool is not available if the agent's own filters say so."""

    async def call_tool(self: McpAgent, name: str, *more: Any, **options: Any) -> CallToolResult:
        if self.config.tools and await _is_withheld(self, name):
            text = TextContent(type="text", text=f"Tool '{name}' is not available.")
            return CallToolResult(content=[text], is_error=True)
        return await call(self, name, *more, **options)

    return call_tool


async def _is_withheld(agent: McpAgent, name: str) -> bool:
    """Whether `name`, which may lack the server's, leads to a tool that is kept from the agent."""
    found = agent.aggregator.resolve_tool_name(name)
    if found.server_name is None:
        return False
    server = agent.aggregator.server_display_name(found.server_name)
    if passes(agent.config.tools, create_namespaced_name(server, found.local_name)):
        return False
    return all(tool.name != name for tool in (await agent.list_tools()).tools)  # else it is a function of its own


def passes(filters: Mapping[str, Sequence[str]], tool: str) -> bool:
    """Whether fast-agent's filters let a tool through: those of its server do, or there are none."""
    server = get_server_name(tool)
    return server not in filters or any(fnmatch(get_resource_name(tool), pattern) for pattern in filters[server])
