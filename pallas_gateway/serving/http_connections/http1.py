"""HTTP/1.1: Hypercorn's, without protocol upgrades and without requests of ambiguous length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypercorn.events import Closed
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from pallas_gateway.serving.http_connections.platform import require

if TYPE_CHECKING:
    import h11

require(H11Protocol, "_check_protocol", "_create_stream", "_send_error_response", "stream_send")
require(HTTPStream, "handle")
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
        self.stream = HTTPStream(
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
