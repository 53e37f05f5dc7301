"""Prepares fast-agent for hosting many agents: checks its names, changes its libraries, and enters it by the seams.

Here are all names by which the product enters fast-agent and the MCP SDK, and those whose loss nothing else would
show. A repair or a fast path of a library is not here: see `pallas_gateway/changes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import LOADED, START, Name
from pallas_gateway.changes.names import incompatible, misfit, places, replace
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime.seams import connections, llm_turns, log_events, questions, tool_calls

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
_AGENTS = "fast_agent.agents"
_DISPATCHER = "mcp.shared.jsonrpc_dispatcher:JSONRPCDispatcher"
_LLM = "fast_agent.llm"
_MANAGER = "fast_agent.mcp.mcp_connection_manager:MCPConnectionManager"
_STREAMABLE = "mcp.client.streamable_http"
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
    (Name("mcp.shared.jsonrpc_dispatcher:request_clock", ("timeout",)), questions.request_clock),
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
"""Each name with what makes its wrapper. `questions.CHILD_CLOCK` is the last one: its module is imported late."""
RELIED_ON = (
    Name(f"{_AGENTS}.mcp_agent:McpAgent._provider_managed_server_keys"),
    Name(f"{_AGENTS}.llm_decorator:LlmDecorator._default_request_params"),
    Name(f"{_AGENTS}.tool_runner:ToolRunner._advance_iteration", ("self",), reads=("_request_params",)),
    Name("fast_agent.core.core_app:Core.__init__", ("self", "name", "settings")),
    Name("fast_agent.core.core_app:Core._config_or_path"),
    Name("fast_agent.core.fastagent:FastAgent._settings"),
    Name("fast_agent.config:_settings"),
    Name(f"{_LLM}.model_factory:ModelFactory._load_provider_class", ("provider",)),
    Name(f"{_LLM}.model_database:ModelDatabase.get_model_params", reads=("_RUNTIME_MODEL_PARAMS",)),
    # Connections to downstreams
    Name(f"{_AGGREGATOR}._namespaced_tool_map"),
    *(Name(f"{_CALLBACKS}.{name}") for name in ("elicitation_callback", "message_handler", "sampling_callback")),
    Name(f"{_AGGREGATOR}._attach_server_locked", ("self", "server_name", "server_config", "options")),
    Name(f"{_GATEWAY}:_http_timeout", ("config",)),
    *(Name(f"{_MANAGER}.{name}", ("self", "server_name")) for name in ("get_server", "reconnect_server")),
    *(
        Name(f"{_MANAGER}.{name}", ("self",))
        for name in (
            "disconnect_all",
            "_suppress_mcp_sse_errors",
            "_suppress_mcp_streamable_http_errors",
            "_suppress_mcp_oauth_cancel_errors",
        )
    ),
    Name(f"{_MANAGER}._client_connection_factory", ("self", "server_conn_holder", "server_name")),
    Name("fast_agent.mcp.mcp_connection_manager:ServerConnection._error_occurred"),
    *(Name(f"mcp.client:Client.{name}") for name in ("_session", "mode", "prior_discover")),
    *(Name(f"{_SESSION}.{name}") for name in ("_tool_output_schemas", "_tool_output_validators", "_x_mcp_header_maps")),
    Name(f"{_SESSION}.validate_tool_result", ("self", "name", "result")),
    *(Name(f"{_DISPATCHER}.{name}") for name in ("_pending", "_running")),
    Name(f"{_DISPATCHER}.send_raw_request", ("self", "method", "params", "opts")),
    Name(f"{_DISPATCHER}._write", ("self", "message", "metadata")),
    Name(f"{_DISPATCHER}._spawn", ("self", "fn", "args", "sender_ctx")),
    Name(f"{_STREAMABLE}:StreamableHTTPTransport._handle_sse_event", ("self", "sse", "read_stream_writer")),
    # HTTP clients, whose versions fast-agent does not pin
    *(Name(f"httpx2:AsyncClient.{name}") for name in ("_mounts", "_transport")),
    Name("httpx2:AsyncHTTPTransport._pool"),
    Name("httpcore2:AsyncConnectionPool.connections"),
    *(Name(f"httpcore2:AsyncConnectionInterface.{name}") for name in ("aclose", "has_expired", "is_closed", "is_idle")),
)
"""Names of fast-agent and its libraries that the product sets, overrides or reads with a default.

Nothing else would show that they are gone. A name that is only called or read raises an error by itself.
"""
_prepared = False


def prepare() -> None:
    """Check fast-agent and make it fit for hosting many agents; safe to call again.

    Raises:
        PlatformError: the installed fast-agent lacks a name that the gateway relies on; the message has it.
        ConfigurationError: `PALLAS_CHANGES` has a name without `-` before it.
    """
    global _prepared  # noqa: PLW0603  libraries are changed for the whole process
    if _prepared:
        return
    registry().check_switches()
    check_seams()
    registry().install(START)
    registry().install(LOADED, ())  # a provider that does not fit is an error of the agents that use it
    for name, wrap in SEAMS:
        for holder, found in places(name):
            replace(holder, found, wrap)
    _prepared = True


def check_seams() -> None:
    """Check these names, before anything is replaced.

    Raises:
        PlatformError: the installed fast-agent lacks a name; the message has it.
    """
    if (why := misfit((*(name for name, _ in SEAMS), *RELIED_ON))) is not None:
        raise incompatible("fast-agent-mcp", why)
