"""Names of fast-agent and its libraries that the product uses and does not replace. Most of them are private."""

from __future__ import annotations

from pallas_gateway.changes.change import Name

_AGENT = "fast_agent.agents"
_AGGREGATOR = "fast_agent.mcp.mcp_aggregator:MCPAggregator"
_CALLBACKS = "fast_agent.mcp.client_callback_runtime:MCPClientCallbackRuntime"
_DISPATCHER = "mcp.shared.jsonrpc_dispatcher:JSONRPCDispatcher"
_GATEWAY = "fast_agent.mcp.client_gateway"
_LLM = "fast_agent.llm"
_MANAGER = "fast_agent.mcp.mcp_connection_manager:MCPConnectionManager"
_SERVER = "fast_agent.mcp.mcp_connection_manager:ServerConnection"
_SESSION = "mcp.client.session:ClientSession"
_STREAMABLE = "mcp.client.streamable_http"

RELIED_ON = (
    # Agents and their loops
    Name(f"{_AGENT}.mcp_agent:McpAgent._provider_managed_server_keys"),
    Name(f"{_AGENT}.tool_agent:ToolAgent._execution_tools"),
    Name(f"{_AGENT}.llm_decorator:LlmDecorator.set_model", ("self", "model")),
    Name(f"{_AGENT}.llm_decorator:LlmDecorator._default_request_params"),
    Name(f"{_AGENT}.tool_runner:ToolRunner._advance_iteration", ("self",), reads=("_request_params",)),
    Name("fast_agent.core.core_app:Core.__init__", ("self", "name", "settings")),
    Name("fast_agent.core.core_app:Core._config_or_path"),
    Name("fast_agent.core.fastagent:FastAgent._load_instance_settings", ("self",)),
    Name("fast_agent.core.fastagent:FastAgent._settings"),
    Name("fast_agent.config:_settings"),
    # Models
    Name(f"{_LLM}.model_factory:ModelFactory._load_provider_class", ("provider",)),
    Name(f"{_LLM}.provider_key_manager:ProviderKeyManager._google_vertex_enabled", ("config",)),
    Name(f"{_LLM}.fastagent_llm:FastAgentLLM.resolve_structured_tool_policy", ("self", "request_params")),
    Name(f"{_LLM}.fastagent_llm:FastAgentLLM.retry_count"),
    Name(f"{_LLM}.fastagent_llm:FastAgentLLM.add_stream_listener", ("self", "listener")),
    Name(f"{_LLM}.fastagent_llm:FastAgentLLM.add_tool_stream_listener", ("self", "listener")),
    Name(f"{_LLM}.fastagent_llm:_mcp_metadata_var"),
    Name(f"{_LLM}.model_database:ModelDatabase.get_model_params", reads=("_RUNTIME_MODEL_PARAMS",)),
    # Connections to downstreams
    *(
        Name(f"{_AGGREGATOR}.{name}")
        for name in (
            "_app_integration_configs",
            "_attached_server_names",
            "_attachment_locks",
            "_mcp_skill_registries",
            "_namespaced_tool_map",
            "_persistent_connection_manager",
            "_server_to_tool_map",
            "_tool_handler",
        )
    ),
    Name(f"{_AGGREGATOR}._attach_server_locked", ("self", "server_name", "server_config", "options")),
    Name(f"{_AGGREGATOR}._require_connection_manager", ("self",)),
    Name("fast_agent.mcp.mcp_connection_manager:_subscription_filter", ("server_conn",)),
    Name(f"{_GATEWAY}:_http_timeout", ("config",)),
    Name(f"{_GATEWAY}:streamable_http_client", ("url", "http_client", "max_sse_event_size")),
    Name(f"{_MANAGER}.running_servers"),
    Name(f"{_MANAGER}._lock"),
    Name(f"{_MANAGER}.disconnect_server", ("self", "server_name")),
    Name(f"{_MANAGER}.disconnect_all", ("self",)),
    Name(f"{_MANAGER}.get_server", ("self", "server_name")),
    Name(f"{_MANAGER}.reconnect_server", ("self", "server_name")),
    Name(f"{_MANAGER}._suppress_mcp_sse_errors", ("self",)),
    Name(f"{_MANAGER}._suppress_mcp_streamable_http_errors", ("self",)),
    Name(f"{_MANAGER}._suppress_mcp_oauth_cancel_errors", ("self",)),
    Name(f"{_MANAGER}._client_connection_factory", ("self", "server_conn_holder", "server_name")),
    *(
        Name(f"{_SERVER}.{name}")
        for name in ("_callback_runtime", "_error_occurred", "client", "server_config", "server_instructions")
    ),
    *(Name(f"{_SERVER}.{name}", ("self",)) for name in ("cancel_lifecycle", "is_healthy")),
    *(
        Name(f"{_CALLBACKS}.{name}")
        for name in (
            "aggregator",
            "custom_elicitation_handler",
            "elicitation_callback",
            "message_handler",
            "sampling_callback",
            "server_config",
        )
    ),
    Name(
        "fast_agent.mcp.client_connection:MCPClientConnection.__init__",
        ("transport", "callbacks", "read_timeout_seconds", "cache", "protocol_mode"),
    ),
    Name("fast_agent.mcp.client_connection:MCPClientConnection.callbacks"),
    # The MCP SDK
    *(Name(f"mcp.client:Client.{name}") for name in ("_session", "mode", "prior_discover")),
    *(
        Name(f"{_SESSION}.{name}")
        for name in (
            "_dispatcher",
            "_elicitation_callback",
            "_negotiated_version",
            "_session_read_timeout_seconds",
            "_stamp",
            "_tool_output_schemas",
            "_tool_output_validators",
            "_x_mcp_header_maps",
        )
    ),
    *(Name(f"{_SESSION}.{name}", ("dctx", "method", "params")) for name in ("_on_notify", "_on_request")),
    Name(f"{_SESSION}._absorb_tool_listing", ("self", "result", "complete")),
    Name(f"{_SESSION}.validate_tool_result", ("self", "name", "result")),
    *(Name(f"mcp.shared._request_clock:RequestClock.{name}", ("self",)) for name in ("pause", "resume")),
    *(Name(f"{_DISPATCHER}.{name}") for name in ("_pending", "_running")),
    Name(f"{_DISPATCHER}.send_raw_request", ("self", "method", "params", "opts")),
    Name(f"{_DISPATCHER}._write", ("self", "message", "metadata")),
    Name(f"{_DISPATCHER}._dispatch", ("self", "item", "on_request", "on_notify", "sender_ctx")),
    Name(f"{_DISPATCHER}._spawn", ("self", "fn", "args", "sender_ctx")),
    Name(f"{_DISPATCHER}._resolve_pending", ("self", "request_id", "outcome")),
    Name(f"{_STREAMABLE}:StreamableHTTPTransport._handle_post_request", ("self", "ctx")),
    Name(f"{_STREAMABLE}:StreamableHTTPTransport._handle_sse_event", ("self", "sse", "read_stream_writer")),
    Name(
        f"{_STREAMABLE}:RequestContext",
        ("client", "session_id", "session_message", "metadata", "read_stream_writer"),
    ),
    # HTTP clients
    *(Name(f"httpx2:AsyncClient.{name}") for name in ("_mounts", "_transport")),
    Name("httpx2:AsyncHTTPTransport._pool"),
    Name("httpcore2:AsyncConnectionPool.connections"),
    *(Name(f"httpcore2:AsyncConnectionInterface.{name}") for name in ("aclose", "has_expired", "is_closed", "is_idle")),
)
