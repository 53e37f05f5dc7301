"""Copilot is asked only once.

Symptom: one answer 429 fails the call (`max_retries=0`).

Repair: `max_retries` is the libraries' usual number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_COPILOT = "fast_agent.llm.provider.copilot"
_REPEATS = 2
CHANGE = Change(
    "copilot-repeats",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_COPILOT),
    replaces=(
        Name(f"{_COPILOT}.responses:CopilotResponsesLLM._responses_client", takes=("self",)),
        Name(f"{_COPILOT}.messages:CopilotMessagesLLM._initialize_anthropic_client", takes=("self",)),
    ),
    gone_when="fast-agent lets Copilot's libraries repeat requests",
)


def changed(original: Callable[[Any], Any], holder: Any) -> Callable[[Any], Any]:
    """Have the library repeat requests."""
    del holder

    @wraps(original)
    def client(self: Any) -> Any:
        made = original(self)
        made.max_retries = _REPEATS
        return made

    return client
