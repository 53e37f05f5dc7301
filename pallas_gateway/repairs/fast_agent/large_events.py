"""Results of tools with images are refused.

Symptom: a tool of an HTTP server that returns a large image fails: the SDK's client refuses events above 1 MiB.

Repair: events may be as large as any answer of a downstream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Name
from pallas_gateway.http_answers import LARGEST_ANSWER_BYTES

CHANGE = Change(
    "large-events",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(
        Name("fast_agent.mcp.client_gateway:streamable_http_client", ("url", "http_client", "max_sse_event_size")),
    ),
    gone_when="fast-agent has a setting for the size of events, or the SDK's limit allows an image",
)


def changed(original: Callable[..., Any], holder: object) -> Callable[..., Any]:
    """Return the client with the limit of answers."""
    del holder
    return partial(original, max_sse_event_size=LARGEST_ANSWER_BYTES)
