"""Grants of callers: `view:agents`, `run:agents`, `view:instructions`, each also with `:NAME`, and others. Pure.

The grant to run an agent includes the grant to view it, because a client can only call tools that it can list. Agents
of the database have an owner, who may make every use of them without a grant, but for deleting the threads of other
callers, and editors, who may view and run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from pallas_gateway.config.model.values import GRANT

VIEW_AGENTS = "view:agents"
RUN_AGENTS = "run:agents"
CREATE_AGENTS = "create:agents"
EDIT_AGENTS = "edit:agents"
DELETE_AGENTS = "delete:agents"
VIEW_METRICS = "view:metrics"
VIEW_INSTRUCTIONS = "view:instructions"
VIEW_GATEWAY = "view:gateway"
VIEW_CALLS = "view:calls"
CANCEL_CALLS = "cancel:calls"
OWNER = "owner"
"""Stands for ownership where a decision names the grant that has allowed it."""


@dataclass(frozen=True, slots=True)
class Grants:
    """A set of grants; `everything` stands for all of them, as without authentication.

    Attributes:
        names: the grants.
        everything: true without authentication.
        owned: the agents of the database that the caller owns.
        edited: those that it may edit, its own among them.
        stored: all agents of the database; grants to edit and delete are for these only.
    """

    names: frozenset[str] = frozenset()
    everything: bool = False
    owned: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, words: Iterable[str]) -> Self:
        """The grants among `words`; other words, as in an OAuth scope for several programs, are ignored."""
        return cls(frozenset(word for word in words if GRANT.fullmatch(word)))

    def with_own(self, owned: Iterable[str], stored: Iterable[str]) -> Self:
        """Return these grants for the present agents `stored` of the database, of which the caller owns `owned`."""
        own, all_stored = frozenset(owned), frozenset(stored)
        edited = own.union(name for name in all_stored if self._has(EDIT_AGENTS, name))
        return replace(self, owned=own, edited=edited, stored=all_stored)

    def may_run(self, agent: str) -> bool:
        return self._has(RUN_AGENTS, agent) or agent in self.edited

    def may_view(self, agent: str) -> bool:
        """Return true if the agent's tools, health and registry entry may be read."""
        return self._has(VIEW_AGENTS, agent) or self.may_run(agent)

    def viewed[T](self, agents: Mapping[str, T]) -> dict[str, T]:
        """Return those of the agents that may be viewed, in their order: what every list of agents shows."""
        return {name: agent for name, agent in agents.items() if self.may_view(name)}

    def runnable[T](self, agents: Mapping[str, T]) -> dict[str, T]:
        """Return those of the agents that may be called, in their order."""
        return {name: agent for name, agent in agents.items() if self.may_run(name)}

    def may_view_instruction(self, agent: str) -> bool:
        """Return true if the agent's instruction may be read, by a caller that may view the agent."""
        return self._has(VIEW_INSTRUCTIONS, agent) or agent in self.edited

    def may_edit(self, agent: str) -> bool:
        """Return true if the agent, one of the database, may be changed."""
        return self.everything or agent in self.edited

    def may_hand_over(self, agent: str) -> bool:
        """Return true if the agent, one of the database, may be given to another owner.

        An operator with the grants to edit and to delete all agents may: the owner's key or account may be gone.
        """
        is_operator = agent in self.stored and {EDIT_AGENTS, DELETE_AGENTS} <= self.names
        return self.everything or agent in self.owned or is_operator

    def may_delete(self, agent: str) -> bool:
        """Return true if the agent, one of the database, may be deleted by a caller that may view it."""
        return self.may_hand_over(agent) or (agent in self.stored and self._has(DELETE_AGENTS, agent))

    def may_delete_threads(self, agent: str) -> bool:
        """Return true if the threads of all callers may be deleted with the agent; they are not its owner's."""
        return self.everything or (agent in self.stored and self.has(DELETE_AGENTS))

    def has(self, grant: str) -> bool:
        """Return true if a grant that concerns no agent, or all agents, is among these."""
        return self.everything or grant in self.names

    def deciding(self, what: str, agent: str) -> str | None:
        """Return the grant by which a caller may make a use of an agent, or lacks; None without authentication."""
        if self.everything:
            return None
        if agent in self.edited and not self._has(what, agent):
            return OWNER if agent in self.owned else _written(self.names, EDIT_AGENTS, agent)
        return _written(self.names, what, agent)

    def _has(self, what: str, agent: str) -> bool:
        return self.everything or what in self.names or f"{what}:{agent}" in self.names


def _written(names: frozenset[str], what: str, agent: str) -> str:
    return what if what in names else f"{what}:{agent}"


EVERYTHING = Grants(everything=True)
NOTHING = Grants()
