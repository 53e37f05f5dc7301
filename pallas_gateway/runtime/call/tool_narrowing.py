"""Limits the tools of one call's agent: other tools are neither listed nor run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, ListToolsResult, TextContent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def narrow_tools(agent: Any, lists: Sequence[Collection[str]]) -> None:
    """Make the agent list and run only tools that are in all `lists`.

    A list has tools as `{server}/{tool}` or by the name that the model sees, and `{server}/*` for all of a server.
    """
    # On the instance: fast-agent's own filter is part of the configuration, which all calls share. Both methods are
    # replaced, because fast-agent runs tools that it does not list if a model guesses their names.
    list_tools, call_tool = agent.list_tools, agent.call_tool

    async def narrowed() -> ListToolsResult:
        tools = (await list_tools()).tools
        return ListToolsResult(tools=[one for one in tools if all(_is_on(agent, one.name, each) for each in lists)])

    async def call_if_listed(name: str, *arguments: Any, **options: Any) -> CallToolResult:
        listed = {_identity(agent, one.name): one.name for one in (await narrowed()).tools}
        if _identity(agent, name) not in listed:
            text = f"Tool '{name}' is not allowed in this call. Allowed are: {', '.join(listed.values()) or 'none'}."
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        result: CallToolResult = await call_tool(name, *arguments, **options)
        return result

    agent.list_tools, agent.call_tool = narrowed, call_if_listed


def _is_on(agent: Any, name: str, names: Collection[str]) -> bool:
    server, tool = _identity(agent, name)
    return name in names or (server is not None and (f"{server}/{tool}" in names or f"{server}/*" in names))


def _identity(agent: Any, name: str) -> tuple[str | None, str]:
    """The server of a tool, None if it has none, and the tool's name at the server."""
    aggregator = getattr(agent, "aggregator", None)
    if aggregator is None or name not in aggregator.tool_catalog().routable_tool_names():
        return None, name
    resolved = aggregator.resolve_tool_name(name)
    return resolved.server_name, resolved.local_name
