"""Cached listings of an agent's stdio servers, requested of processes that calls may use afterwards.

A call without a listing waits for it, and starts no process of its own. The listing is kept while its program fails
only in calls: a process that crashes has no other tools than the next one.

Servers may offer some tools only to clients that declare `elicitation`, so there is a listing for each set of modes in
which callers can be asked: for callers that cannot be asked from the start, for others with their first call.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from fast_agent.core.exceptions import walk_exception_chain
from fast_agent.mcp.client_connection import MCPClientConnection
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.connection_manager import (
    connections_of,
    cut_off,
    listing_of,
    tools_of,
)
from pallas_gateway.runtime.downstreams.listings.reading import listing_within
from pallas_gateway.runtime.downstreams.programs.program_process import ProgramBusyError
from pallas_gateway.runtime.downstreams.programs.program_transport import connection
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.scope import CallScope, connect_nothing, current_scope, entered
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Set

    from fast_agent.config import MCPServerSettings
    from fast_agent.context import Context as FastAgentContext
    from fast_agent.mcp.mcp_connection_manager import ServerConnection

    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.limits import ProgramLimits
    from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing
    from pallas_gateway.runtime.downstreams.programs.program_pool import ProgramPool, Programs
    from pallas_gateway.runtime.protocols import Downstream, ProgramState


class ProgramListings:
    """The listings of one hosted agent's stdio servers; closed with the agent."""

    def __init__(  # noqa: PLR0913  the parts of an agent's listings
        self,
        agent: str,
        downstreams: Collection[Downstream],
        *,
        servers: Mapping[str, MCPServerSettings],
        context: FastAgentContext | None,
        log: DownstreamLog,
        programs: Programs,
        limits: ProgramLimits,
    ) -> None:
        self.agent, self.context = agent, context
        self.log, self.limits = log, limits
        self.tasks = TaskOwner()
        self.servers = tuple(one.name for one in downstreams)
        self._programs = programs
        self._of_programs = {
            one.name: one.program
            for one in downstreams
            if one.program is not None and _can_be_cached(one, servers.get(one.name))
        }
        self._listed: dict[tuple[str, frozenset[Mode]], _Listed] = {}

    @property
    def names(self) -> Set[str]:
        """The servers whose listings are cached here."""
        return self._of_programs.keys()

    def ask(self) -> None:
        """Start requesting the listings, for the first call."""
        for server in self.names:
            self._of_call(server).begin()

    def of(self, server: str) -> ServerListing | None:
        """Return the listing of `server` for the current call. If it is old, request it; the call does not wait."""
        return self._of_call(server).known() if server in self.names else None

    async def request(self, server: str) -> ServerListing:
        """Return the listing of `server` for the current call, requested now if there is none.

        Raises:
            ConnectionError: there is none; the message has the reason.
        """
        return await self._of_call(server).request()

    def invalidate(self, server: str) -> None:
        """Request the listing of the current call again, after an error that an outdated listing may explain."""
        if server in self.names:
            self._of_call(server).begin()

    def state(self, server: str) -> ProgramState | None:
        """Return what is known of the program of `server` without starting it."""
        pools = (one.pool for (name, _), one in self._listed.items() if name == server)
        return next((one.state for one in pools if one is not None), None)

    def _of_call(self, server: str) -> _Listed:
        """The listing of `server` for callers that can be asked as that of the current call can be."""
        modes = frozenset(current_scope.get().questions.modes)
        if (listed := self._listed.get((server, modes))) is None:
            acquire = partial(self._programs.acquire, server, self._of_programs[server])
            listed = self._listed[server, modes] = _Listed(self, server, modes, acquire)
        return listed

    async def close(self) -> None:
        """Give up the programs; those that no other agent uses are ended in the background."""
        await self.tasks.cancel_all()
        for listed in self._listed.values():
            if listed.pool is not None:
                self._programs.release(listed.pool)


class _Listed:
    """The listing of one stdio server for callers that can be asked in these modes."""

    def __init__(
        self, agents: ProgramListings, server: str, modes: frozenset[Mode], acquire: Callable[[], ProgramPool]
    ) -> None:
        self._of, self._limits = agents, agents.limits
        self._server, self._modes = server, modes
        self._acquire = acquire
        self._task: asyncio.Task[ServerListing] | None = None
        self._listing: ServerListing | None = None
        self._listed_at = float("-inf")
        self.pool: ProgramPool | None = None

    def known(self) -> ServerListing | None:
        if self._listing is not None and monotonic() - self._listed_at > self._limits.fresh_seconds:
            self.begin()
        return self._listing

    async def request(self) -> ServerListing:
        if self._listing is not None:
            return self._listing
        task = self.begin()
        await asyncio.wait({task})
        if task.cancelled():
            raise ConnectionError("its agent was stopped")
        return task.result()

    def begin(self) -> asyncio.Task[ServerListing]:
        """Request the listing, unless that is under way."""
        if self.pool is None:
            self.pool = self._acquire()
        if self._task is None:
            # In an empty context: in that of a call, the process would ask its caller.
            self._task = Context().run(self._of.tasks.spawn, self._request(self.pool), name=f"list {self._server}")
        return self._task

    async def _request(self, pool: ProgramPool) -> ServerListing:
        try:
            async with pool.listing, self._connected(pool) as aggregator:
                found = listing_of(aggregator, self._server, None, self.begin)
                self._listing = replace(
                    found, program=pool, connect_seconds=self._limits.start_seconds + self._limits.list_seconds
                )
                self._of.log.is_up(self._server)
                self._of.log.on_listed(self._server, tools_of(aggregator, self._server), found.faults)
                return self._listing
        except Exception as error:
            pool.is_of_initialize_era = False  # it may be another program now
            raise self._failed(error) from error
        finally:
            self._task, self._listed_at = None, monotonic()

    def _failed(self, error: Exception) -> ConnectionError:
        """Log why there is no listing. A program whose processes are all in use keeps its listing."""
        why = one_line(error)
        if not any(isinstance(one, ProgramBusyError) for one in walk_exception_chain(error)):
            self._listing = None
            self._of.log.went_down(self._server, why)
        return ConnectionError(why)

    @asynccontextmanager
    async def _connected(self, pool: ProgramPool) -> AsyncIterator[MCPAggregator]:
        aggregator = MCPAggregator([self._server], context=self._of.context, name=self._of.agent)
        with entered(CallScope(connect=connect_nothing, servers=self._of.servers, questions=declaring(self._modes))):
            async with aggregator:
                connections_of(aggregator).factories[self._server] = partial(_connection, pool)
                seconds = self._limits.start_seconds + self._limits.list_seconds
                async with listing_within(seconds, partial(cut_off, aggregator)):
                    await connecting.attach(aggregator, self._server)
                yield aggregator


def _connection(pool: ProgramPool, server: ServerConnection) -> MCPClientConnection:
    config = server.server_config
    return MCPClientConnection(
        connection(pool, is_listing=True),
        server._callback_runtime,
        read_timeout_seconds=config.read_timeout_seconds,
        cache=False,
        protocol_mode="legacy" if pool.is_of_initialize_era else config.protocol_mode,
    )


def _can_be_cached(downstream: Downstream, server: MCPServerSettings | None) -> bool:
    return server is not None and server.load_on_start and downstream.listing_seconds > 0
