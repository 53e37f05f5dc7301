"""Tool calls and other operations of downstreams: journal, tool filters, limits, approvals, metrics and traces."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any

from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.core.exceptions import walk_exception_chain
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT, CallToolResult, InputRequiredResult, TextContent

from pallas_gateway.calls.tool_names import name_at_model, real_name
from pallas_gateway.runtime.call.journal import journal_of, run_in_journal, tool_begins
from pallas_gateway.runtime.call.tool_approval import LimitsOfTool, why_not_approved
from pallas_gateway.runtime.downstreams.credentials import status_of
from pallas_gateway.runtime.downstreams.result_checks import read_misfits
from pallas_gateway.runtime.downstreams.tool_filters import passes, why_withheld
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fast_agent.agents.tool_agent import ToolAgent
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended
    from mcp.client.session import ClientSession

    from pallas_gateway.runtime.scope import Operations


_trace_log = logging.getLogger("pallas.forward.trace")
# fast-agent's operation types, and their names in the metrics. Listings are not counted: they belong to connecting.
_KINDS = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "resources/directory/read": "resource",
}
_OTHER_SERVER = "other"
"""The name for servers that are not configured: a model may attach one (`@fast.smart`) under any name."""
_OUTDATED = re.compile(
    r"(?:unknown|unsupported|no such) tool|tool\b.{0,200}\b(?:not found|does not exist)"
    r"|invalid (?:arguments|params)|validation error",
    re.IGNORECASE | re.DOTALL,
)
_KINDS_OF_CODES = {CONNECTION_CLOSED: "connection", REQUEST_TIMEOUT: "timeout", PARSE_ERROR: "unreadable"}
_LONGEST_REPORT = 300
"""Length of the beginning of a result in which servers describe an error."""


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
        operation = _Operation(server_name, operation_type, operation_name)
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
    """Return a method that handles the notification that a server has changed: its tools are listed again.

    Notifications during a refresh cause one more. In a call a refresh ends after some seconds: it holds the lock that
    the end of the call requires.
    """

    @wraps(original)
    async def handle(self: MCPAggregator, server_name: str, *more: Any) -> None:
        has_changed: dict[str, bool] = vars(self).setdefault("_pallas_has_changed", {})
        is_refreshing = server_name in has_changed
        has_changed[server_name] = True
        if is_refreshing:
            return
        operations = current_scope.get().operations
        try:
            while has_changed[server_name]:
                has_changed[server_name] = False
                if operations is not None:
                    operations.on_trouble(server_name, is_outdated=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(operations.refresh_seconds if operations is not None else None):
                        await original(self, server_name, *more)
        finally:
            del has_changed[server_name]

    return handle


@dataclass
class _Operation:
    """One operation of a downstream, for the metrics and the log."""

    server: str
    type: str
    name: str
    result: Any = None
    _failures: list[str] = field(default_factory=list)
    _has_ended: bool = False

    def noting_failures(self, make_result: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return `make_result`, which notes each failure: for most operations fast-agent drops the exception."""

        def noted(message: str) -> Any:
            self._log_failure()
            if (call := current_scope.get().peer_call) is not None:
                current_scope.get().tool_failures[call.tool_call_id] = _kind_of(sys.exception())
            self._failures.append(message)
            return make_result(message)

        return noted

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Report the operation of the block to the `operations` of the call, and log its failure."""
        operations, began = current_scope.get().operations, monotonic()
        try:
            yield
            self._has_ended = True
        except Exception:
            self._log_failure()
            raise
        finally:
            if operations is not None:
                self._report(operations, monotonic() - began)

    def _log_failure(self) -> None:
        # Listings are requested at each connection, and fail each time if a server is down or has no prompts.
        level = logging.DEBUG if self.type.endswith("/list") else logging.WARNING
        extra = {"server": self.server, "operation": self.type, "subject": self.name}
        _trace_log.log(level, "downstream operation failed", extra=extra, exc_info=True)

    def _report(self, operations: Operations, seconds: float) -> None:
        has_failed = bool(self._failures) or getattr(self.result, "is_error", False)
        if (kind := _KINDS.get(self.type)) is not None:
            server = self.server if self.server in operations.servers else _OTHER_SERVER
            operations.on_operation(server, kind, ok=self._has_ended and not has_failed, seconds=seconds)
        if has_failed:
            is_outdated = bool(self._failures) or contradicts_listing(self.result)
            operations.on_trouble(self.server, is_outdated=is_outdated)


def _kind_of(error: BaseException | None) -> str:
    """The kind of error of a tool call that has failed, as one word for the log."""
    status = status_of(error) if error is not None else None
    if status is not None:
        return f"http_{status}"
    of_protocol = (one for one in walk_exception_chain(error) if isinstance(one, MCPError)) if error is not None else ()
    code = next((one.error.code for one in of_protocol), None)
    return "connection" if code is None else _KINDS_OF_CODES.get(code, "rpc_error")


def contradicts_listing(result: Any) -> bool:
    """Return True if a tool's result reports an unknown tool or invalid arguments, in the words of common servers.

    A tool that happens to use such words costs one more listing.
    """
    if not getattr(result, "is_error", False):
        return False
    return any(_OUTDATED.search((getattr(block, "text", None) or "")[:_LONGEST_REPORT]) for block in result.content[:1])
