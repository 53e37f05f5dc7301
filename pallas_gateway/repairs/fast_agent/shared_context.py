"""An agent that stops takes logging and context away from all others.

Symptom: when one harness ends, by a reload or a failed start, fast-agent clears the context and logging that calls of
other agents use.

Repair: both are cleared once, when the gateway ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name

CHANGE = Change(
    "shared-context",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(Name("fast_agent.core.core_app:Core.cleanup", ("self",)),),
    relies_on=(Name("fast_agent.context:cleanup_context"),),
    gone_when="`Core.cleanup` clears only what belongs to its own harness",
)


def changed(original: Callable[[Any], Awaitable[None]], holder: Any) -> Callable[[Any], Awaitable[None]]:
    """Clear nothing."""
    del original, holder

    async def cleanup(self: Any) -> None:
        del self

    return cleanup


async def close() -> None:
    """End fast-agent's logging and context of the process, after the last agent has stopped."""
    from fast_agent.context import cleanup_context  # noqa: PLC0415

    await cleanup_context()
