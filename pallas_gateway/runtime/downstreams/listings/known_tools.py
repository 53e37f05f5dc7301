"""The tools of an agent's servers as far as listings that are cached show them; nothing is requested for an answer.

Servers may offer more tools to clients that declare `elicitation`, so where the agent's callers are asked, the listing
for those who can be is known separately.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.calls.questions import MODES
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.connection_manager import cut_off, faults_of, tools_of
from pallas_gateway.runtime.downstreams.listings.reading import listing_within
from pallas_gateway.runtime.downstreams.tool_filters import may_use
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.protocols import CANNOT_LIST, ServerTools
from pallas_gateway.runtime.scope import CallScope, connect_nothing, current_scope, entered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fast_agent.agents.agent_types import AgentConfig
    from fast_agent.context import Context
    from mcp_types import Tool

    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
    from pallas_gateway.runtime.downstreams.programs.program_listings import ProgramListings
    from pallas_gateway.runtime.protocols import AgentSpec, Downstream


LISTING_SECONDS = 20.0
"""The time that a call waits for the program of a stdio server."""
_KNOWN = "fast_agent.agents."
"""Package of the classes of agents; a class of the project, or an agent elsewhere, may do anything."""


class KnownTools:
    """The tools that the filters of `configs` leave of what the servers offer."""

    def __init__(
        self,
        spec: AgentSpec,
        configs: Sequence[AgentConfig],
        downstreams: Collection[Downstream],
        *,
        offers: ToolCatalog,
        programs: ProgramListings,
    ) -> None:
        self._spec = spec
        self._configs = configs
        self._downstreams = downstreams
        self._offers = offers
        self._programs = programs

    def of_servers(self, caller: Caller) -> tuple[ServerTools, ...]:
        """The tools of each server for `caller`; of a peer, those that it may view."""
        found = tuple(self._of_server(one, caller) for one in self._downstreams)
        if not self._spec.ask_caller:
            return found
        with entered(_for_askable()):
            more = [self._of_server(one, caller) for one in self._downstreams]
        return tuple(one if one.tools is not None else other for one, other in zip(more, found, strict=True))

    @property
    def only_read(self) -> bool:
        """True if all are known, but for those of peers, and declare that they change nothing."""
        if not self._declare_to_only_read():
            return False
        if not self._spec.ask_caller:
            return True
        with entered(_for_askable()):
            return self._declare_to_only_read()

    def list_for_askable(self, server: str) -> bool:
        """Start listing what `server` offers to callers that can be asked; return False if it is listed in calls."""
        with entered(_for_askable()):
            if server in self._offers.asked_ahead:
                self._offers.of(server)
            self._programs.invalidate(server)
        return server in self._offers.asked_ahead | self._programs.names

    def _declare_to_only_read(self) -> bool:
        servers = (self._of_server(one, ANONYMOUS) for one in self._downstreams if one.peer is None)
        return all(server.tools is not None and all(map(_only_reads, server.tools)) for server in servers)

    def _of_server(self, downstream: Downstream, caller: Caller) -> ServerTools:
        name, tools, why = downstream.name, None, None
        if downstream.peer is not None:
            calls = self._spec.peer_calls if caller.grants.may_view(downstream.peer) else None
            tools = calls.tools(downstream.peer, caller) if calls is not None else None
            why = "They are shown to callers that may view the agent."
        elif name in self._offers.asked_ahead | self._programs.names:
            listing = self._programs.of(name) if name in self._programs.names else self._offers.latest(name)
            tools = [one.tool for one in listing.tools] if listing is not None else None
            why = "The server has not listed its tools."
        elif downstream.forwards_bearer or downstream.token_exchange is not None:
            why = "The server may offer others to each caller."
        else:
            why = "They are listed in calls only."
        if tools is None:
            return ServerTools(name, why_unknown=why)
        return ServerTools(name, [tool for tool in tools if may_use(self._configs, name, tool.name)])


def _for_askable() -> CallScope:
    """The present scope with a caller that can be asked."""
    return replace(current_scope.get(), questions=declaring(MODES))


async def tool_names(
    server: str, agent: str, context: Context | None, modes: Collection[Mode] = ()
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of the tools that `server` offers to a caller without a token who can be asked in these modes.

    With why others are left out.

    Raises:
        ConnectionError: they could not be listed; the message has the reason.
    """
    aggregator = MCPAggregator([server], context=context, name=agent)
    try:
        async with listing_within(LISTING_SECONDS, partial(cut_off, aggregator)):
            with entered(CallScope(connect=connect_nothing, questions=declaring(modes))):
                async with aggregator:
                    await connecting.attach(aggregator, server)
                    return frozenset(tools_of(aggregator, server)), faults_of(aggregator, server)
    except Exception as error:
        raise ConnectionError(one_line(error).removeprefix(CANNOT_LIST)) from error


def _only_reads(tool: Tool) -> bool:
    """Return True if a tool declares that it changes nothing."""
    return tool.annotations is not None and tool.annotations.read_only_hint is True


async def local_tools_only_read(agents: Iterable[Any]) -> bool:
    """Return True if no unconnected agent has a tool that may change something: a function, a shell, files.

    The tools of servers are not among theirs before they are connected. Tools that call another of the agents do
    nothing else, and servers that are attached later are unknown.
    """
    for agent in agents:
        if not type(agent).__module__.startswith(_KNOWN) or agent.config.mcp_connect:
            return False
        others = getattr(agent, "_child_agents", ())  # of an agent that has others as tools
        if any(not _only_reads(tool) for tool in (await agent.list_tools()).tools if tool.name not in others):
            return False
    return True
