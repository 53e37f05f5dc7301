"""A server can fill memory through a WebSocket.

Symptom: the library sends the key along redirects to any host, and keeps unread answers to pings.

Repair: a connection ends that brings more than an answer (128 MB) or 10,000 control frames, or whose server leaves 16
MB unread. No redirect is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

if TYPE_CHECKING:
    from websockets.asyncio.client import connect

_MODULE = "websockets.asyncio.client"
CHANGE = Change(
    "websocket-limits",
    REPAIR,
    ("websockets",),
    seen_in="15.0.1",
    when=Loaded("fast_agent.llm.provider.openai.responses"),
    replaces=(
        Name(f"{_MODULE}:connect.process_redirect", ("self", "exc"), by="refused"),
        Name(f"{_MODULE}:ClientConnection", by="limited"),
    ),
    relies_on=(
        Name(f"{_MODULE}:ClientConnection.data_received", ("self", "data")),
        Name(f"{_MODULE}:ClientConnection.process_event", ("self", "event")),
    ),
    gone_when="the library has such limits; those of memory belong to who runs many calls in one process",
)


def limited(original: Any, holder: Any) -> Any:
    """Make connections with limits."""
    del original, holder
    from pallas_gateway.repairs.openai._limited_connection import LimitedConnection  # noqa: PLC0415  with its library

    return LimitedConnection


def refused(original: Any, holder: Any) -> Any:
    """Follow no redirect."""
    del original, holder

    def process_redirect(self: connect, exc: Exception) -> Exception:
        del self
        return exc

    return process_redirect
