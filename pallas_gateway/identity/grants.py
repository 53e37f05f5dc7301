"""Grants of callers: `view:agents`, `run:agents`, `view:instructions`, each also with `:NAME`, and others. Pure.

The grant to run an agent includes the grant to view it, because a client can only call tools that it can list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pallas_gateway.config.model.values import GRANT

if TYPE_CHECKING:
    from collections.abc import Iterable

VIEW_AGENTS = "view:agents"
RUN_AGENTS = "run:agents"
VIEW_METRICS = "view:metrics"
VIEW_INSTRUCTIONS = "view:instructions"
VIEW_GATEWAY = "view:gateway"
VIEW_CALLS = "view:calls"
CANCEL_CALLS = "cancel:calls"


@dataclass(frozen=True, slots=True)
class Grants:
    """A set of grants; `everything` stands for all of them, as without authentication."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    @classmethod
    def of(cls, words: Iterable[str]) -> Self:
        """The grants among `words`; other words, as in an OAuth scope for several programs, are ignored."""
        return cls(frozenset(word for word in words if GRANT.fullmatch(word)))

    def may_run(self, agent: str) -> bool:
        return self._has(RUN_AGENTS, agent)

    def may_view(self, agent: str) -> bool:
        """Return true if the agent's tools, health and registry entry may be read."""
        return self._has(VIEW_AGENTS, agent) or self.may_run(agent)

    def may_view_instruction(self, agent: str) -> bool:
        """Return true if the agent's instruction may be read, by a caller that may view the agent."""
        return self._has(VIEW_INSTRUCTIONS, agent)

    def has(self, grant: str) -> bool:
        """Return true if a grant that concerns no agent is among these."""
        return self.everything or grant in self.names

    def deciding(self, what: str, agent: str) -> str | None:
        """Return the grant by which a caller may make a use of an agent; None without authentication."""
        if self.everything:
            return None
        return what if what in self.names else f"{what}:{agent}"

    def _has(self, what: str, agent: str) -> bool:
        return self.everything or what in self.names or f"{what}:{agent}" in self.names


EVERYTHING = Grants(everything=True)
NOTHING = Grants()
