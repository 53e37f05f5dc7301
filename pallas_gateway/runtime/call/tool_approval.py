"""The caller's approval of tools, at the one method by which an agent's loop runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, TextContent

from pallas_gateway.calls.approvals import approval_question
from pallas_gateway.runtime.call_scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOCAL = "local"
"""Stands for the server in the names of an agent's own functions."""


def approved(call: Callable[..., Awaitable[CallToolResult]], *, but: type | None = None) -> Callable[..., Any]:
    """Return `call_tool` of a class of agents which first asks for the approvals that the agent's policy demands.

    Agents of the class `but`, which has such a method of its own, run the tool at once.
    """

    async def call_tool(
        self: Any, name: str, arguments: dict[str, Any] | None = None, *more: Any, **options: Any
    ) -> Any:
        asks = but is None or not isinstance(self, but)
        if asks and (why := await _why_not(self, name, arguments or {})) is not None:
            text = f"The tool '{name}' was not run: it requires approval, and {why}. Do not call it again."
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        return await call(self, name, arguments, *more, **options)

    return call_tool


async def _why_not(agent: Any, name: str, arguments: dict[str, Any]) -> str | None:
    questions = current_scope.get().questions
    approvals = questions.approvals
    if approvals is None or not approvals.are_needed:
        return None
    tool, is_destructive = _identity(agent, name)
    if not approvals.needed_for(tool, destructive=is_destructive):
        return None
    return approvals.take(await questions.ask(approval_question(tool, arguments)))


def _identity(agent: Any, name: str) -> tuple[str, bool]:
    """Return a tool's name as `server/tool`, and whether its annotations say that it is destructive.

    In the order in which fast-agent looks for it: functions of the agent, then tools of its servers.
    """
    function = agent._execution_tools.get(name)
    aggregator = getattr(agent, "aggregator", None)
    if function is not None or aggregator is None:
        return f"{LOCAL}/{name}", _is_destructive(function)
    found = aggregator.resolve_tool_name(name)
    if found.server_name is None:
        return f"{LOCAL}/{name}", False
    tools = aggregator._server_to_tool_map.get(found.server_name, ())
    listed = next((one.tool for one in tools if one.tool.name == found.local_name), None)
    return f"{found.server_name}/{found.local_name}", _is_destructive(listed)


def _is_destructive(tool: Any) -> bool:
    annotations = getattr(tool, "annotations", None)
    return getattr(annotations, "destructive_hint", None) is True
