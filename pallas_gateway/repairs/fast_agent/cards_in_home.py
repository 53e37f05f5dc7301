"""Agents of fast-agent's home join every agent.

Symptom: agent cards in `.fast-agent/agent-cards` are started with each hosted agent, and a wrong one fails all.

Repair: a harness loads only the cards that its module names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

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
