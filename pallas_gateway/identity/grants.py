"""Grants of callers: `view:agents[:NAME]`, `run:agents[:NAME]` and `view:metrics`. Pure.

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
        """Return true if calls of the agent are allowed."""
        return self._has(RUN_AGENTS, agent)

    def may_view(self, agent: str) -> bool:
        """Return true if the agent's tools, health and registry entry may be read."""
        return self._has(VIEW_AGENTS, agent) or self.may_run(agent)

    @property
    def may_view_metrics(self) -> bool:
        """Return true if `/metrics` may be read."""
        return self.everything or VIEW_METRICS in self.names

    def _has(self, what: str, agent: str) -> bool:
        return self.everything or what in self.names or f"{what}:{agent}" in self.names


EVERYTHING = Grants(everything=True)
NOTHING = Grants()
