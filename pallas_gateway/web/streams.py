"""Responses of the web doors that take long: streams of server-sent events, or one body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.long_responses import LongResponse

if TYPE_CHECKING:
    from starlette.types import Receive, Send

_HEADERS = {
    b"content-type": b"text/event-stream; charset=utf-8",
    b"cache-control": b"no-store, no-transform",
    b"x-accel-buffering": b"no",  # nginx would buffer the stream
}


class ServerSentEvents(LongResponse):
    """The response to one request; the first event makes it a stream."""

    def __init__(self, receive: Receive, send: Send, *, silence_seconds: float = 15.0) -> None:
        """`silence_seconds` are those without an event, after which a comment is written; see `keep_alive`."""
        super().__init__(
            receive, send, headers=_HEADERS, silence_seconds=silence_seconds, comment=lambda: b": keep-alive\n\n"
        )

    async def data(self, text: str) -> None:
        """Send one event; `text` is a single line, as JSON is."""
        await self.write(f"data: {text}\n\n".encode())
