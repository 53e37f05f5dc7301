"""Cached listings of an agent's downstreams: no peers, and none with a login of its own.

Of a downstream that answers all callers alike, listings are requested independently of calls, outside the context of a
call, so no token is sent. Of one that receives the caller's token, or a token exchanged for it, the listing that a call
has requested is cached for later calls of that caller (`ListingCache`). A call without a valid listing connects and
requests it itself.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.changes.change import Fault
from pallas_gateway.limits import ListingLimits
from pallas_gateway.runtime.downstreams.connections.connecting import SharedClients
from pallas_gateway.runtime.downstreams.connections.connection_manager import listing_of
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.listings.inquiry import Inquiry
from pallas_gateway.runtime.downstreams.listings.listing_cache import ListingCache, ListingKey
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from fast_agent.config import MCPServerSettings
    from fast_agent.context import Context as FastAgentContext

    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing
    from pallas_gateway.runtime.protocols import Downstream
FAULTS = (
    Fault(
        title="fast-agent connects each session to every server",
        text="""\
Symptom: each call connects to every MCP server of its agent and lists its tools, one after the other.

Repair: tools are listed ahead of the calls. A call connects when it first uses one.
""",
        library="fast_agent",
        gone_when="`MCPAggregator` takes a listing that is known and connects on the first use",
        script="fast_agent_unused_servers.py",
    ),
)


class ToolCatalog:
    """The listings of one hosted agent's downstreams; closed with the agent."""

    def __init__(  # noqa: PLR0913  the parts of an agent's listings
        self,
        agent: str,
        servers: Mapping[str, MCPServerSettings],
        downstreams: Mapping[str, Downstream],
        context: FastAgentContext | None,
        log: DownstreamLog | None = None,
        *,
        limits: ListingLimits | None = None,
        cache: ListingCache | None = None,
    ) -> None:
        """Request nothing yet.

        Args:
            agent: its name.
            servers: the settings of all its servers.
            downstreams: those servers that it uses.
            context: fast-agent's, of this agent.
            log: receives outages and the listed tools.
            limits: None for the defaults.
            cache: of the process; None for one of its own.
        """
        self.limits = limits or ListingLimits()
        self.cache = cache or ListingCache(self.limits)
        self.tasks = TaskOwner()
        self.log = log or DownstreamLog(agent)
        self.agent, self.context = agent, context
        self.servers = tuple(downstreams)
        self._clients = SharedClients(self.tasks, self.limits.keep_alive_seconds)
        cached = {name: one for name, one in downstreams.items() if _can_be_cached(one, servers.get(name))}
        self._asked_ahead = {name for name, one in cached.items() if not one.forwards_bearer}
        self._http = {name: self._clients.make(servers[name]) for name in self._asked_ahead}
        self._settings = servers
        self._seconds_by_caller = {name: one.listing_seconds for name, one in cached.items() if one.forwards_bearer}
        self._inquiries: dict[tuple[str, frozenset[Mode]], Inquiry] = {}
        self._is_closed = False

    @property
    def asked_ahead(self) -> Set[str]:
        """Names of the downstreams whose listings are requested independently of calls."""
        return self._asked_ahead

    def ask(self) -> None:
        """Start requesting the listings that are the same for all callers, for the first call."""
        for server in self.asked_ahead:
            self._inquiry(server).begin()

    def of(self, server: str) -> ServerListing | None:
        """Return the listing of `server` for the current call, if one is cached.

        If a listing that is the same for all callers is out of date, request it; the call does not wait for that.
        """
        if server in self.asked_ahead:
            return self._inquiry(server).known()
        key = self._key_of_call(server)
        return None if key is None else self.cache.get(key)

    def latest(self, server: str) -> ServerListing | None:
        """Return the last listing of a server that is asked ahead, however old; if it is out of date, request it."""
        inquiry = self._inquiry(server)
        inquiry.known()
        return inquiry.listing

    async def list_again(self, server: str) -> None:
        """Request the listing of a server that is asked ahead, and wait for the answer."""
        await self._inquiry(server).list_again()

    @contextmanager
    def receiving(self, server: str, aggregator: MCPAggregator) -> Iterator[None]:
        """Cache the listing of `server` that `aggregator` receives in the block, for calls of the same caller."""
        if (key := self._key_of_call(server)) is None:
            yield
            return
        request, seconds = self.cache.begin(key), self._seconds_by_caller[server]
        yield
        if request.is_void:  # the agent may have been closed
            return
        if server not in self._http:  # not at the start: one takes 0.7 MB, and 30 ms of the event loop
            self._http[server] = self._clients.make(self._settings[server])
        with suppress(ConnectionError):  # it has ended since; the call goes on with what it has received
            listing = listing_of(aggregator, server, self._http[server], partial(self.invalidate, server))
            self.cache.store(request, listing, listing.valid_seconds(seconds))

    def invalidate(self, server: str, *, is_outdated: bool = True) -> None:
        """Invalidate the listing of `server` for the current call, after an error.

        `is_outdated`: an outdated listing may explain the error. Listings of callers are invalidated by any error.
        """
        if (key := self._key_of_call(server)) is not None:
            self.cache.drop(key)
        elif is_outdated and server in self.asked_ahead:
            self._inquiry(server).invalidate()

    def refused(self, server: str) -> None:
        """Remove what is cached of `server` for the credential of the current call, which it has refused."""
        if (key := self._key_of_call(server)) is not None:
            self.cache.refuse(server, key.credential)

    def renew_others(self, server: str) -> None:
        """Request the listings of `server` for callers that can be asked again, after it has reported a change."""
        for (name, modes), inquiry in self._inquiries.items():
            if name == server and modes:
                inquiry.begin()

    async def close(self) -> None:
        """End all connections; calls that still run get no new ones."""
        self._is_closed = True
        self._clients.stop_sweeping()
        for inquiry in self._inquiries.values():
            inquiry.end()
        await self.tasks.cancel_all()
        self._seconds_by_caller.clear()
        self.cache.forget(self)
        await self._clients.close()

    def _key_of_call(self, server: str) -> ListingKey | None:
        """The key of the current call's listing; None outside of calls, and if it does not depend on the caller."""
        scope = current_scope.get()
        if scope.presented is None or server not in self._seconds_by_caller:
            return None
        credential = self.cache.credential(scope.presented.credentials.bearer)
        return ListingKey(self, server, credential, frozenset(scope.questions.modes))

    def _inquiry(self, server: str) -> Inquiry:
        """The listing of a server that is asked ahead, for callers that can be asked as that of the current call."""
        modes = frozenset(current_scope.get().questions.modes)
        if (inquiry := self._inquiries.get((server, modes))) is None:
            inquiry = self._inquiries[server, modes] = Inquiry(server, modes, self._http[server], self)
            if self._is_closed:
                inquiry.end()
        return inquiry


def _can_be_cached(downstream: Downstream, server: MCPServerSettings | None) -> bool:
    if server is None or server.transport != "http" or not server.load_on_start:
        return False
    has_login = server.auth is not None and bool(server.auth.oauth or server.auth.forward)
    return not has_login and downstream.peer is None and downstream.listing_seconds > 0
