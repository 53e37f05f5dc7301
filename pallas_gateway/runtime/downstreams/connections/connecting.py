"""Connecting an agent to its downstreams: attachment, HTTP clients, credentials, requests that are sent once more."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, override

import httpx2
from fast_agent.mcp import client_gateway, mcp_connection_manager
from fast_agent.mcp.client_gateway import PreparedHttpAuth
from fast_agent.mcp.mcp_aggregator import MCPAggregator, MCPAttachOptions

from pallas_gateway.errors import STOPPING
from pallas_gateway.runtime.downstreams.connections.answers import allow_silence, with_limits
from pallas_gateway.runtime.downstreams.credentials import CallAuth
from pallas_gateway.runtime.downstreams.listings.server_listing import CONNECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from fast_agent.config import MCPServerSettings

    from pallas_gateway.tasks import TaskOwner

_WITHOUT_POLLING = MCPAttachOptions(startup_timeout_seconds=None)  # type: ignore[arg-type]  # None is accepted, and means no polling
KEPT_SOCKETS = 100
LONGEST_WAIT_SECONDS = 5.0
"""Longest `Retry-After` that is obeyed; a longer one is shortened, because another replica may answer."""
REFUSED_WAIT_SECONDS = 1.0
"""Wait after a refused connection."""
_log = logging.getLogger("pallas.runtime")


async def attach(aggregator: MCPAggregator, server: str) -> None:
    """Connect `aggregator` to a server and request its listing, concurrently with other servers.

    `attach_server` attaches one after the other, which matters only between attaching and closing the aggregator.
    """
    async with aggregator._attachment_locks.setdefault(server, asyncio.Lock()):
        await aggregator._attach_server_locked(server_name=server, server_config=None, options=_WITHOUT_POLLING)


def _http_client(settings: MCPServerSettings, limits: httpx2.Limits) -> httpx2.AsyncClient:
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


async def _close_idle(client: httpx2.AsyncClient) -> bool:
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


def with_credentials_of_calls(config: MCPServerSettings, prepared: PreparedHttpAuth) -> PreparedHttpAuth:
    """Give a connection a `CallAuth`, unless its server has a login of its own."""
    if prepared.oauth_provider is not None or config.name is None or _has_credentials(config.url):
        return prepared  # with an `Auth`, the HTTP client would ignore credentials in the URL
    of_call = CallAuth(config.name, has_own_authorization=bool(prepared.user_auth_keys))
    auth = RepeatingAuth(config.name, of_call)
    return PreparedHttpAuth(prepared.headers, auth, prepared.user_auth_keys)  # type: ignore[arg-type]  # any Auth


def _has_credentials(url: str | None) -> bool:
    parsed = httpx2.URL(url or "")
    return bool(parsed.username or parsed.password)


class SharedClients:
    """Makes the client of each downstream, and closes its sockets when they are idle for `keep_alive_seconds`."""

    def __init__(self, tasks: TaskOwner, keep_alive_seconds: float) -> None:
        self._tasks = tasks
        self._keep_alive_seconds = keep_alive_seconds
        self._clients: list[httpx2.AsyncClient] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def make(self, settings: MCPServerSettings) -> httpx2.AsyncClient:
        """Make a client for a downstream. Each request is authorised by itself; cookies are not kept."""
        kept = httpx2.Limits(max_keepalive_connections=KEPT_SOCKETS, keepalive_expiry=self._keep_alive_seconds)
        client = _http_client(settings, kept)
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        client.event_hooks["request"].append(self._on_request)
        if client.timeout.connect is None:
            client.timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        self._clients.append(client)
        return client

    def stop_sweeping(self) -> None:
        """Start no task any more; the clients stay open."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()

    async def close(self) -> None:
        """Close all clients."""
        self.stop_sweeping()
        for client in self._clients:
            await client.aclose()

    async def _on_request(self, _: httpx2.Request) -> None:
        self._sweep_later()

    def _sweep_later(self) -> None:
        """Close idle sockets later: a pool closes them only when it is used, which ends with the last call."""
        if self._sweep is None and not self._is_closed:
            loop, seconds = asyncio.get_running_loop(), 2 * self._keep_alive_seconds
            self._sweep = loop.call_later(seconds, self._sweep_now, context=Context())

    def _sweep_now(self) -> None:
        self._sweep = None
        self._tasks.spawn(self._close_idle(), name="close idle sockets", report=True)

    async def _close_idle(self) -> None:
        left = [await _close_idle(client) for client in self._clients]
        if any(left):
            self._sweep_later()


class RepeatingAuth(httpx2.Auth):
    """Sends a request once more if a gateway that is stopping has refused it; `inner` authorises each request."""

    def __init__(self, server: str, inner: httpx2.Auth) -> None:
        self._server = server
        self._inner = inner

    @override
    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Leave it to `inner`."""
        return self._inner.sync_auth_flow(request)

    @override
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorise and send the request."""
        flow = self._inner.async_auth_flow(request)
        try:
            sending, is_repeated = await anext(flow), False
            while True:
                response = yield sending
                if not is_repeated and await _is_stopping(response):
                    is_repeated = True
                    await pause_before_repeat(self._server, "it is stopping", _wait_of(response))
                else:
                    sending = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


async def pause_before_repeat(server: str, why: str, seconds: float) -> None:
    """Log that a request is sent again, and wait before that."""
    # The server refused the connection, or is a gateway that is stopping: nothing has run.
    _log.info("tool call repeated", extra={"server": server, "error": why})
    await asyncio.sleep(seconds)


async def _is_stopping(response: httpx2.Response) -> bool:
    """Return True for the answer of a gateway that drains; it has not begun the call."""
    if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE or "Retry-After" not in response.headers:
        return False
    await response.aread()
    return STOPPING in response.text


def _wait_of(response: httpx2.Response) -> float:
    seconds = response.headers["Retry-After"]
    return min(float(seconds), LONGEST_WAIT_SECONDS) if seconds.isdecimal() else LONGEST_WAIT_SECONDS
