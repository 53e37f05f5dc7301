"""An error within an answer is lost.

Symptom: an `error` or `response.failed` event of an `openresponses` server fails the call with "Streaming completed
without a final response payload."

Repair: the provider's message is raised.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.calls.provider_failures import reported
from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.errors import CallFailedError

_MODULE = "fast_agent.llm.provider.openai.openresponses_streaming"
_EVENTS = frozenset({"error", "response.failed"})
CHANGE = Change(
    "error-events",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(
            f"{_MODULE}:OpenResponsesStreamingMixin._handle_openresponses_stream_event",
            ("self", "event", "model", "state"),
        ),
    ),
    gone_when="that method raises, as `ResponsesStreamingMixin._process_stream` does",
)


def changed(original: Any, holder: Any) -> Any:
    """Raise `CallFailedError` for such an event."""
    del holder

    @wraps(original)
    async def handle(self: Any, event: Any, *arguments: Any, **options: Any) -> None:
        if getattr(event, "type", None) in _EVENTS:
            error = event if event.type == "error" else event.response.error
            raise CallFailedError(reported(getattr(error, "message", None)), reason="llm_error")
        await original(self, event, *arguments, **options)

    return handle
