"""The HTTP clients that the calls of one agent share: sockets, but no cookies, and no credentials of a call."""

from __future__ import annotations

import asyncio
from contextvars import Context
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING

import httpx2

from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.listings.server_listing import CONNECT_SECONDS

if TYPE_CHECKING:
    from fast_agent.config import MCPServerSettings

    from pallas_gateway.tasks import TaskOwner

KEPT_SOCKETS = 100


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
        client = connecting.http_client(settings, kept)
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
        left = [await connecting.close_idle(client) for client in self._clients]
        if any(left):
            self._sweep_later()
