"""Replacements in fast-agent that hosting many agents requires, each with its reason, and the check of its names.

Each module lists the private names of fast-agent and its libraries that it uses. If an upgrade removes or changes one,
`prepare()` raises at the start, before a call fails. Replacements that only make calls faster are in `fast_paths`.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import fast_agent.config
from fast_agent.agents.llm_decorator import LlmDecorator
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.agents.tool_runner import ToolRunner
from fast_agent.core.core_app import Core
from fast_agent.core.fastagent import FastAgent
from fast_agent.core.logging.logger import Logger
from fast_agent.llm import fastagent_llm
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.changes.change import LOADED, START
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime import fast_agent_log, fast_paths
from pallas_gateway.runtime.call import journal, questions
from pallas_gateway.runtime.call.journal import recorded
from pallas_gateway.runtime.call.tool_approval import approved
from pallas_gateway.runtime.compat.requirements import check_names, check_reads
from pallas_gateway.runtime.downstreams import (
    answers,
    connecting,
    connections,
    listed_connections,
    server_listing,
    shared_clients,
    shutdown,
    timeouts,
    tool_filters,
    unused_listings,
)
from pallas_gateway.runtime.downstreams.operations import reporting_changes, timed
from pallas_gateway.runtime.llm import attempts, client_cache, loading, openrouter
from pallas_gateway.runtime.settings import declared_models

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

# Called with a notification of a server that its tools, prompts or resources have changed.
_CHANGE_HANDLERS = ("_handle_tool_list_changed", "handle_subscription_event")

_RELIED_ON: ReliedOn = (
    (FastAgent, "_load_instance_settings", ("self",)),
    (FastAgent, "_settings", ()),
    (Core, "__init__", ("self", "name", "settings")),
    (Core, "_config_or_path", ()),
    (fast_agent.config, "_settings", ()),
    (McpAgent, "call_tool", ("self", "name", "arguments")),
    (McpAgent, "_provider_managed_server_keys", ()),
    (ToolAgent, "call_tool", ("self", "name", "arguments")),
    (ToolAgent, "_execution_tools", ()),
    (MCPAggregator, "_execute_on_server", ("self", "server_name", "operation_type", "operation_name", "error_factory")),
    *((MCPAggregator, name, ("self", "server_name")) for name in _CHANGE_HANDLERS),
    (LlmDecorator, "set_model", ("self", "model")),
    (LlmDecorator, "_default_request_params", ()),
    (fastagent_llm.FastAgentLLM, "resolve_structured_tool_policy", ("self", "request_params")),
    (Logger, "event", ("self", "etype", "ename", "message", "context", "data")),
    (ToolRunner, "_advance_iteration", ("self",)),
    (fastagent_llm, "_mcp_metadata_var", ()),
    *answers.RELIED_ON,
    *connecting.RELIED_ON,
    *listed_connections.RELIED_ON,
    *connections.RELIED_ON,
    *server_listing.RELIED_ON,
    *shared_clients.RELIED_ON,
    *shutdown.RELIED_ON,
    *timeouts.RELIED_ON,
    *unused_listings.RELIED_ON,
    *questions.RELIED_ON,
    *journal.RELIED_ON,
    *attempts.RELIED_ON,
    *loading.RELIED_ON,
    *declared_models.RELIED_ON,
)
# Attributes that the gateway sets for these methods, or reads in replacements of them.
_READ: tuple[tuple[Any, str, str], ...] = (
    (ToolRunner, "_advance_iteration", "_request_params"),
    (ModelDatabase, "get_model_params", "_RUNTIME_MODEL_PARAMS"),
)
_prepared = False


def prepare() -> None:
    """Check fast-agent and make it fit for hosting many agents; safe to call again.

    Raises:
        PlatformError: the installed fast-agent lacks a name that the gateway relies on; the message has it.
        ConfigurationError: `PALLAS_FAST_PATHS` names an unknown fast path.
    """
    global _prepared  # noqa: PLW0603  the patched classes are process-wide, so is this mark
    if _prepared:
        return
    registry().check_switches(also=[path.name for path in fast_paths.PATHS])
    registry().install(START)
    registry().install(LOADED)
    check()
    connecting.prepare()
    timeouts.prepare()
    answers.prepare()
    unused_listings.prepare()
    _watch_operations()
    Logger.event = fast_agent_log.event  # type: ignore[method-assign]  # fast-agent's own logging is off
    run = recorded(tool_filters.guarded(approved(McpAgent.call_tool)))
    McpAgent.call_tool = wraps(McpAgent.call_tool)(run)  # type: ignore[method-assign]
    run = recorded(approved(ToolAgent.call_tool, but=McpAgent), but=McpAgent)
    ToolAgent.call_tool = wraps(ToolAgent.call_tool)(run)  # type: ignore[method-assign]
    journal.prepare()
    questions.prepare()
    loading.prepare()
    attempts.prepare()
    declared_models.prepare()
    for fast_path in fast_paths.OF_FAST_AGENT:
        fast_path.install()
    _prepared = True


def check() -> None:
    """Raise `PlatformError` unless every name exists and takes the parameters that it is called with."""
    check_names(_RELIED_ON)
    check_reads(_READ)


async def shut_down() -> None:
    """End fast-agent's process-wide logging and context after the last agent has stopped."""
    await openrouter.close()
    await client_cache.close_clients()
    await registry().close()


def _watch_operations() -> None:
    """Time tools, prompts and resources, and log those that fail. fast-agent's own handlers see only tools."""
    original = MCPAggregator._execute_on_server
    watched = wraps(original)(fast_agent_log.traced(timed(original)))  # `check()` requires the original's signature
    MCPAggregator._execute_on_server = watched  # type: ignore[method-assign]
    for name in _CHANGE_HANDLERS:
        handler = getattr(MCPAggregator, name)
        setattr(MCPAggregator, name, wraps(handler)(reporting_changes(handler)))
