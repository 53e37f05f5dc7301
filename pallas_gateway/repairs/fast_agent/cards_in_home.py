"""Agents of fast-agent's home join every agent.

Symptom: agent cards in `.fast-agent/agent-cards`, made for fast-agent's terminal, are added as agents to
each hosted one: they are started, connect to their servers, and a wrong card fails the start of all agents.

Reproduction: put a card `name: other` into `.fast-agent/agent-cards` of the working directory and serve an agent:
`other` is among its registered agents.

Repair: a harness loads no cards but those that its module names. Programs that fast-agent runs itself do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change(
    "cards-in-home",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(Name("fast_agent.core.harness:AgentHarness._load_environment_agent_cards", ("self",)),),
    gone_when="`FastAgent.harness` has an option for it, or `no_home` includes cards",
)


def changed(original: Callable[[Any], None], holder: Any) -> Callable[[Any], None]:
    """Load no cards."""
    del original, holder

    def load_environment_agent_cards(self: Any) -> None:
        del self

    return load_environment_agent_cards
