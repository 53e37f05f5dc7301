"""The tools of an agent's servers as far as listings that are cached show them; nothing is requested for an answer.

Servers may offer more tools to clients that declare `elicitation`, so where the agent's callers are asked, the listing
for those who can be is known separately.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.calls.questions import MODES
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.runtime.downstreams.listings.read_only import only_reads
from pallas_gateway.runtime.downstreams.tool_filters import may_use
from pallas_gateway.runtime.protocols import ServerTools
from pallas_gateway.runtime.scope import CallScope, current_scope, entered

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fast_agent.agents.agent_types import AgentConfig

    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
    from pallas_gateway.runtime.downstreams.programs.program_listings import ProgramListings
    from pallas_gateway.runtime.protocols import AgentSpec, Downstream


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
        return all(server.tools is not None and all(map(only_reads, server.tools)) for server in servers)

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
