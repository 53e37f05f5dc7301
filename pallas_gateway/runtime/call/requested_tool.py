"""Runs the one tool that a call asks for, on the agent of the instance that may use it, without its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.events.events import ToolCall
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.runtime.call.messages import failed
from pallas_gateway.runtime.call.tool_events import explain_result, kind_of_failure
from pallas_gateway.runtime.downstreams.connections.connection_manager import connections_of
from pallas_gateway.runtime.downstreams.tool_filters import may_use
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fast_agent.mcp.mcp_aggregator import MCPAggregator

    from pallas_gateway.calls.call import Call, ToolRequest
    from pallas_gateway.runtime.call.observer import Observer

    type ConnectTo = Callable[[MCPAggregator, str], Awaitable[None]]

STOP_REASON = "toolResult"


async def run_requested_tool(
    call: Call, agents: Mapping[str, Any], served: str, connect: ConnectTo, observer: Observer
) -> Reply:
    """Return the tool's result as a reply, also if the tool reports an error.

    Only the server of the tool is connected. The tool is called as the agent's loop calls it: with its filter, limits,
    approvals and metrics.

    Raises:
        CallRefusedError: `no_tool`; `approval_required`.
    """
    request = call.tool
    if request is None or (agent := _agent_with(agents, served, request)) is None:
        raise _no_tool(call)
    await connect(agent.aggregator, request.server)
    listed = agent.aggregator._server_to_tool_map.get(request.server)
    if listed is None and request.server in connections_of(agent.aggregator).peers:
        raise _no_tool(call)  # the caller may not use the peer
    if listed is None:
        sentence = f"The server '{request.server}' does not answer. Try again in a moment."
        return failed("server_unavailable", sentence)
    if (found := next((one for one in listed if one.tool.name == request.tool), None)) is None:
        raise _no_tool(call)
    one = ToolCall(call.call_id, request.server, request.tool, request.arguments)
    with observer.tool_used(one) as use:
        result = await agent.call_tool(found.namespaced_tool_name, dict(request.arguments), one.id)
        explain_result(one, result)
        use.ok, use.failure = not result.is_error, kind_of_failure(one, result)
    return Reply(tuple(result.content), STOP_REASON, tool_result=result)


def _agent_with(agents: Mapping[str, Any], served: str, request: ToolRequest) -> Any:
    """Return the agent whose servers and filters allow the tool, the served one before others; None if none does."""
    ordered = sorted(agents.items(), key=lambda item: item[0] != served)
    able = (agent for _, agent in ordered if hasattr(agent, "aggregator"))
    return next((one for one in able if may_use([one.config], request.server, request.tool)), None)


def _no_tool(call: Call) -> CallRefusedError:
    name = call.tool.name if call.tool is not None else ""
    message = f"Agent '{call.agent}' has no tool {quoted(name)} that this caller may run."
    return CallRefusedError(message, reason="no_tool")
