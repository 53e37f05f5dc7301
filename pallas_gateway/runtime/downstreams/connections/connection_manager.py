"""An instance's connections to its downstreams, opened by the first use of one of their tools.

The listing of a downstream is cached (`ServerListing`), so a call does not request it: in the 2026-07-28 era its first
request is the tool call. Every call has its own connections; they share sockets and listings.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast, override
from weakref import WeakKeyDictionary

import httpx2
from fast_agent.core.exceptions import ServerInitializationError, walk_exception_chain
from fast_agent.mcp.client_connection import MCPClientConnection
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager, ServerConnection
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_MODERN_VERSION

from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.answers import EVENT_BYTES
from pallas_gateway.runtime.downstreams.connections.stateless_servers import break_cycles, stateless_server
from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing
from pallas_gateway.runtime.downstreams.programs.program_process import ProgramError
from pallas_gateway.runtime.downstreams.programs.program_transport import connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from fast_agent.config import MCPServerSettings
    from fast_agent.context import Context
    from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
    from fast_agent.mcp_server_registry import ServerRegistry
    from mcp.client import Transport
    from mcp_types import DiscoverResult

    from pallas_gateway.runtime.downstreams.connections.stateless_servers import StatelessServer
    from pallas_gateway.runtime.downstreams.listings.server_listing import Listing

_log = logging.getLogger("pallas.runtime")


def _once(name: str) -> Callable[[MCPConnectionManager], None]:
    """Return the method that adds a filter for log records, which only the first manager runs.

    Each manager would add its own to a global logger, and never remove it.
    """
    left: list[Any] = [getattr(MCPConnectionManager, name, None)]  # the check of names has one that is missing
    return lambda manager: left.pop()(manager) if left else None


class LazyConnectionManager(MCPConnectionManager):
    """The connections of one agent of an instance; replaces fast-agent's manager.

    `listings`: cached listings, by server. `peers`: connections to agents of this gateway, by server. `factories`:
    for servers that are not connected to as configured.
    """

    _suppress_mcp_sse_errors = _once("_suppress_mcp_sse_errors")
    _suppress_mcp_streamable_http_errors = _once("_suppress_mcp_streamable_http_errors")
    _suppress_mcp_oauth_cancel_errors = _once("_suppress_mcp_oauth_cancel_errors")

    def __init__(self, server_registry: ServerRegistry, context: Context | None = None) -> None:
        super().__init__(server_registry, context=context)
        self.listings: dict[str, Listing] = {}
        self.peers: Mapping[str, Any] = {}  # like `ServerConnection`; see runtime/call/peers.py
        self.factories: dict[str, Callable[[ServerConnection], MCPClientConnection]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._replaced = count(1)
        self._stateless: dict[str, StatelessServer] = {}
        self._used_by: WeakKeyDictionary[asyncio.Task[Any], ServerConnection] = WeakKeyDictionary()

    def callbacks_of(self, server: str) -> MCPClientCallbackRuntime | None:
        """Return the callbacks of an open connection without tasks; None if there is none."""
        connection = self._stateless.get(server) or self.peers.get(server)
        return connection._callback_runtime if connection is not None else None

    @override
    async def get_server(self, server_name: str, **options: Any) -> ServerConnection:
        """Return the connection to a server, and open it if there is none; with a listing, within a time limit."""
        if (peer := self.peers.get(server_name)) is not None:
            peer._callback_runtime = options["callback_runtime"]
            return cast("ServerConnection", peer)
        if (stateless := self._stateless_server(server_name, **options)) is not None:
            return cast("ServerConnection", stateless)
        async with self._alone(server_name):
            try:
                used = await super().get_server(server_name, **options)
            except ServerInitializationError as error:
                is_refused = any(isinstance(one, httpx2.ConnectError) for one in walk_exception_chain(error))
                if server_name not in self.listings or not is_refused:
                    raise
                await connecting.pause_before_repeat(server_name, "connection refused", connecting.REFUSED_WAIT_SECONDS)
                used = await super().get_server(server_name, **options)
        if (task := asyncio.current_task()) is not None:
            self._used_by[task] = used
        return used

    @override
    async def reconnect_server(self, server_name: str, **options: Any) -> ServerConnection:
        """Replace the connection that the current task has used; as `get_server`.

        Another tool call of the same turn may have replaced it already. One that still works stays open until the end
        of the call, because others may wait for its answers: the server has forgotten the session, perhaps of one only.
        """
        if server_name in self.peers or self._is_stateless(server_name):
            return await self.get_server(server_name, **options)
        task = asyncio.current_task()
        used = self._used_by.get(task) if task is not None else None
        async with self._alone(server_name):
            running = self.running_servers.get(server_name)
            if running is not None and running.is_healthy():
                if used is not None and running is not used:
                    return running
                self.running_servers[f"{server_name}, replaced {next(self._replaced)}"] = running
                del self.running_servers[server_name]
            # It has forgotten a call's session; the request is repeated.
            _log.info("downstream session replaced", extra={"server": server_name})
            return await super().reconnect_server(server_name, **options)

    @override
    async def disconnect_all(self) -> bool:
        """End all connections, at the end of the call."""
        while self._stateless:
            self._stateless.popitem()[1].release()
        for peer in self.peers.values():
            if peer._callback_runtime is not None:
                break_cycles(peer._callback_runtime)
        if not (self.running_servers or self._lock.locked()):
            return False  # a call that used none waits for nothing
        return await super().disconnect_all()

    def _is_stateless(self, server: str) -> bool:
        listing = self.listings.get(server)
        return isinstance(listing, ServerListing) and listing.discovered is not None and listing.program is None

    def _stateless_server(
        self,
        server: str,
        *,
        callback_runtime: MCPClientCallbackRuntime,
        server_config: MCPServerSettings | None = None,
        **_: Any,
    ) -> StatelessServer | None:
        if (known := self._stateless.get(server)) is not None:
            return known
        config = server_config or self.server_registry.get_server_config(server)
        if config is None or not self._is_stateless(server):
            return None
        listing = cast("ServerListing", self.listings[server])
        self._stateless[server] = made = stateless_server(listing, config, callback_runtime)
        return made

    @asynccontextmanager
    async def _alone(self, server: str) -> AsyncIterator[None]:
        """Open one connection to a server at a time: the first turn may have several tool calls.

        The manager treats a connection that is being opened as broken, and opens another, or as ready for use.

        Raises:
            RuntimeError: no connection. A model reads the message: fast-agent's own has addresses and a traceback.
                Not a `ConnectionError`, after which fast-agent would connect again.
        """
        async with self._connecting.setdefault(server, asyncio.Lock()):
            if server not in self.listings:
                yield
                return
            seconds = self.listings[server].connect_seconds
            try:
                async with asyncio.timeout(seconds):
                    yield
            except TimeoutError:
                raise RuntimeError(f"no answer within {seconds:g} s") from None
            except ServerInitializationError as error:
                why = next((f": {one}" for one in walk_exception_chain(error) if isinstance(one, ProgramError)), "")
                raise RuntimeError(f"it cannot be reached{why}") from error

    @override
    def _client_connection_factory(
        self, server_conn_holder: list[ServerConnection], **options: Any
    ) -> Callable[[], MCPClientConnection]:
        listing = self.listings.get(options["server_name"])
        if isinstance(listing, ServerListing):
            return lambda: _PrimedConnection(server_conn_holder[0], listing)
        if (make := self.factories.get(options["server_name"])) is not None:
            return lambda: make(server_conn_holder[0])
        return super()._client_connection_factory(server_conn_holder, **options)


def connections_of(aggregator: MCPAggregator) -> LazyConnectionManager:
    """The connections of an aggregator that has been entered."""
    manager = aggregator._persistent_connection_manager
    if not isinstance(manager, LazyConnectionManager):  # runtime/seams/connections.py makes them
        raise TypeError("the aggregator's connections are not the gateway's")
    return manager


def install(listing: Listing, aggregator: MCPAggregator, server: str) -> None:
    """Store `listing` in `aggregator` as if it had connected to `server` and requested it."""
    aggregator._server_to_tool_map[server] = list(listing.tools)
    aggregator._namespaced_tool_map.update({tool.namespaced_tool_name: tool for tool in listing.tools})
    if listing.apps is not None:
        aggregator._app_integration_configs[server] = listing.apps
    if listing.skills is not None:
        aggregator._mcp_skill_registries[server] = listing.skills
    aggregator._attached_server_names.append(server)
    connections_of(aggregator).listings[server] = listing


def listing_of(
    aggregator: MCPAggregator, server: str, http_client: httpx2.AsyncClient | None, on_outdated: Callable[[], object]
) -> ServerListing:
    """The listing of `server`, to which `aggregator` is connected.

    Raises:
        ConnectionError: the connection has ended.
    """
    connection = connections_of(aggregator).running_servers.get(server)
    if connection is None or connection.client is None or server not in aggregator._attached_server_names:
        raise ConnectionError(f"the connection to '{server}' has ended")
    session = connection.client.session
    discovered = session.discover_result
    return ServerListing(
        tuple(aggregator._server_to_tool_map.get(server, ())),
        connection.server_instructions,
        aggregator._mcp_skill_registries.get(server),
        aggregator._app_integration_configs.get(server),
        http_client=http_client,
        on_outdated=on_outdated,
        discovered=_without_subscriptions(discovered) if discovered is not None else None,
        schemas=dict(session._tool_output_schemas),
        header_maps=dict(session._x_mcp_header_maps),
        ttl_seconds=getattr(session, "pallas_ttl_seconds", None),  # set by `read_tools`
        faults=faults_of(aggregator, server),
    )


def cut_off(aggregator: MCPAggregator) -> None:
    """End the connections of `aggregator` without requests to their servers, which may hang; running requests fail."""
    for running in connections_of(aggregator).running_servers.values():
        running.cancel_lifecycle()


def tools_of(aggregator: MCPAggregator, server: str) -> list[str]:
    """Names of the tools of `server` that `aggregator` knows."""
    return [one.tool.name for one in aggregator._server_to_tool_map.get(server, ())]


def faults_of(aggregator: MCPAggregator, server: str) -> tuple[str, ...]:
    """The tools that were left out of the list which `aggregator` has received of `server`, and why."""
    running = connections_of(aggregator).running_servers.get(server)
    session = running.client.session if running is not None and running.client is not None else None
    return getattr(session, "pallas_faults", ())


def keep_order(aggregator: MCPAggregator) -> None:
    """Sort tools by the order of the servers, not of their answers: providers cache only prompts that do not vary."""
    tools = [tool for name in aggregator.server_names for tool in aggregator._server_to_tool_map.get(name, ())]
    aggregator._namespaced_tool_map = {tool.namespaced_tool_name: tool for tool in tools}


def _without_subscriptions(discovered: DiscoverResult) -> DiscoverResult:
    """Remove the capability to notify of changes: calls do not use it, and fast-agent would listen."""
    features = {
        name: feature.model_copy(update={key: None for key in ("list_changed", "subscribe") if hasattr(feature, key)})
        for name in ("tools", "prompts", "resources")
        if (feature := getattr(discovered.capabilities, name)) is not None
    }
    return discovered.model_copy(update={"capabilities": discovered.capabilities.model_copy(update=features)})


class _PrimedConnection(MCPClientConnection):
    """A connection of one call to a server of the initialize era, or to a program."""

    def __init__(self, server: ServerConnection, listing: ServerListing) -> None:
        config = server.server_config
        super().__init__(
            _transport(server, listing),
            server._callback_runtime,
            read_timeout_seconds=config.read_timeout_seconds,
            cache=False,
            protocol_mode="legacy" if listing.discovered is None else "auto",
        )
        self._listing = listing
        if listing.discovered is not None:
            self.client.mode = LATEST_MODERN_VERSION
            self.client.prior_discover = listing.discovered

    @override
    async def __aenter__(self) -> MCPClientConnection:
        await super().__aenter__()
        self._listing.prime(self.client.session)
        return self


def _transport(server: ServerConnection, listing: ServerListing) -> Transport:
    if listing.program is not None:
        greeting = listing.program.discovery if listing.discovered is not None else None
        return connection(listing.program, partial(_mark_ended, server), greeting=greeting)
    if listing.http_client is None:
        raise TypeError("a listing without a way to its server")
    client = copy(listing.http_client)  # the same sockets
    # A load balancer may route a session to its server by a cookie, which is kept until the end of the session.
    client.cookies = httpx2.Cookies()
    url = server.server_config.url or ""
    return streamable_http_client(url, http_client=client, max_sse_event_size=EVENT_BYTES)


def _mark_ended(server: ServerConnection) -> None:
    """Have the next tool call of the call connect again."""
    server._error_occurred = True
