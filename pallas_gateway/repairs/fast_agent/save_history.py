"""A message can write a file.

Symptom: a user message that begins with `***SAVE_HISTORY PATH` makes fast-agent write the conversation to that file.

Repair: the text goes to the model.
"""

from __future__ import annotations

from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

CHANGE = Change(
    "save-history",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    # Each looks for the marker at the beginning of a user message.
    replaces=(
        Name("fast_agent.llm.fastagent_llm:CONTROL_MESSAGE_SAVE_HISTORY"),
        Name("fast_agent.agents.llm_decorator:CONTROL_MESSAGE_SAVE_HISTORY"),
    ),
    gone_when="fast-agent reads control messages from its own terminal only",
)


def changed(original: Any, holder: Any) -> tuple[str, ...]:
    """Return a marker that no text begins with: `str.startswith(())` is false."""
    del original, holder
    return ()
