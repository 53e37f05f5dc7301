"""HTTP/1.1: Hypercorn's, without protocol upgrades and without requests of ambiguous length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, EndBody, Request
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from pallas_gateway.serving.http_connections.platform import require

if TYPE_CHECKING:
    import h11

require(H11Protocol, "_check_protocol", "_create_stream", "_send_error_response", "stream_send")
require(HTTPStream, "app_send", "handle")
_LENGTHS = {b"content-length", b"transfer-encoding"}


class Http1(H11Protocol):
    """One HTTP/1.1 connection.

    `Upgrade` is ignored, as RFC 9110 (section 7.8) allows: after an upgrade to HTTP/2 a client could send requests past
    the rules of a proxy in front, and WebSockets are not served.
    """

    _has_requests = False

    async def _check_protocol(self, event: h11.Request) -> None:
        """Recognize the preface of HTTP/2 with prior knowledge, which only a connection can begin with."""
        is_first, self._has_requests = not self._has_requests, True
        if is_first and (event.method, event.target, event.http_version) == (b"PRI", b"*", b"2.0"):
            raise H2ProtocolAssumedError(b"PRI * HTTP/2.0\r\n\r\n" + self.connection.trailing_data[0])

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        if {name for name, _ in headers} >= _LENGTHS:  # RFC 9112, section 6.1: it may be an attempt at smuggling
            await self._send_error_response(400)
            await self.send(Closed())
            return
        self.stream = Http1Stream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )


class Http1Stream(HTTPStream):
    """One request with its answer. The last piece goes out with the end: apart they would wake a client twice."""

    async def app_send(self, message: Any) -> None:
        """Send what the app says."""
        connection = getattr(self.send, "__self__", None)
        if not isinstance(connection, Http1) or not _ends_answer(message):
            await super().app_send(message)
            return
        send = self.send
        self.send = _Ending(connection).send
        try:
            await super().app_send(message)
        finally:
            self.send = send


def _ends_answer(message: Any) -> bool:
    """True for the last message of an answer's body if it is not empty."""
    is_body = message is not None and message["type"] == "http.response.body"
    return is_body and bool(message.get("body")) and not message.get("more_body", False)


class _Ending:
    """Sends what one answer ends with; its last piece goes out with the end, before the end has any consequence.

    What the connection writes with is another only while nothing waits: the next request of a client that does not wait
    for answers would take it for the connection's own.
    """

    def __init__(self, connection: Http1) -> None:
        self._connection = connection
        self._last: list[StreamEvent] = []

    async def send(self, event: StreamEvent) -> None:
        if isinstance(event, Body):
            self._last.append(event)
        elif isinstance(event, EndBody):
            await self._connection.send(RawData(await self._bytes_of(*self._last, event)))
        else:
            await self._connection.stream_send(event)

    async def _bytes_of(self, *events: StreamEvent) -> bytes:
        pieces: list[bytes] = []

        async def collect(event: Event) -> None:
            if isinstance(event, RawData):  # nothing else comes of these
                pieces.append(event.data)

        write, self._connection.send = self._connection.send, collect
        try:
            for event in events:
                await self._connection.stream_send(event)
        finally:
            self._connection.send = write
        return b"".join(pieces)
