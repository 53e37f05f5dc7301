"""Connections to downstreams: when and how they are made, their credentials, limits and cached listings."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.downstreams.connections.answers import (
    LIMITING,
    allow_silence,
    ask_for_gzip,
    client_of_sse,
    longest_silence,
    name_refusal,
)
from pallas_gateway.runtime.downstreams.connections.connecting import with_credentials_of_calls
from pallas_gateway.runtime.downstreams.connections.connection_manager import LazyConnectionManager
from pallas_gateway.runtime.downstreams.listings.reading import ListingError, read_tools
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.protocols import CANNOT_LIST
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fast_agent.config import MCPServerSettings
    from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
    from fast_agent.mcp.client_gateway import PreparedHttpAuth
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from mcp.client.session import ClientSession
    from mcp_types import ListToolsResult, PaginatedRequestParams

    type Instructions = dict[str, tuple[str | None, list[str]]]


def connection_manager(original: type, _: Any) -> type[LazyConnectionManager]:
    """Return the class that replaces fast-agent's manager."""
    del original
    return LazyConnectionManager


def load_servers(original: Callable[..., Awaitable[None]], _: type[MCPAggregator]) -> Callable[..., Any]:
    """Connect by the call's own function: instances are created under locks that other calls of the agent wait for."""

    @wraps(original)
    async def load_servers(self: MCPAggregator, *, force_connect: bool = False) -> None:
        connect = current_scope.get().connect
        if connect is None or force_connect:
            await original(self, force_connect=force_connect)
        elif not self.initialized:
            await connect(self)
            self.initialized = True

    return load_servers


def create_callback_runtime(
    original: Callable[[MCPAggregator, str], MCPClientCallbackRuntime], _: type[MCPAggregator]
) -> Callable[..., Any]:
    """Make the callbacks of a connection once; fast-agent makes them for each operation, and uses the first ones."""

    @wraps(original)
    def create_callback_runtime(self: MCPAggregator, server_name: str) -> MCPClientCallbackRuntime:
        manager = self._persistent_connection_manager
        known = manager.callbacks_of(server_name) if isinstance(manager, LazyConnectionManager) else None
        return known or original(self, server_name)

    return create_callback_runtime


def get_server_instructions(
    original: Callable[[MCPAggregator], Awaitable[Instructions]], _: type[MCPAggregator]
) -> Callable[..., Any]:
    """Quote cached listings in the instructions of agents that quote their servers."""

    @wraps(original)
    async def get_server_instructions(self: MCPAggregator) -> Instructions:
        instructions = await original(self)
        manager = self._persistent_connection_manager
        for name, listing in (manager.listings if isinstance(manager, LazyConnectionManager) else {}).items():
            tools = [one.tool.name for one in listing.tools]
            instructions[self.server_display_name(name)] = (listing.instructions, tools)
        return instructions

    return get_server_instructions


def list_tools(original: Callable[..., Awaitable[ListToolsResult]], _: type[ClientSession]) -> Callable[..., Any]:
    """Read all pages of a list, and each tool by itself."""

    @wraps(original)
    async def list_tools(self: ClientSession, *, params: PaginatedRequestParams | None = None) -> ListToolsResult:
        if params is not None and params.cursor is not None:
            return await original(self, params=params)
        return await read_tools(self, params)

    return list_tools


def fetch_server_tools(original: Callable[..., Awaitable[Any]], _: type[MCPAggregator]) -> Callable[..., Any]:
    """Say that it is the list that failed."""

    @wraps(original)
    async def fetch_server_tools(self: MCPAggregator, server_name: str, **options: Any) -> Any:
        try:
            return await original(self, server_name, **options)
        except Exception as error:
            raise ListingError(f"{CANNOT_LIST}{one_line(error)}") from error

    return fetch_server_tools


def prepare_headers_and_auth(original: Callable[..., PreparedHttpAuth], _: Any) -> Callable[..., PreparedHttpAuth]:
    """Authorise each request by the credentials of its call; fast-agent has no setting for an `Auth`."""

    @wraps(original)
    def prepare_headers_and_auth(server_config: MCPServerSettings, **options: Any) -> PreparedHttpAuth:
        return with_credentials_of_calls(server_config, original(server_config, **options))

    return prepare_headers_and_auth


def http_diagnostic_hooks(original: Callable[..., Any], _: Any) -> Callable[..., dict[str, list[Any]]]:
    """Return the hooks of the HTTP clients that fast-agent makes; those of `SharedClients` have them already."""

    @wraps(original)
    def http_diagnostic_hooks(*args: Any, **options: Any) -> dict[str, list[Any]]:
        hooks = original(*args, **options) or {}
        return {
            "request": [*hooks.get("request", []), allow_silence, ask_for_gzip],
            "response": [LIMITING, name_refusal, *hooks.get("response", [])],
        }

    return http_diagnostic_hooks


def sse_client(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Return the client of servers that are connected by SSE, whose one stream lasts as long as the connection."""

    @wraps(original)
    def sse_client(*args: Any, sse_read_timeout: float, **options: Any) -> Any:
        seconds = longest_silence(sse_read_timeout)
        return original(*args, sse_read_timeout=seconds, httpx_client_factory=client_of_sse, **options)

    return sse_client
