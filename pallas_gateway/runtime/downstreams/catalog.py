"""Cached listings of an agent's downstreams, requested independently of calls.

Only of downstreams that answer every caller alike: none that receives the caller's token, none with OAuth, no peers.
Listings are requested outside the context of a call, so no token is sent. A call without a valid listing connects and
requests it itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from contextvars import Context
from http.cookiejar import DefaultCookiePolicy
from time import monotonic
from typing import TYPE_CHECKING

import httpx2
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.limits import ListingLimits
from pallas_gateway.runtime.call_scope import CallScope, entered
from pallas_gateway.runtime.downstreams import connecting
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.manager import CONNECT_SECONDS, cut_off, listing_of, tools_of
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from fast_agent.config import MCPServerSettings
    from fast_agent.context import Context as FastAgentContext

    from pallas_gateway.runtime.downstreams.manager import ServerListing
    from pallas_gateway.runtime.protocols import Downstream

    type OnRequest = Callable[[httpx2.Request], Awaitable[None]]

KEPT_SOCKETS = 100

_log = logging.getLogger("pallas.runtime")


class ToolCatalog:
    """The listings of one hosted agent's downstreams; closed with the agent."""

    def __init__(
        self,
        agent: str,
        servers: Mapping[str, MCPServerSettings],
        context: FastAgentContext | None,
        log: DownstreamLog | None = None,
        *,
        limits: ListingLimits | None = None,
    ) -> None:
        self.limits = limits or ListingLimits()
        self.tasks = TaskOwner()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._inquiries = {
            name: _Inquiry(agent, name, _http_client(settings, self._on_request, self.limits), context, self)
            for name, settings in servers.items()
        }
        for inquiry in self._inquiries.values():
            inquiry.log = log or inquiry.log

    def ask(self) -> None:
        """Start requesting the listings, for the first call."""
        for inquiry in self._inquiries.values():
            inquiry.begin()

    def of(self, server: str) -> ServerListing | None:
        """Return the listing of `server`. If it is out of date, request it; the call does not wait for that."""
        inquiry = self._inquiries.get(server)
        return None if inquiry is None else inquiry.known()

    def latest(self, server: str) -> ServerListing | None:
        """Return the last listing of `server`, however old; if it is out of date, request it."""
        inquiry = self._inquiries[server]
        inquiry.known()
        return inquiry.listing

    def invalidate(self, server: str) -> None:
        """Invalidate the listing of `server`, after an error that an outdated listing may explain."""
        if (inquiry := self._inquiries.get(server)) is not None:
            inquiry.invalidate()

    async def close(self) -> None:
        """End all connections; calls that still run get no new ones."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for inquiry in self._inquiries.values():
            inquiry.end()
        await self.tasks.cancel_all()
        for inquiry in self._inquiries.values():
            await inquiry.http.aclose()

    async def _on_request(self, _: httpx2.Request) -> None:
        self._sweep_later()

    def _sweep_later(self) -> None:
        """Close idle sockets later: a pool closes them only when it is used, which ends with the last call."""
        if self._sweep is None and not self._is_closed:
            loop, seconds = asyncio.get_running_loop(), 2 * self.limits.keep_alive_seconds
            self._sweep = loop.call_later(seconds, self._sweep_now, context=Context())

    def _sweep_now(self) -> None:
        self._sweep = None
        self.tasks.spawn(self._close_idle(), name="close idle sockets", report=True)

    async def _close_idle(self) -> None:
        left = [await connecting.close_idle(inquiry.http) for inquiry in self._inquiries.values()]
        if any(left):
            self._sweep_later()


def alike_for_all(
    servers: Mapping[str, MCPServerSettings], downstreams: Iterable[Downstream]
) -> dict[str, MCPServerSettings]:
    """The HTTP servers among `servers` that answer every caller alike."""
    return {
        downstream.name: server
        for downstream in downstreams
        if (server := servers.get(downstream.name)) is not None
        and _is_asked_by_anybody(server)
        and downstream.peer is None
        and not downstream.forwards_bearer
        and downstream.token_exchange is None
    }


def _is_asked_by_anybody(server: MCPServerSettings) -> bool:
    has_login = server.auth is not None and bool(server.auth.oauth or server.auth.forward)
    return server.transport == "http" and server.load_on_start and not has_login


class _Inquiry:
    """The listing of one downstream, and the connection that requests it and listens for changes. No call uses it."""

    def __init__(
        self, agent: str, server: str, http: httpx2.AsyncClient, context: FastAgentContext | None, catalog: ToolCatalog
    ) -> None:
        self._tasks, self._limits = catalog.tasks, catalog.limits
        self._agent = agent
        self.log = DownstreamLog(agent)
        self._server = server
        self.http = http
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._aggregator: _Asking | None = None
        self._is_asking = False
        self._has_answered = False  # over the current connection
        self._is_ended = False
        self._wanted = asyncio.Event()
        self.invalidations = 0
        self.listing: ServerListing | None = None
        self._asked_at = float("-inf")
        self._failed_at = float("-inf")

    def known(self) -> ServerListing | None:
        """See `ToolCatalog.of`."""
        age = monotonic() - self._asked_at
        if age > self._limits.fresh_seconds:
            self.begin()
        return self.listing if age <= self._limits.certain_seconds else None

    def invalidate(self) -> None:
        """See `ToolCatalog.invalidate`."""
        self.invalidations += 1
        self.listing = None
        self._asked_at = float("-inf")
        self.begin()

    def begin(self) -> None:
        """Request the listing, unless a request is running or has just failed."""
        if self._is_asking or self._is_ended:
            return
        self._wanted.set()
        if self._task is None and monotonic() - self._failed_at > self._limits.again_seconds:
            self._is_asking = True
            # In an empty context: in that of a call, its token would be sent.
            self._task = Context().run(self._tasks.spawn, self._ask_and_listen(), name=f"ask {self._server}")

    def end(self) -> None:
        """Stop requesting; do not wait for a server that hangs. The HTTP client stays open."""
        self._is_ended = True
        self.listing = None
        if self._aggregator is not None:
            cut_off(self._aggregator)

    def learn(self, aggregator: MCPAggregator, invalidations: int) -> None:
        """Store the listing of `aggregator`, whose request was sent after so many `invalidations`."""
        if invalidations != self.invalidations or self._is_ended:
            self._wanted.set()  # the answer may be older than the invalidation
            return
        now = listing_of(aggregator, self._server, self.http, self.invalidate)
        before, self.listing = self.listing, now
        self._asked_at = monotonic()
        self._say_what_changed(before, self.listing)
        self.log.listed(self._server, tools_of(aggregator, self._server))

    async def _ask_and_listen(self) -> None:
        try:
            async with self._connected() as aggregator:
                while connecting.tells_of_changes(aggregator, self._server):
                    await self._wanted.wait()
                    async with self._asking(aggregator):
                        await aggregator.refresh_subscription_state(self._server)
        except Exception as error:  # noqa: BLE001  calls connect by themselves and report the reason
            self.listing, self._asked_at = None, float("-inf")
            if not self._has_answered:
                self._failed_at = monotonic()
                if not self._is_ended:
                    late = isinstance(error, TimeoutError)
                    why = f"no answer within {self._limits.ask_seconds:g} s" if late else one_line(error)
                    self.log.went_down(self._server, why)
            extra = {"agent": self._agent, "server": self._server, "error": one_line(error)}
            _log.debug("downstream not listed", extra=extra)
        finally:
            self._task, self._aggregator, self._is_asking = None, None, False
        if self._wanted.is_set():  # since the connection began to end
            self.begin()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Asking]:
        """A connection that has received one listing."""
        self._has_answered = False
        self._aggregator = aggregator = _Asking(self, self._server, self._agent, self._context)
        with entered(CallScope(connect=_later)):
            async with aggregator:
                try:
                    invalidations = self.invalidations
                    async with self._asking(aggregator):
                        await connecting.attach(aggregator, self._server)
                    self._has_answered = True
                    self.learn(aggregator, invalidations)
                    yield aggregator
                except BaseException:
                    cut_off(aggregator)
                    raise
                # The end of a session is a request to its server, which may hang.
                asyncio.get_running_loop().call_later(self._limits.ask_seconds, cut_off, aggregator)

    @asynccontextmanager
    async def _asking(self, aggregator: _Asking) -> AsyncIterator[None]:
        """Limit the time of a request, also of the end of a connection, for which fast-agent waits."""
        self._wanted.clear()
        self._is_asking = True
        cutting = asyncio.get_running_loop().call_later(self._limits.ask_seconds, cut_off, aggregator)
        try:
            async with asyncio.timeout(self._limits.ask_seconds):
                yield
        finally:
            cutting.cancel()
            self._is_asking = False

    def _say_what_changed(self, before: ServerListing | None, now: ServerListing) -> None:
        if before is None:
            return
        names = [{tool.tool.name for tool in listing.tools} for listing in (before, now)]
        added, removed = sorted(names[1] - names[0]), sorted(names[0] - names[1])
        if added or removed:
            extra = {"agent": self._agent, "server": self._server, "added": added, "removed": removed}
            _log.info("downstream tools changed", extra=extra)


class _Asking(MCPAggregator):
    """Connects to one server without the credentials of a caller."""

    def __init__(self, inquiry: _Inquiry, server: str, agent: str, context: FastAgentContext | None) -> None:
        super().__init__([server], context=context, name=agent)
        self._inquiry = inquiry

    async def refresh_subscription_state(self, server_name: str) -> tuple[str, ...]:
        """Request the listing again, because the gateway requires it or the server reported a change."""
        invalidations = self._inquiry.invalidations
        uris = await super().refresh_subscription_state(server_name)
        self._inquiry.learn(self, invalidations)
        return uris


def _http_client(settings: MCPServerSettings, on_request: OnRequest, limits: ListingLimits) -> httpx2.AsyncClient:
    """The client for the requests of all calls. Each request is authorised by itself; cookies are not kept."""
    kept = httpx2.Limits(max_keepalive_connections=KEPT_SOCKETS, keepalive_expiry=limits.keep_alive_seconds)
    client = connecting.http_client(settings, kept)
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    client.event_hooks = {"request": [on_request]}
    if client.timeout.connect is None:
        client.timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    return client


async def _later(_: MCPAggregator) -> None:
    """Connect nothing; servers are attached by name."""
