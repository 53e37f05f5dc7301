"""The MCP server of all agents, for clients that take one URL: a tool for each agent, and one for the health of all.

It has no list of agents of its own: a request sees the agents that are hosted at that time and that its caller may use.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import INVALID_PARAMS, CallToolRequestParams, ListToolsResult

from pallas_gateway.calls.call import GET_HEALTH
from pallas_gateway.calls.tool_names import accepted
from pallas_gateway.core.health.verdict import document_of_all
from pallas_gateway.doors.mcp.agent_server import AgentServer
from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from pallas_gateway.doors.mcp.envelope import caller_of, listen_to_the_initialize_era
from pallas_gateway.doors.mcp.rounds import sealing
from pallas_gateway.doors.mcp.tool_requests import McpToolRequest
from pallas_gateway.doors.mcp.tools import health_result, health_tool, in_brief
from pallas_gateway.telemetry.redaction import quoted
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcp_types import CallToolResult, PaginatedRequestParams, Tool

    from pallas_gateway.config.model.deployment import Deployment
    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.doors.mcp.envelope import Context
    from pallas_gateway.doors.mcp.tasks import McpTasks
    from pallas_gateway.doors.mcp.tool_requests import MessageResult
    from pallas_gateway.identity.grants import Grants

_TOOL_PREFIX = "agent-"
_HEALTH = "Health of the agents and their servers. Asks no model."


class AllAgentsServer:
    """The MCP server of all hosted agents; HTTP requests come in by `endpoint`."""

    def __init__(
        self,
        servers: Callable[[], Mapping[str, AgentServer]],
        deployment: Deployment,
        sessions: Sessions,
        tasks: McpTasks | None = None,
    ) -> None:
        """`servers` returns the servers of the hosted agents; `sessions` are those of this process."""
        self._tasks = tasks
        self._servers = servers
        self._sessions = sessions
        self.endpoint = McpEndpoint(self._server(deployment), ALL_AGENTS, sessions)

    def update(self, deployment: Deployment) -> None:
        """Use these settings from the next request on."""
        self.endpoint.update(self._server(deployment))

    def _server(self, deployment: Deployment) -> Server[Any]:
        server: Server[Any] = Server(
            deployment.name,
            version=deployment.version,
            description=f"The agents of {deployment.name}, each as a tool.",
            on_list_tools=self._list_tools,
        )
        server.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)  # its result may be a task
        listen_to_the_initialize_era(server, ALL_AGENTS, self._sessions)
        server.middleware.append(sealing(self._sessions.waiting_calls, ALL_AGENTS))
        if deployment.gateway.tasks is not None and self._tasks is not None:
            self._tasks.serve_at(server)
        return server

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        del params
        return ListToolsResult(tools=self._listing(caller_of(context).grants, AgentServer.listed_tool))

    def tools_for_peers(self, grants: Grants) -> list[Tool]:
        """Return the tools for an agent of this gateway that works for a caller with these grants."""
        return self._listing(grants, AgentServer.message_tool_for_peers)

    def _listing(self, grants: Grants, shown: Callable[[AgentServer, str], Tool]) -> list[Tool]:
        tools = (in_brief(shown(server, tool)) for tool, server in self._runnable(grants).items())
        return [*tools, health_tool(_HEALTH)]

    def _runnable(self, grants: Grants) -> dict[str, AgentServer]:
        """Return the servers of the agents that the caller may run by their tool, as in the configuration."""
        return {tool_of(name): one for name, one in grants.runnable(self._servers()).items()}

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> MessageResult:
        request = McpToolRequest.over_http(context, params, ALL_AGENTS, self._sessions.log_levels)
        return await self.call_tool(params.name, params.arguments or {}, request)

    async def call_tool(self, name: str, arguments: dict[str, Any], request: McpToolRequest) -> MessageResult:
        """Return the result of a tool.

        Raises:
            MCPError: the caller has no such tool.
        """
        grants = request.caller.grants
        if name == GET_HEALTH:
            return await self._get_health(grants)
        agent = agent_of(name, self._servers())
        server = grants.viewed(self._servers()).get(agent or "")
        if server is None:
            known = ", ".join([*self._runnable(grants), GET_HEALTH])
            raise MCPError(INVALID_PARAMS, f"Unknown tool {quoted(name)}. Tools are: {known}.")
        return await server.answer(arguments, request)

    async def _get_health(self, grants: Grants) -> CallToolResult:
        shown = grants.viewed(self._servers())
        verdicts = await asyncio.gather(*(server.health() for server in shown.values()))
        return health_result(document_of_all(dict(zip(shown, verdicts, strict=True)), datetime.now(UTC)))


def tool_of(agent: str) -> str:
    """Return the name of an agent's tool, which models accept."""
    return accepted(f"{_TOOL_PREFIX}{agent}")


def agent_of(tool: str, hosted: Iterable[str]) -> str | None:
    """Return the agent of a tool, one of `hosted` or not; None for other tools."""
    if not tool.startswith(_TOOL_PREFIX):
        return None
    return next((name for name in hosted if tool_of(name) == tool), tool.removeprefix(_TOOL_PREFIX))
