"""Requests the listing of a downstream that answers all callers alike, and listens for changes. No call uses it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, override

from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.connection_manager import cut_off, listing_of, tools_of
from pallas_gateway.runtime.downstreams.listings.listing_cache import NO_CREDENTIAL, ListingKey
from pallas_gateway.runtime.downstreams.listings.reading import listing_within
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.scope import CallScope, connect_nothing, entered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from fast_agent.context import Context as FastAgentContext

    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
    from pallas_gateway.runtime.downstreams.listings.listing_cache import ListingRequest
    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing

_log = logging.getLogger("pallas.runtime")


class Inquiry:
    """The listing of one downstream, and the connection that requests it and listens for changes. No call uses it."""

    def __init__(self, server: str, modes: frozenset[Mode], http: httpx2.AsyncClient, catalog: ToolCatalog) -> None:
        """Request nothing yet.

        The requests will declare that these `modes` of questions can be answered. With `modes` it does not listen for
        changes: the inquiry of the server without modes does, and has the catalog renew the others.
        """
        self._tasks, self._limits, self._cache = catalog.tasks, catalog.limits, catalog.cache
        self._agent, self._context, self._log = catalog.agent, catalog.context, catalog.log
        self._servers = catalog.servers
        self._server, self._modes = server, modes
        self._renew_others = partial(catalog.renew_others, server)
        self._key = ListingKey(catalog, server, NO_CREDENTIAL, modes)
        self._http = http
        self._task: asyncio.Task[None] | None = None
        self._aggregator: _Asking | None = None
        self._is_asking = False
        self._has_answered = False  # over the current connection
        self._is_ended = False
        self._wanted, self._is_over = asyncio.Event(), asyncio.Event()
        self.listing: ServerListing | None = None  # the last one, however old
        self._listed_at = float("-inf")
        self._failed_at = float("-inf")

    def known(self) -> ServerListing | None:
        listing = self._cache.get(self._key)
        if listing is None or self._limits.clock() - self._listed_at > self._limits.fresh_seconds:
            self.begin()
        return listing

    def invalidate(self) -> None:
        self._drop()
        self.begin()

    def begin(self) -> None:
        """Request the listing, unless a request is running or has just failed."""
        if self._is_asking or self._is_ended:
            return
        self._wanted.set()
        if self._task is None and self._limits.clock() - self._failed_at > self._limits.again_seconds:
            self._is_asking = True
            # In an empty context: in that of a call, its token would be sent.
            self._task = Context().run(self._tasks.spawn, self._ask_and_listen(), name=f"ask {self._server}")

    async def list_again(self) -> None:
        """Request the listing, unless a request has just failed, and wait for the answer."""
        self.begin()
        while self._is_asking:
            await self._is_over.wait()

    def end(self) -> None:
        """Stop requesting; do not wait for a server that hangs. The HTTP client stays open."""
        self._is_ended = True
        self.listing = None
        if self._aggregator is not None:
            cut_off(self._aggregator)

    def _drop(self) -> None:
        self._cache.drop(self._key)
        self.listing = None

    def request(self) -> ListingRequest:
        """Note that a request for the listing is being sent."""
        return self._cache.begin(self._key)

    def learn(self, aggregator: MCPAggregator, request: ListingRequest) -> None:
        """Store the listing of `aggregator`, the answer to `request`."""
        now = listing_of(aggregator, self._server, self._http, self.invalidate)
        seconds = now.valid_seconds(self._limits.certain_seconds)
        if self._is_ended or not self._cache.store(request, now, seconds):
            self._wanted.set()  # the answer may be older than the invalidation
            return
        before, self.listing = self.listing, now
        self._listed_at = request.sent_at
        self._say_what_changed(before, now)
        self._log.is_up(self._server)
        self._log.on_listed(self._server, tools_of(aggregator, self._server), now.faults)

    async def _ask_and_listen(self) -> None:
        try:
            async with self._connected() as aggregator:
                while not self._modes and connecting.tells_of_changes(aggregator, self._server):
                    await self._wanted.wait()
                    async with self._asking(aggregator):
                        await aggregator.refresh_subscription_state(self._server)
        except Exception as error:  # noqa: BLE001  calls connect by themselves and report the reason
            self._drop()
            if not self._has_answered:
                self._failed_at = self._limits.clock()
                if not self._is_ended:
                    self._log.went_down(self._server, one_line(error))
            extra = {"agent": self._agent, "server": self._server, "error": one_line(error)}
            _log.debug("downstream not listed", extra=extra)
        finally:
            self._task, self._aggregator = None, None
            self._end_asking()
        if self._wanted.is_set():  # since the connection began to end
            self.begin()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Asking]:
        """A connection that has received one listing."""
        self._has_answered = False
        self._aggregator = aggregator = _Asking(self, self._server, self._agent, self._context)
        with entered(CallScope(connect=connect_nothing, servers=self._servers, questions=declaring(self._modes))):
            async with aggregator:
                try:
                    request = self.request()
                    async with self._asking(aggregator):
                        await connecting.attach(aggregator, self._server)
                    self._has_answered = True
                    self.learn(aggregator, request)
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
        try:
            async with listing_within(self._limits.ask_seconds, partial(cut_off, aggregator)):
                yield
        finally:
            self._end_asking()

    def _end_asking(self) -> None:
        self._is_asking = False
        self._is_over.set()
        self._is_over.clear()

    def note_change(self) -> None:
        """Have the other listings of the server renewed, unless it was asked and has not reported a change."""
        if not self._is_asking and not self._modes:
            self._renew_others()

    def _say_what_changed(self, before: ServerListing | None, now: ServerListing) -> None:
        if before is None:
            return
        names = [{tool.tool.name for tool in listing.tools} for listing in (before, now)]
        added, removed = sorted(names[1] - names[0]), sorted(names[0] - names[1])
        if (added or removed) and not self._modes:
            extra = {"agent": self._agent, "server": self._server, "added": added, "removed": removed}
            _log.info("downstream tools changed", extra=extra)


class _Asking(MCPAggregator):
    """Connects to one server without the credentials of a caller."""

    def __init__(self, inquiry: Inquiry, server: str, agent: str, context: FastAgentContext | None) -> None:
        super().__init__([server], context=context, name=agent)
        self._inquiry = inquiry

    @override
    async def refresh_subscription_state(self, server_name: str) -> tuple[str, ...]:
        """Request the listing again, because the gateway requires it or the server reported a change."""
        self._inquiry.note_change()
        request = self._inquiry.request()
        uris = await super().refresh_subscription_state(server_name)
        self._inquiry.learn(self, request)
        return uris
