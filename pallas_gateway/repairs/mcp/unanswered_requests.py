"""A request whose answer is to another one waits until its deadline.

Symptom: after JSON with another id, or a notification, the SDK's client goes on waiting.

Repair: the request fails at once.
"""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.shared.message import SessionMessage

_TRANSPORT = "mcp.client.streamable_http:StreamableHTTPTransport"
CHANGE = Change(
    "unanswered-requests",
    REPAIR,
    ("mcp",),
    seen_in="2.3.0",
    replaces=(Name(f"{_TRANSPORT}._handle_json_response", ("self", "response", "read_stream_writer", "request_id")),),
    relies_on=(
        Name(f"{_TRANSPORT}._resolve_abandoned_request", ("self", "read_stream_writer", "request_id", "message")),
    ),
    gone_when="the SDK's client fails a request when the JSON that answers it is no answer to it",
)
UNANSWERED = "The server has sent an answer to another request. The tool may have run."


def changed(original: Callable[..., Awaitable[None]], _: object) -> Callable[..., Awaitable[None]]:
    """Return the method that reads an answer in JSON."""

    @wraps(original)
    async def handle_json_response(self: Any, response: Any, read_stream_writer: Any, *, request_id: Any) -> None:
        answered: list[Any] = []

        async def send(received: SessionMessage | Exception) -> None:
            answered.append(getattr(getattr(received, "message", None), "id", None))
            await read_stream_writer.send(received)

        await original(self, response, SimpleNamespace(send=send), request_id=request_id)
        if request_id not in answered:
            await self._resolve_abandoned_request(read_stream_writer, request_id, UNANSWERED)

    return handle_json_response
