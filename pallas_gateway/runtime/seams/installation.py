"""All names by which the product enters fast-agent and the MCP SDK, and the check that they fit.

A repair or a fast path of a library is not here: see `pallas_gateway/changes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit, places, replace
from pallas_gateway.runtime.seams import connections, deadlines, llm_turns, log_events, questions, tool_calls
from pallas_gateway.runtime.seams.relied_on import RELIED_ON

if TYPE_CHECKING:
    from collections.abc import Callable

    type Wrap = Callable[[Any, Any], Any]

_MCP_AGENT = "fast_agent.agents.mcp_agent"
_AGENT = f"{_MCP_AGENT}:McpAgent"
_TOOL_AGENT = "fast_agent.agents.tool_agent:ToolAgent"
_AGGREGATOR = "fast_agent.mcp.mcp_aggregator:MCPAggregator"
_CALLBACKS = "fast_agent.mcp.client_callback_runtime:MCPClientCallbackRuntime"
_CONNECTION = "fast_agent.mcp.client_connection:MCPClientConnection"
_GATEWAY = "fast_agent.mcp.client_gateway"
_SESSION = "mcp.client.session:ClientSession"
_CALL = ("self", "name", "arguments")
_EXECUTE = ("self", "server_name", "operation_type", "operation_name", "error_factory")
_SSE = ("url", "headers", "sse_read_timeout", "httpx_client_factory", "auth")

SEAMS: tuple[tuple[Name, Wrap], ...] = (
    (Name(f"{_AGENT}.call_tool", _CALL), tool_calls.call_tool),
    (Name(f"{_TOOL_AGENT}.call_tool", _CALL), tool_calls.call_tool),
    (
        Name(f"{_TOOL_AGENT}._tool_runner_llm_step", ("self", "messages", "request_params", "tools")),
        tool_calls.llm_step,
    ),
    (Name(f"{_SESSION}.call_tool", _CALL), tool_calls.session_call_tool),
    (Name(f"{_AGGREGATOR}._execute_on_server", _EXECUTE), tool_calls.execute_on_server),
    (Name(f"{_AGGREGATOR}._handle_tool_list_changed", ("self", "server_name")), tool_calls.handle_change),
    (Name(f"{_AGGREGATOR}.handle_subscription_event", ("self", "server_name")), tool_calls.handle_change),
    *(
        (Name(f"{module}:create_namespaced_name", ("server_name", "resource_name")), tool_calls.create_namespaced_name)
        for module in ("fast_agent.mcp.mcp_aggregator", "fast_agent.core.instruction_refresh", _MCP_AGENT)
    ),
    (Name(f"{_AGENT}._tool_matches_filter", ("self", "packed_name")), tool_calls.tool_matches_filter),
    (
        Name("fast_agent.mcp.mcp_aggregator:MCPConnectionManager", ("server_registry", "context")),
        connections.connection_manager,
    ),
    (Name(f"{_AGGREGATOR}.load_servers", ("self", "force_connect")), connections.load_servers),
    (Name(f"{_SESSION}.list_tools", ("self", "params")), connections.list_tools),
    (Name(f"{_AGGREGATOR}._fetch_server_tools", ("self", "server_name")), connections.fetch_server_tools),
    (Name(f"{_AGGREGATOR}._create_callback_runtime", ("self", "server_name")), connections.create_callback_runtime),
    (Name(f"{_AGGREGATOR}.get_server_instructions", ("self",)), connections.get_server_instructions),
    (Name(f"{_GATEWAY}:_prepare_headers_and_auth", ("server_config",)), connections.prepare_headers_and_auth),
    (Name(f"{_GATEWAY}:_http_diagnostic_hooks", ("server_name", "hooks")), connections.http_diagnostic_hooks),
    (Name(f"{_GATEWAY}:sse_client", _SSE), connections.sse_client),
    (Name(f"{_CALLBACKS}._resolve_elicitation_handler", ("self",)), questions.resolve_elicitation_handler),
    (Name(f"{_SESSION}._build_capabilities", ("self", "version")), questions.build_capabilities),
    (Name(f"{_CONNECTION}.call_tool", ("self",)), questions.repeated_after_pages),
    (Name(f"{_CONNECTION}.read_resource", ("self",)), questions.repeated_after_pages),
    (Name(f"{_CONNECTION}.get_prompt", ("self",)), questions.repeated_after_pages),
    (Name("fast_agent.tools.elicitation:get_elicitation_input_callback"), questions.human_input_callback),
    (Name("mcp.shared.jsonrpc_dispatcher:request_clock", ("timeout",)), deadlines.request_clock),
    (
        Name(
            "fast_agent.llm.fastagent_llm:FastAgentLLM._execute_with_retry",
            ("self", "func", "args", "on_final_error", "kwargs"),
        ),
        llm_turns.execute_with_retry,
    ),
    (Name("fast_agent.llm.model_factory:import_module", ("name",)), llm_turns.import_provider),
    (Name("fast_agent.llm.model_database:ModelDatabase._RUNTIME_MODEL_PARAMS"), llm_turns.runtime_models),
    (
        Name("fast_agent.core.logging.logger:Logger.event", ("self", "etype", "ename", "message", "context", "data")),
        log_events.event,
    ),
)
"""Each name with what makes its wrapper. `deadlines.CHILD_CLOCK` is the last one: its module is imported late."""
_is_installed = False


def install_seams() -> None:
    """Enter fast-agent; safe to call again."""
    global _is_installed  # noqa: PLW0603  libraries are changed for the whole process
    if _is_installed:
        return
    for name, wrap in SEAMS:
        for holder, found in places(name):
            replace(holder, found, wrap)
    _is_installed = True


def check_seams() -> None:
    """Check all names that the product uses, before anything is replaced.

    Raises:
        PlatformError: the installed fast-agent lacks a name; the message has it.
    """
    if (why := misfit((*(name for name, _ in SEAMS), *RELIED_ON))) is not None:
        raise incompatible("fast-agent-mcp", why)
