"""The MCP server of one agent: `tools/list`, `tools/call`, and an empty history prompt.

It uses the SDK's low-level server, because the gateway checks input row by row (one bad row of history does not refuse
a call), adds `_meta` to results, and has exact schemas. Generated tools of a framework allow none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    GetPromptResult,
    Icon,
    ListPromptsResult,
    ListToolsResult,
    Prompt,
)

from pallas_gateway.calls.call import GET_HEALTH
from pallas_gateway.calls.parameters import listed_schema
from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from pallas_gateway.doors.mcp.envelope import listen_to_the_initialize_era
from pallas_gateway.doors.mcp.message_calls import answer_message
from pallas_gateway.doors.mcp.rounds import sealing
from pallas_gateway.doors.mcp.tool_requests import McpToolRequest
from pallas_gateway.doors.mcp.tools import (
    LONGEST_TITLE,
    clamped_to_bytes,
    declared_to_only_read,
    health_result,
    health_tool,
    message_tool,
    under_another_name,
)
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp_types import (
        GetPromptRequestParams,
        PaginatedRequestParams,
        Tool,
    )

    from pallas_gateway.core.health.verdict import Verdict
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.doors.mcp.envelope import Context
    from pallas_gateway.doors.mcp.tasks import McpTasks
    from pallas_gateway.doors.mcp.tool_requests import MessageResult


LONGEST_OWN_DESCRIPTION = 100
"""Bytes of an agent's description in `serverInfo`, which every result of the 2026-07-28 era contains."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Version, icons, and the names of an agent's message tool, in which `{agent}` stands for the agent's name.

    `offers_tasks`: its long calls may become tasks.
    """

    version: str
    icons: tuple[Icon, ...]
    tool_names: tuple[str, ...]
    offers_tasks: bool = False


class AgentServer:
    """The MCP server of one hosted agent; HTTP requests come in by `endpoint`."""

    def __init__(  # noqa: PLR0913  the agent, and what its server uses of the gateway
        self,
        agent: HostedAgent,
        *,
        server_info: ServerInfo,
        sessions: Sessions,
        check_health: Callable[[HostedAgent], Awaitable[Verdict]],
        only_reads: Callable[[str], bool],
        tasks: McpTasks | None = None,
    ) -> None:
        """`only_reads` returns whether all tools of the agent of this name declare that they change nothing."""
        self._tasks = tasks
        self._agent = agent
        self._sessions = sessions
        self._check_health = check_health
        self._only_reads = only_reads
        self._history_prompt = f"{agent.name}_history"
        self._show(server_info)
        self.endpoint = McpEndpoint(self._server(server_info), agent.name, sessions)

    def update(self, server_info: ServerInfo) -> None:
        """Show the agent by its present settings from the next request on; running requests keep the earlier ones."""
        if (server_info, self._agent.settings) == self._shown:
            return  # most agents do not change; updating all of them would delay calls
        self._show(server_info)
        self.endpoint.update(self._server(server_info))

    def message_tool(self, name: str) -> Tool:
        """Return the message tool under a name, for clients."""
        return self._message_tool(name, listed_schema(self._agent.settings))

    def listed_tool(self, name: str) -> Tool:
        """Return the message tool under a name; `readOnlyHint` if the agent's own tools change nothing."""
        tool = self.message_tool(name)
        return declared_to_only_read(tool) if self._only_reads(self._agent.name) else tool

    def message_tool_for_peers(self, name: str) -> Tool:
        """Return the message tool for other agents. Without `params`: a model must not set another agent's sampling."""
        return self._message_tool(name, None)

    def _message_tool(self, name: str, params: dict[str, Any] | None) -> Tool:
        title = self._agent.settings.shown_title(self._agent.name)
        description = self._agent.settings.description or f"Send a message to {title} and get its answer."
        return message_tool(name, title=title, description=description, params=params)

    async def answer(self, arguments: dict[str, Any], request: McpToolRequest) -> MessageResult:
        """Return the result of a call of the message tool."""
        with self.endpoint.requests.one_more():
            return await answer_message(self._agent, self._sessions, arguments, request, self._tasks)

    async def call_tool(self, name: str, arguments: dict[str, Any], request: McpToolRequest) -> MessageResult:
        """Return the result of a tool.

        Raises:
            MCPError: the agent has no such tool.
        """
        if name in self._message_names:
            return await self.answer(arguments, request)
        if name == GET_HEALTH:
            verdict = await self.health()
            return health_result(verdict.document(datetime.now(UTC)))
        known = ", ".join(tool.name for tool in self._tools)
        raise MCPError(INVALID_PARAMS, f"Unknown tool {quoted(name)}. Tools are: {known}.")

    async def health(self) -> Verdict:
        return await self._check_health(self._agent)

    def _show(self, server_info: ServerInfo) -> None:
        self._shown = server_info, self._agent.settings
        first, *others = dict.fromkeys(name.replace("{agent}", self._agent.name) for name in server_info.tool_names)
        self._message_names = frozenset({first, *others})
        tool = self.message_tool(first)
        self._tools = _listing(tool, others)
        self._tools_that_only_read = _listing(declared_to_only_read(tool), others)
        self.tools_for_peers = _listing(self.message_tool_for_peers(first), others)

    def _server(self, server_info: ServerInfo) -> Server[Any]:
        settings = self._agent.settings
        server: Server[Any] = Server(
            self._agent.name,
            version=server_info.version,
            title=clamped_to_bytes(settings.shown_title(self._agent.name), LONGEST_TITLE),
            description=clamped_to_bytes(settings.description, LONGEST_OWN_DESCRIPTION)
            if settings.description
            else None,
            icons=list(server_info.icons) or None,
            on_list_tools=self._list_tools,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )
        server.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)  # its result may be a task
        listen_to_the_initialize_era(server, self._agent.name, self._sessions)
        server.middleware.append(sealing(self._sessions.waiting_calls, self._agent.name))
        if server_info.offers_tasks and self._tasks is not None:
            self._tasks.serve_at(server, self._agent.name)
        return server

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        del context, params
        return ListToolsResult(tools=self._tools_that_only_read if self._only_reads(self._agent.name) else self._tools)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> MessageResult:
        request = McpToolRequest.over_http(context, params, self._agent.name, self._sessions.log_levels)
        return await self.call_tool(params.name, params.arguments or {}, request)

    async def _list_prompts(self, context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        del context, params
        description = "Always empty: the client keeps the conversation and sends it as `history`."
        return ListPromptsResult(prompts=[Prompt(name=self._history_prompt, description=description)])

    async def _get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        del context
        if params.name != self._history_prompt:
            why = f"Unknown prompt {quoted(params.name)}. The prompt is: {self._history_prompt}."
            raise MCPError(INVALID_PARAMS, why)
        return GetPromptResult(messages=[])


def _listing(tool: Tool, other_names: Iterable[str]) -> list[Tool]:
    return [tool, *(under_another_name(tool, name) for name in other_names), health_tool()]
