"""The `ttlMs` of a tool listing is lost.

Symptom: a server says by `ttlMs` how long its tool listing is valid (2026-07-28), and the client's session drops it.
Who caches the listing keeps it for too long.

Reproduction: list the tools of a FastMCP server with `cache_ttl=5` by `ClientSession`; the session has no such value.

Repair: the session keeps the seconds of its latest listing in `pallas_ttl_seconds`. 0, which the SDK's servers send
where none was set, counts as none.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change(
    "listing-ttl",
    REPAIR,
    ("mcp",),
    seen_in="2.3.0",
    replaces=(Name("mcp.client.session:ClientSession._absorb_tool_listing", ("self", "result", "complete")),),
    gone_when="`ClientSession` shows the `ttlMs` of its latest listing",
)


def changed(original: Callable[..., Any], holder: object) -> Callable[..., Any]:
    """Return the method that takes a listing, and keeps its `ttlMs`."""
    del holder

    @wraps(original)
    def absorb_tool_listing(self: Any, result: Any, *, complete: bool) -> Any:
        self.pallas_ttl_seconds = result.ttl_ms / 1000 if result.ttl_ms > 0 else None
        return original(self, result, complete=complete)

    return absorb_tool_listing
