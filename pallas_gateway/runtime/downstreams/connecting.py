"""Replacements in fast-agent's connections to MCP servers: their time, credentials, HTTP clients and listings.

Each has its reason. `runtime/patches.py` checks all names that they rely on before they are used.
"""

from __future__ import annotations

import asyncio
import os
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import httpx
import httpx._transports.default as httpx_transports
import httpx2
import httpx2._transports.default as httpx2_transports
from fast_agent.mcp import client_gateway, mcp_aggregator, mcp_connection_manager
from fast_agent.mcp.client_gateway import PreparedHttpAuth
from fast_agent.mcp.mcp_aggregator import MCPAggregator, MCPAttachOptions
from mcp.client.session import ClientSession

from pallas_gateway.runtime.downstreams.answers import with_limits
from pallas_gateway.runtime.downstreams.connections import TTL, LazyConnectionManager
from pallas_gateway.runtime.downstreams.credentials import CallAuth
from pallas_gateway.runtime.downstreams.repeats import RepeatingAuth
from pallas_gateway.runtime.downstreams.timeouts import allow_silence
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    import ssl

    from fast_agent.config import MCPServerSettings
    from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
    from mcp_types import ListToolsResult

    from pallas_gateway.runtime.compat.requirements import ReliedOn

# Each has the function under its own name; the clients of providers use that of the package.
_TRUST_STORE_READERS: tuple[Any, ...] = (httpx, httpx_transports, httpx2, httpx2_transports)
RELIED_ON: ReliedOn = (
    (client_gateway, "_prepare_headers_and_auth", ("server_config",)),
    (client_gateway, "_http_timeout", ("config",)),
    (MCPAggregator, "load_servers", ("self", "force_connect")),
    (MCPAggregator, "_attach_server_locked", ("self", "server_name", "server_config", "options")),
    (MCPAggregator, "_attachment_locks", ()),
    (MCPAggregator, "get_server_instructions", ("self",)),
    (MCPAggregator, "_create_callback_runtime", ("self", "server_name")),
    (MCPAggregator, "_persistent_connection_manager", ()),
    (MCPAggregator, "_require_connection_manager", ("self",)),
    (mcp_aggregator, "MCPConnectionManager", ("server_registry", "context")),
    (mcp_connection_manager, "_subscription_filter", ("server_conn",)),
    *((httpx2.AsyncClient, name, ()) for name in ("_transport", "_mounts")),
    (httpx2.AsyncHTTPTransport, "_pool", ()),
    ("httpcore2:AsyncConnectionPool", "connections", ()),
    *(("httpcore2:AsyncConnectionInterface", name, ()) for name in ("is_idle", "has_expired", "is_closed", "aclose")),
    *((module, "create_ssl_context", ("verify", "cert", "trust_env")) for module in _TRUST_STORE_READERS),
)
_WITHOUT_POLLING = MCPAttachOptions(startup_timeout_seconds=None)  # type: ignore[arg-type]  # None is accepted, and means no polling


def prepare() -> None:
    """Replace the functions that make connections."""
    _authorise_each_request()
    _let_calls_connect()
    _share_trust_store()
    _use_primed_connections()
    _keep_ttl()


async def attach(aggregator: MCPAggregator, server: str) -> None:
    """Connect `aggregator` to a server and request its listing, concurrently with other servers.

    `attach_server` attaches one after the other, which matters only between attaching and closing the aggregator.
    """
    async with aggregator._attachment_locks.setdefault(server, asyncio.Lock()):
        await aggregator._attach_server_locked(server_name=server, server_config=None, options=_WITHOUT_POLLING)


def http_client(settings: MCPServerSettings, limits: httpx2.Limits) -> httpx2.AsyncClient:
    """An HTTP client for a server, like those that fast-agent makes for each connection."""
    prepared = client_gateway._prepare_headers_and_auth(settings, trigger_oauth=False, oauth_mode="disabled")
    return with_limits(
        httpx2.AsyncClient(
            headers=prepared.headers,
            auth=prepared.oauth_provider,
            timeout=client_gateway._http_timeout(settings),
            limits=limits,
            event_hooks={"request": [allow_silence]},
        )
    )


async def close_idle(client: httpx2.AsyncClient) -> bool:
    """Close the sockets that were idle for too long; return True if any is left open."""
    transports = [one for one in (client._transport, *client._mounts.values()) if one is not None]
    pools = [one._pool for one in transports if isinstance(one, httpx2.AsyncHTTPTransport)]
    for connection in [one for pool in pools for one in pool.connections]:
        if connection.is_idle() and connection.has_expired():
            await connection.aclose()
    return any(not one.is_closed() for pool in pools for one in pool.connections)


def tells_of_changes(aggregator: MCPAggregator, server: str) -> bool:
    """True if the connection to `server` is notified when its tools change."""
    connection = aggregator._require_connection_manager().running_servers.get(server)
    return connection is not None and mcp_connection_manager._subscription_filter(connection) is not None


def _authorise_each_request() -> None:
    """Give every connection a `CallAuth`; fast-agent has no setting for an `Auth`."""
    original = client_gateway._prepare_headers_and_auth

    def prepare_headers_and_auth(server_config: MCPServerSettings, **options: Any) -> PreparedHttpAuth:
        prepared = original(server_config, **options)
        if prepared.oauth_provider is not None or server_config.name is None or _has_credentials(server_config.url):
            return prepared  # with an `Auth`, the HTTP client would ignore credentials in the URL
        of_call = CallAuth(server_config.name, has_own_authorization=bool(prepared.user_auth_keys))
        auth = RepeatingAuth(server_config.name, of_call)
        return PreparedHttpAuth(prepared.headers, auth, prepared.user_auth_keys)  # type: ignore[arg-type]  # any Auth

    client_gateway._prepare_headers_and_auth = prepare_headers_and_auth


def _has_credentials(url: str | None) -> bool:
    parsed = httpx2.URL(url or "")
    return bool(parsed.username or parsed.password)


def _let_calls_connect() -> None:
    """Connect later: instances are created under locks that other calls of the agent wait for."""
    original = MCPAggregator.load_servers

    async def load_servers(self: MCPAggregator, *, force_connect: bool = False) -> None:
        connect = current_scope.get().connect
        if connect is None or force_connect:
            await original(self, force_connect=force_connect)
        elif not self.initialized:
            await connect(self)
            self.initialized = True

    MCPAggregator.load_servers = load_servers  # type: ignore[method-assign]


def _share_trust_store() -> None:
    """Read the trust store once; every HTTP client would read it, which blocks the event loop for 20 to 40 ms.

    Clients with other settings or a client certificate still get a context of their own.
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


def _use_primed_connections() -> None:
    """Use cached listings in the connections of a call, and in instructions that quote servers.

    fast-agent makes the callbacks of a connection for each operation, and uses the first ones.
    """
    original = MCPAggregator.get_server_instructions

    async def get_server_instructions(self: MCPAggregator) -> dict[str, tuple[str | None, list[str]]]:
        instructions = await original(self)
        manager = self._persistent_connection_manager
        for name, listing in (manager.listings if isinstance(manager, LazyConnectionManager) else {}).items():
            instructions[self.server_display_name(name)] = (
                listing.instructions,
                [one.tool.name for one in listing.tools],
            )
        return instructions

    MCPAggregator.get_server_instructions = get_server_instructions  # type: ignore[method-assign]
    make = MCPAggregator._create_callback_runtime

    @wraps(make)
    def create_callback_runtime(self: MCPAggregator, server_name: str) -> MCPClientCallbackRuntime:
        manager = self._persistent_connection_manager
        known = manager.callbacks_of(server_name) if isinstance(manager, LazyConnectionManager) else None
        return known or make(self, server_name)

    MCPAggregator._create_callback_runtime = create_callback_runtime  # type: ignore[method-assign]
    mcp_aggregator.MCPConnectionManager = LazyConnectionManager  # type: ignore[attr-defined]


def _keep_ttl() -> None:
    """Keep the `ttlMs` of a tool listing, which the session discards. The SDK's servers send 0 where none was set."""
    original = ClientSession._absorb_tool_listing

    @wraps(original)
    def absorb_tool_listing(self: ClientSession, result: ListToolsResult, *, complete: bool) -> ListToolsResult:
        setattr(self, TTL, result.ttl_ms / 1000 if result.ttl_ms > 0 else None)
        return original(self, result, complete=complete)

    ClientSession._absorb_tool_listing = absorb_tool_listing  # type: ignore[method-assign]
