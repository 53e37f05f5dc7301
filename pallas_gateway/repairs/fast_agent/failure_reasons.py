"""Reasons hold addresses, Python and statistics.

Symptom: a failed call is reported with Python's text of an error, a wrong cause ("Request timed out." for a refused
connection), another provider's name, or statistics.

Repair: one sentence has the status, the provider's message or the cause.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from mcp_types import TextContent

from pallas_gateway.calls.provider_failures import COULD_NOT_ANSWER, sentence, why_failed
from pallas_gateway.changes.change import REPAIR, Change, EachModule, Loaded

_PACKAGE = "fast_agent.llm.provider"
_ERROR_CHANNEL = "fast-agent-error"
CHANGE = Change(
    "failure-reasons",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_PACKAGE),
    replaces=(EachModule(_PACKAGE, "build_stream_failure_response", ("provider", "error", "model_name")),),
    gone_when=(
        "fast-agent's errors carry status, provider's message and cause as attributes, and its failure responses name"
        " nothing else"
    ),
)


def changed(original: Any, holder: Any) -> Any:
    """Report failures in the words of `provider_failures`."""
    del holder
    if hasattr(original, "__wrapped__"):
        return original  # imported from a module in which it is replaced

    @wraps(original)
    def explained(provider: Any, error: Any, model_name: str) -> Any:
        answer = original(provider, error, model_name)
        name = getattr(provider, "config_name", provider)
        text = sentence(name, model_name, why_failed(error) or str(getattr(error, "message", None) or error))
        answer.channels[_ERROR_CHANNEL] = [TextContent(type="text", text=text)]
        answer.content = [TextContent(type="text", text=f"{COULD_NOT_ANSWER}: {text}")]  # read by agents and clients
        return answer

    return explained
