"""Every place where the gateway reaches into fast-agent and its HTTP clients, with the reason; checked before use.

Deliberately the only module that replaces anything of fast-agent's. If an upgrade removes or reshapes one of these
names, `prepare()` says so at once instead of a call failing later.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import ssl
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy, deepcopy
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import fast_agent.config
import fast_agent.context
import httpx
import httpx._transports.default as httpx_transports
import httpx2
import httpx2._transports.default as httpx2_transports
from fast_agent.agents import llm_decorator
from fast_agent.agents.llm_decorator import LlmDecorator
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.agents.tool_runner import ToolRunner
from fast_agent.core.core_app import Core
from fast_agent.core.fastagent import FastAgent
from fast_agent.core.logging.logger import Logger
from fast_agent.io.source_resolver import materialize_text_source
from fast_agent.llm import fastagent_llm
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.mcp import client_gateway, mcp_aggregator, mcp_connection_manager
from fast_agent.mcp.client_gateway import PreparedHttpAuth
from fast_agent.mcp.mcp_aggregator import MCPAggregator, MCPAttachOptions
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager
from fast_agent.ui import console as consoles
from mcp.client.session import ClientSession
from mcp_types import LOG_LEVEL_META_KEY

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import fast_agent_log, llm_connections, savings, tool_filters
from pallas_gateway.runtime.call_connections import CallConnections
from pallas_gateway.runtime.credentials import CallAuth
from pallas_gateway.runtime.operations import timed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from fast_agent.config import MCPServerSettings, Settings
    from fast_agent.llm.provider_types import Provider
type Connect = Callable[[MCPAggregator], Awaitable[None]]

# How aggregators made in this context get their connections; None leaves it to fast-agent.
_connect: ContextVar[Connect | None] = ContextVar("pallas_connect_downstreams", default=None)

# Each holds the function under a name of its own; providers' clients take that of the package.
_TRUST_STORE_READERS: tuple[Any, ...] = (httpx, httpx_transports, httpx2, httpx2_transports)

# Each looks for it at the beginning of what a user says.
_CONTROL_MESSAGE_READERS: tuple[Any, ...] = (fastagent_llm, llm_decorator)

# Whatever prepare() relies on, as "owner, attribute, parameters it must take".
_RELIED_ON: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (fast_agent.config, "resolve_env_vars", ("config_item",)),
    (fast_agent.config, "get_settings", ("config_path", "home", "no_home")),
    (FastAgent, "_load_config", ("self",)),
    (fast_agent.config, "_settings", ()),
    (fast_agent.context, "cleanup_context", ()),
    (client_gateway, "_prepare_headers_and_auth", ("server_config",)),
    (McpAgent, "call_tool", ("self", "name")),
    (MCPAggregator, "load_servers", ("self", "force_connect")),
    (MCPAggregator, "_attach_server_locked", ("self", "server_name", "server_config", "options")),
    (MCPAggregator, "get_server_instructions", ("self",)),
    (mcp_aggregator, "MCPConnectionManager", ("server_registry", "context")),
    (MCPConnectionManager, "_client_connection_factory", ("self", "server_conn_holder", "server_name")),
    (client_gateway, "_http_timeout", ("config",)),
    (mcp_connection_manager, "_subscription_filter", ("server_conn",)),
    (ClientSession, "_absorb_tool_listing", ("self", "result", "complete")),
    (MCPAggregator, "_execute_on_server", ("self", "server_name", "operation_type", "operation_name", "error_factory")),
    (MCPConnectionManager, "_suppress_mcp_sse_errors", ("self",)),
    (MCPConnectionManager, "_suppress_mcp_streamable_http_errors", ("self",)),
    (MCPConnectionManager, "_suppress_mcp_oauth_cancel_errors", ("self",)),
    (Core, "cleanup", ("self",)),
    (LlmDecorator, "set_model", ("self", "model")),
    (Logger, "event", ("self", "etype", "ename", "message", "context", "data")),
    (ToolRunner, "_advance_iteration", ("self",)),
    (fastagent_llm, "_mcp_metadata_var", ()),
    (ModelFactory, "_load_provider_class", ("provider",)),
    *((module, "CONTROL_MESSAGE_SAVE_HISTORY", ()) for module in _CONTROL_MESSAGE_READERS),
    *savings.RELIED_ON,
    *((module, "create_ssl_context", ("verify", "cert", "trust_env")) for module in _TRUST_STORE_READERS),
)
_WITHOUT_POLLING = MCPAttachOptions(startup_timeout_seconds=None)  # type: ignore[arg-type]  # None is taken, and does not poll
# Of provider classes, by name because most of them are never imported; a test checks that they are there.
REQUEST_BUILDERS = {
    "ResponsesLLM": "_build_response_args",
    "OpenAILLM": "_prepare_api_request",
    "AnthropicLLM": "prepare_provider_arguments",
}
_BRACED_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\}")
_prepared = False


def prepare() -> None:
    """Check fast-agent and make it fit for hosting many agents; safe to call again.

    Raises:
        PlatformError: the installed fast-agent lacks something the gateway relies on; names it.
    """
    global _prepared  # noqa: PLW0603  the patched classes are process-wide, so is this mark
    if _prepared:
        return
    check()
    _expand_braced_defaults()
    _read_settings_apart()
    _authorise_each_request()
    _let_calls_connect()
    _time_operations()
    McpAgent.call_tool = wraps(McpAgent.call_tool)(tool_filters.guarded(McpAgent.call_tool))  # type: ignore[method-assign]
    _add_log_filters_once()
    _share_trust_store()
    _log_to_the_gateway()
    _connect_knowingly()
    _keep_llm_connections()
    _obey_no_message()
    savings.save()
    for console in (consoles.console, consoles.error_console, consoles.server_console):
        console.quiet = True  # its chat and progress have no place in a server's output
    # Modules that leave parse_cli_args on would read the gateway's own options as fast-agent's.
    sys.argv = sys.argv[:1]
    _prepared = True


def check() -> None:
    """Raise `PlatformError` unless every relied-on name is there and takes the parameters it is called with."""
    for owner, name, parameters in _RELIED_ON:
        found = getattr(owner, name, None)
        known = set(inspect.signature(found).parameters) if parameters and callable(found) else set()
        if not hasattr(owner, name) or not set(parameters) <= known:
            where = getattr(owner, "__name__", str(owner))
            message = f"fast-agent {_version()} does not fit: {where}.{name} is missing or has changed"
            raise PlatformError(f"{message}. Install the versions of requirements.lock.")
    if "_request_params" not in ToolRunner._advance_iteration.__code__.co_names:
        message = f"fast-agent {_version()} does not fit: ToolRunner does not read its limits from _request_params"
        raise PlatformError(f"{message}. Install the versions of requirements.lock.")


def read_settings(config_file: Path | None) -> Settings:
    """fast-agent's settings as an agent module would find them now; its process-wide ones stay as they are.

    Raises:
        Exception: whatever fast-agent raises over a file it cannot use.
    """
    return _get_settings_apart(str(config_file) if config_file else None, no_home=True)


def use_settings(config_file: Path) -> Settings:
    """The settings of a named file, which are the process-wide ones from here on."""
    settings = fast_agent.config._settings = _get_settings_apart(str(config_file))
    return settings


def _get_settings_apart(config_path: Any, **options: Any) -> Settings:
    """`get_settings` on a copy of its module's names: it clears the process-wide settings, which calls look at."""
    original = fast_agent.config.get_settings
    apart = FunctionType(original.__code__, {**vars(fast_agent.config), "_settings": None})
    apart.__defaults__, apart.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    return cast("Settings", apart(config_path, **options))


def keep_globals_when_leaving(fast: FastAgent) -> None:
    """Let this agent's harness be left without ending fast-agent's logging and context for all the others."""

    async def cleanup() -> None:
        """Nothing: `shut_down` does it once, for all."""

    # An instance attribute shadows the method; the harness calls `app.cleanup()` through the instance.
    fast.app.cleanup = cleanup


@contextmanager
def connecting(connect: Connect) -> Iterator[None]:
    """Aggregators made inside the block are connected by `connect`, those of agents-as-tools clones included."""
    token = _connect.set(connect)
    try:
        yield
    finally:
        _connect.reset(token)


@contextmanager
def asking_for_logs() -> Iterator[None]:
    """Tool calls made inside the block ask for log messages, as servers of the 2026-07-28 era want to be asked."""
    token = fastagent_llm._mcp_metadata_var.set({LOG_LEVEL_META_KEY: "info"})
    try:
        yield
    finally:
        fastagent_llm._mcp_metadata_var.reset(token)


async def attach(aggregator: MCPAggregator, server: str) -> None:
    """Connect `aggregator` to a server and ask what it offers, beside others that it connects to at the same time.

    `attach_server` does one after the other; the order matters only between attaching and closing the aggregator.
    """
    async with aggregator._attachment_locks.setdefault(server, asyncio.Lock()):
        await aggregator._attach_server_locked(server_name=server, server_config=None, options=_WITHOUT_POLLING)


def http_client(settings: MCPServerSettings, limits: httpx2.Limits) -> httpx2.AsyncClient:
    """An HTTP client for a server, as fast-agent makes one for each connection."""
    prepared = client_gateway._prepare_headers_and_auth(settings, trigger_oauth=False, oauth_mode="disabled")
    timeout = client_gateway._http_timeout(settings)
    return httpx2.AsyncClient(headers=prepared.headers, auth=prepared.oauth_provider, timeout=timeout, limits=limits)


async def close_idle(client: httpx2.AsyncClient) -> bool:
    """Close the sockets that have waited for a request for too long; whether any is left open."""
    transports = [one for one in (client._transport, *client._mounts.values()) if one is not None]
    pools = [one._pool for one in transports if isinstance(one, httpx2.AsyncHTTPTransport)]
    for connection in [one for pool in pools for one in pool.connections]:
        if connection.is_idle() and connection.has_expired():
            await connection.aclose()
    return any(not one.is_closed() for pool in pools for one in pool.connections)


def tells_of_changes(aggregator: MCPAggregator, server: str) -> bool:
    """Whether the connection to `server` hears when its tools change."""
    connection = aggregator._require_connection_manager().running_servers.get(server)
    return connection is not None and mcp_connection_manager._subscription_filter(connection) is not None


async def use_model(agent: LlmDecorator, spec: str) -> None:
    """`set_model` writes into the agent's configuration, which all calls share: this one gets a copy of its own."""
    agent.config = copy(agent.config)
    agent._default_request_params = agent.config.default_request_params = deepcopy(agent._default_request_params)
    await agent.set_model(spec)


def watch_requests(llm: Any, seen: Callable[[Mapping[str, Any]], None]) -> bool:
    """Have `seen` told what a provider's client is called with, by this one LLM; False if it has no such place.

    Only here the provider's class has made up its mind: parameters that its model does not take are gone.
    """
    kinds = {kind.__name__ for kind in type(llm).__mro__}
    name = next((name for kind, name in REQUEST_BUILDERS.items() if kind in kinds and hasattr(llm, name)), None)
    if name is None:
        return False
    original = getattr(llm, name)

    def build(*arguments: Any, **options: Any) -> Any:
        request = original(*arguments, **options)
        seen(request)
        return request

    setattr(llm, name, build)
    return True


async def shut_down() -> None:
    """End fast-agent's process-wide logging and context, once, after the last harness was left."""
    await llm_connections.close_clients()
    await fast_agent.context.cleanup_context()


def _expand_braced_defaults() -> None:
    """`${NAME:-default}`: fast-agent knows `${NAME:default}` only and would yield `-default`."""
    original = fast_agent.config.resolve_env_vars

    def resolve_env_vars(config_item: Any) -> Any:
        if isinstance(config_item, str):
            config_item = _BRACED_DEFAULT.sub(lambda m: os.environ.get(m[1]) or m[2], config_item)
        return original(config_item)

    # The original recurses through its module's global, so containers come back here item by item.
    fast_agent.config.resolve_env_vars = resolve_env_vars


def _read_settings_apart() -> None:
    """Modules are imported in threads while calls run."""

    def load_config(self: FastAgent) -> Settings:
        path = self.config_path
        source = materialize_text_source(path, label="config file", suffix=".yaml") if path is not None else None
        no_home = bool(getattr(self.args, "no_home", False))
        return _get_settings_apart(source, home=self._home_override, no_home=no_home)

    FastAgent._load_config = load_config  # type: ignore[method-assign]


def _authorise_each_request() -> None:
    """Give every connection a `CallAuth`; fast-agent offers no place for an `Auth` of one's own."""
    original = client_gateway._prepare_headers_and_auth

    def prepare_headers_and_auth(server_config: MCPServerSettings, **options: Any) -> PreparedHttpAuth:
        prepared = original(server_config, **options)
        if prepared.oauth_provider is not None or server_config.name is None or _has_credentials(server_config.url):
            return prepared  # with an `Auth` of ours the HTTP client would ignore credentials in the URL
        auth = CallAuth(server_config.name, has_own_authorization=bool(prepared.user_auth_keys))
        return PreparedHttpAuth(prepared.headers, auth, prepared.user_auth_keys)  # type: ignore[arg-type]  # any Auth

    client_gateway._prepare_headers_and_auth = prepare_headers_and_auth


def _has_credentials(url: str | None) -> bool:
    parsed = httpx2.URL(url or "")
    return bool(parsed.username or parsed.password)


def _let_calls_connect() -> None:
    """Connect when the call says so: creating an instance holds locks that other calls of the agent wait for."""
    original = MCPAggregator.load_servers

    async def load_servers(self: MCPAggregator, *, force_connect: bool = False) -> None:
        connect = _connect.get()
        if connect is None or force_connect:
            await original(self, force_connect=force_connect)
        elif not self.initialized:
            await connect(self)
            self.initialized = True

    MCPAggregator.load_servers = load_servers  # type: ignore[method-assign]


def _time_operations() -> None:
    """Tools, prompts and resources, at the one point all of them pass; fast-agent's handlers hear of tools only."""
    original = MCPAggregator._execute_on_server
    watched = wraps(original)(timed(original))  # so that `check()` still finds what it looks for
    MCPAggregator._execute_on_server = watched  # type: ignore[method-assign]


def _add_log_filters_once() -> None:
    """Each connection manager adds filters to global loggers and never removes them: one manager does for all."""
    methods = ("_suppress_mcp_sse_errors", "_suppress_mcp_streamable_http_errors", "_suppress_mcp_oauth_cancel_errors")
    for method in methods:
        setattr(MCPConnectionManager, method, _once(getattr(MCPConnectionManager, method)))


def _share_trust_store() -> None:
    """Every HTTP client reads the whole trust store anew, 20 to 40 ms of a blocked event loop: read it once.

    Clients that bring their own settings, or a client certificate, get a context of their own as before.
    """
    shared: dict[tuple[Any, ...], ssl.SSLContext] = {}
    for module in _TRUST_STORE_READERS:
        original = module.create_ssl_context

        def create_ssl_context(
            verify: Any = True, cert: Any = None, trust_env: bool = True, *, original: Any = original
        ) -> ssl.SSLContext:
            if verify is not True or cert is not None:
                return cast("ssl.SSLContext", original(verify=verify, cert=cert, trust_env=trust_env))
            key = (original, trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
            if key not in shared:
                shared[key] = original(verify=True, cert=None, trust_env=trust_env)
            return shared[key]

        setattr(module, "create_ssl_context", create_ssl_context)  # noqa: B010  the stubs do not export the name


def _connect_knowingly() -> None:
    """Connections of a call know what is known of its servers, and so do instructions that quote them."""
    original = MCPAggregator.get_server_instructions

    async def get_server_instructions(self: MCPAggregator) -> dict[str, tuple[str | None, list[str]]]:
        instructions = await original(self)
        manager = self._persistent_connection_manager
        for name, offer in (manager.offers if isinstance(manager, CallConnections) else {}).items():
            instructions[self.server_display_name(name)] = (offer.instructions, [one.tool.name for one in offer.tools])
        return instructions

    MCPAggregator.get_server_instructions = get_server_instructions  # type: ignore[method-assign]
    mcp_aggregator.MCPConnectionManager = CallConnections  # type: ignore[attr-defined]


def _keep_llm_connections() -> None:
    """Providers are imported when the first agent needs one, and make an HTTP client for every turn."""
    original = ModelFactory._load_provider_class

    def load_provider_class(provider: Provider) -> Any:
        llm_class = original(provider)
        for each in inspect.getmro(cast("type", llm_class)):
            llm_connections.keep_clients_of(sys.modules[each.__module__])
        return llm_class

    ModelFactory._load_provider_class = load_provider_class  # type: ignore[method-assign]


def _obey_no_message() -> None:
    """`***SAVE_HISTORY PATH` makes fast-agent write a conversation to any file: whoever may talk could write there."""
    for module in _CONTROL_MESSAGE_READERS:
        module.CONTROL_MESSAGE_SAVE_HISTORY = ()  # no text begins with one of none


def _log_to_the_gateway() -> None:
    """fast-agent's own logging is off in a server; what it says, and what of it fails, goes to the gateway's log."""
    Logger.event = fast_agent_log.event  # type: ignore[method-assign]
    original = MCPAggregator._execute_on_server
    traced = wraps(original)(fast_agent_log.traced(original))  # so that `check()` still finds what it looks for
    MCPAggregator._execute_on_server = traced  # type: ignore[method-assign]


def _once(method: Callable[[MCPConnectionManager], None]) -> Callable[[MCPConnectionManager], None]:
    done = False

    @wraps(method)  # so that `check()` still finds what it looks for
    def call_once(manager: MCPConnectionManager) -> None:
        nonlocal done
        if not done:
            done = True
            method(manager)

    return call_once


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  needed for an error message only

    return version("fast-agent-mcp")
