"""Tool calls and other operations of downstreams: journal, tool filters, limits, approvals, metrics and traces."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.agents.mcp_agent import McpAgent
from mcp_types import CallToolResult, InputRequiredResult, TextContent

from pallas_gateway.calls.tool_names import name_at_model, real_name
from pallas_gateway.runtime.call.journal import journal_of, run_in_journal, tool_begins
from pallas_gateway.runtime.call.tool_approval import LimitsOfTool, why_not_approved
from pallas_gateway.runtime.downstreams.operations import DownstreamOperation, refresh_and_report
from pallas_gateway.runtime.downstreams.result_checks import read_misfits
from pallas_gateway.runtime.downstreams.tool_filters import passes, why_withheld
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fast_agent.agents.tool_agent import ToolAgent
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended
    from mcp.client.session import ClientSession


def call_tool(original: Callable[..., Awaitable[CallToolResult]], holder: type[ToolAgent]) -> Callable[..., Any]:
    """Return `call_tool` of a class of agents: journal, tool filters, limits, approval, then the tool."""

    @wraps(original)
    async def call_tool(
        self: ToolAgent,
        name: str,
        arguments: dict[str, Any] | None = None,
        tool_use_id: str | None = None,
        **options: Any,
    ) -> CallToolResult:
        async def run_tool() -> CallToolResult:
            return await original(self, name, arguments, tool_use_id, **options)

        async def run_if_allowed() -> CallToolResult:
            refusal = await why_withheld(self, name) if isinstance(self, McpAgent) else None
            refusal = refusal or limits.why_not_run()
            if refusal is None:
                if (refusal := await why_not_approved(self, name, arguments or {})) is None:
                    if not ((run := current_scope.get().tool_run) is not None and run.repeats):  # else it asks first
                        await tool_begins()
                    return await run_tool()
                limits.release()
            return _refused(tool_use_id, refusal)

        if isinstance(self, McpAgent) and holder is not McpAgent:
            return await run_tool()  # called by `McpAgent.call_tool`, for a function of the agent
        limits = LimitsOfTool(self, name)
        return await run_in_journal(self, tool_use_id, run_if_allowed, limits.why_not_run)

    return call_tool


def _refused(tool_use_id: str | None, refusal: str) -> CallToolResult:
    """The result of a tool that the gateway has not run."""
    scope = current_scope.get()
    if scope.tool_run is not None:
        scope.tool_run.is_refused = True
    if tool_use_id is not None:
        scope.tool_failures[tool_use_id] = "refused"
    return CallToolResult(content=[TextContent(type="text", text=refusal)], is_error=True)


def llm_step(original: Callable[..., Awaitable[PromptMessageExtended]], _: type[ToolAgent]) -> Callable[..., Any]:
    """Return the step of a loop that runs the model: the journal records its turns, and plays recorded ones."""

    @wraps(original)
    async def llm_step(self: ToolAgent, messages: list[PromptMessageExtended], *more: Any, **options: Any) -> Any:
        journal = journal_of(self)
        if journal is None:
            return await original(self, messages, *more, **options)
        return await journal.turn(messages, original, *more, **options)

    return llm_step


def session_call_tool(original: Callable[..., Awaitable[Any]], _: type[ClientSession]) -> Callable[..., Any]:
    """Return the request of a tool call: the journal keeps what the server requires (2026-07-28).

    A tool that ran has not failed, whatever the form of its result.
    """

    @wraps(original)
    async def call_tool(self: ClientSession, *arguments: Any, **options: Any) -> Any:
        if "validate_tool_result" not in vars(self):  # its listing is not cached
            read_misfits(self)
        run = current_scope.get().tool_run
        if run is None:
            return await original(self, *arguments, **options)
        if run.repeats:
            run.repeats = False
            return run.input_required
        run.require(None)
        await tool_begins()
        result = await original(self, *arguments, **options)
        if isinstance(result, InputRequiredResult):
            run.require(result)
        return result

    return call_tool


def execute_on_server(original: Callable[..., Awaitable[Any]], _: type[MCPAggregator]) -> Callable[..., Any]:
    """Return the method of all operations: measured, and failed ones are logged. Handlers of tools see only tools."""

    @wraps(original)
    async def execute_on_server(
        self: MCPAggregator, server_name: str, operation_type: str, operation_name: str, *more: Any, **options: Any
    ) -> Any:
        operation = DownstreamOperation(server_name, operation_type, operation_name)
        if (make_result := options.get("error_factory")) is not None:
            options["error_factory"] = operation.noting_failures(make_result)
        with operation.observed():
            operation.result = await original(self, server_name, operation_type, operation_name, *more, **options)
            return operation.result

    return execute_on_server


def create_namespaced_name(original: Callable[[str, str], str], _: Any) -> Callable[[str, str], str]:
    """Return the function that names tools for models: fast-agent cuts names, so that several tools may have one."""

    @wraps(original)
    def create_namespaced_name(server_name: str, resource_name: str) -> str:
        return name_at_model(server_name, resource_name, current_scope.get().servers)

    return create_namespaced_name


def tool_matches_filter(original: Callable[[McpAgent, str], bool], _: type[McpAgent]) -> Callable[..., bool]:
    """Apply an agent's filters to the real name of a tool."""

    @wraps(original)
    def tool_matches_filter(self: McpAgent, packed_name: str) -> bool:
        found = self.aggregator._namespaced_tool_map.get(packed_name)
        if found is None:
            return original(self, packed_name)
        server = self.aggregator.server_display_name(found.server_name)
        return passes(self.config.tools or {}, real_name(server, found.tool.name))

    return tool_matches_filter


def handle_change(original: Callable[..., Awaitable[None]], _: type[MCPAggregator]) -> Callable[..., Any]:
    """Return a method that handles the notification that a server has changed: the agent's listings are refreshed."""

    @wraps(original)
    async def handle(self: MCPAggregator, server_name: str, *more: Any) -> None:
        await refresh_and_report(self, server_name, lambda: original(self, server_name, *more))

    return handle
