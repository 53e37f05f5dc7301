"""One accepted connection: Hypercorn's, with HTTP/1.1 only and a limit for answers that its client does not read.

Limits of requests are in `doors/http/bodies.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, override

import h11
import hypercorn.asyncio.run
import hypercorn.config
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from pallas_gateway.changes.change import Fault, Name
from pallas_gateway.changes.names import incompatible, misfit
from pallas_gateway.limits import ConnectionLimits
from pallas_gateway.process.http_connections import inbox
from pallas_gateway.process.http_connections.inbox import Apps
from pallas_gateway.tasks import give_way
from pallas_gateway.telemetry.rate_limit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.typing import AppWrapper

    type Address = tuple[str, int] | None

LEAST_READ_BYTES = 64 * 1024
"""Bytes that a client must read in each period. Systems buffer some for a client that reads nothing."""
_log = logging.getLogger("pallas.server.http")
_EVENTS = {"connection": "connection failed", "request": "request failed"}

FAULTS = (
    Fault(
        title="Connections whose clients have left are kept",
        text="""\
Symptom: if a client closes its side before the answer ends, the connection stays until the idle time-out (120 s here).

Repair: the idle timer is not started again (`Connection._read_data`).
""",
        library="hypercorn",
        gone_when="`TCPServer` ignores `Updated(idle=True)` after the end of its client's data",
        script="hypercorn_half_closed.py",
        test="tests/e2e/test_connections.py",
    ),
    Fault(
        title="A connection that ends early is an error with a traceback",
        text="""\
Symptom: a client that leaves during its TLS handshake or before its first request writes a traceback to the log.

Repair: an `OSError` ends the connection, the transport is closed once, and other errors are logged once a minute.
""",
        library="hypercorn",
        gone_when="`TCPServer.run` and `_close` end over a connection that was reset",
        test="tests/unit/process/test_http_connections.py",
    ),
    Fault(
        title="A request with two lengths is accepted",
        text="""\
Symptom: a request with `Content-Length` and `Transfer-Encoding` is answered. What a proxy takes for a body may be a
second request that passes its rules (RFC 9112, section 6.1).

Repair: the answer is 400, and the connection is closed (`Http1._create_stream`).
""",
        library="hypercorn",
        gone_when="`H11Protocol` or h11 refuses it",
        test="tests/e2e/test_connections.py",
    ),
)
RELIED_ON = (
    *(
        Name(f"hypercorn.protocol.h11:H11Protocol.{name}")
        for name in ("_check_protocol", "_create_stream", "_send_h11_event", "stream_send")
    ),
    *(
        Name(f"hypercorn.asyncio.tcp_server:TCPServer.{name}")
        for name in ("_close", "_idle_timeout", "_initiate_server_close", "_read_data", "protocol_send", "run")
    ),
    Name("hypercorn.asyncio.run:TCPServer", ("app", "loop", "config")),
)
_LENGTHS = {b"content-length", b"transfer-encoding"}
_TWO_LENGTHS = b"A request has Content-Length or Transfer-Encoding, not both.\n"
_NO_HTTP2 = b"This server speaks HTTP/1.1 only. Use HTTP/1.1, or an ingress that speaks HTTP/2.\n"


class Http1(H11Protocol):
    """One HTTP/1.1 connection.

    `Upgrade` is ignored, as RFC 9110 (section 7.8) allows: after an upgrade to HTTP/2 a client could send requests past
    the rules of a proxy in front, and WebSockets are not served.
    """

    @override
    async def _check_protocol(self, event: h11.Request) -> None:
        """Do nothing: Hypercorn's own changes to HTTP/2."""

    @override
    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        if request.method == b"PRI":  # the preface of HTTP/2 with prior knowledge (RFC 9113, section 3.4)
            await self._refuse(_NO_HTTP2)
            return
        if {name for name, _ in headers} >= _LENGTHS:  # RFC 9112, section 6.1: it may be an attempt at smuggling
            await self._refuse(_TWO_LENGTHS)
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

    async def _refuse(self, why: bytes) -> None:
        """Answer with 400 and close the connection."""
        headers = [("content-type", "text/plain"), ("content-length", str(len(why))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=why), h11.EndOfMessage()):
            await self._send_h11_event(event)
        await self.send(Closed())


_NO_LINGER = struct.pack("ii", 1, 0)
"""Option that drops unsent data (megabytes) when a connection is closed."""


_READ_BYTES = 256 * 1024
"""The most that one read takes; uvloop receives as much at once."""
_LARGE_READ = 64 * 1024


class Settings(hypercorn.config.Config):
    """Hypercorn's settings. Connections accepted with them are the gateway's own `Connection`."""

    accesslog = None
    include_server_header = False

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        super().__init__()
        limits = limits or ConnectionLimits()
        self.alpn_protocols = ["http/1.1"]
        self.keep_alive_timeout = limits.idle_seconds
        self.unread = UnreadLimit(limits.unread_seconds)
        self.faults = Faults()


class Connection(TCPServer):
    """One accepted connection."""

    config: Settings
    protocol: Http1  # type: ignore[assignment]  # Hypercorn's chooses between HTTP/1.1 and HTTP/2
    _reading: asyncio.Timeout | None = None

    @override
    async def run(self) -> None:
        """Serve the connection to its end."""
        try:
            addresses = self._addresses()
            async with Apps(self.loop, self.config.faults) as self._task_group:
                self.protocol = Http1(
                    self.app,
                    self.config,
                    self.context,
                    self._task_group,
                    ConnectionState(self.state),
                    self.writer.get_extra_info("ssl_object") is not None,
                    *addresses,
                    self.protocol_send,
                )
                await self.idle_task.restart(self._task_group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001  nothing above would handle it but asyncio, which logs every one
            self.config.faults.log("connection", error)
        finally:
            await self._close()

    def _addresses(self) -> tuple[Address, Address]:
        """The client's and the gateway's.

        Raises:
            OSError: the client has left already. A task group would wrap the error.
        """
        accepted = self.writer.get_extra_info("socket")
        if accepted is None:  # TLS, closed since the handshake
            raise ConnectionResetError
        client, server = accepted.getpeername(), accepted.getsockname()
        return parse_socket_addr(accepted.family, client), parse_socket_addr(accepted.family, server)

    @override
    async def protocol_send(self, event: Event) -> None:
        """Send bytes to the client, or handle the end of a request."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            if self.writer.is_closing():
                return  # the app receives a disconnect
            try:
                self.writer.write(event.data)
                if self._unsent():
                    await self.config.unread.until_taken(self.writer.drain, self._unsent)
            except (OSError, RuntimeError):
                self._abort()

    def _unsent(self) -> int:
        try:
            return self.writer.transport.get_write_buffer_size()
        except AttributeError:  # asyncio's TLS transport was closed
            return 0

    def _abort(self) -> None:
        """End the connection at once, dropping what its client does not read; `_read_data` notifies the apps."""
        self._drop()
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0)

    @override
    async def _read_data(self) -> None:
        """Read until the client or `_abort` ends the connection."""
        try:
            async with asyncio.timeout(None) as self._reading:
                await self._read()
        except TimeoutError:
            pass
        finally:
            self._reading = None
        await self.protocol.handle(Closed())
        self.idle_task.restart = _wait_no_more  # type: ignore[assignment]  # an answer that ends later would call it
        await self.idle_task.stop()

    async def _read(self) -> None:
        while not self.reader.at_eof():
            try:
                data = await self.reader.read(_READ_BYTES)
            except OSError:  # those of TLS, too
                return
            began = perf_counter()
            await self.protocol.handle(RawData(data))
            if len(data) >= _LARGE_READ:
                await give_way(began)

    @override
    async def _close(self) -> None:
        with suppress(NotImplementedError, OSError, RuntimeError):  # TLS has no half-closed connections
            self.writer.write_eof()
        await self._closed()
        await self.idle_task.stop()

    @override
    async def _initiate_server_close(self) -> None:
        await self.protocol.handle(Closed())
        await self._closed()

    async def _closed(self) -> None:
        """Close the connection once the client has read everything, at the latest after the limit."""
        try:
            if not self.writer.is_closing():  # asyncio's TLS transport breaks when it is closed twice
                self.writer.close()
            await self.config.unread.until_taken(self.writer.wait_closed, self._unsent)
        except (OSError, RuntimeError, asyncio.CancelledError):
            self._drop()

    def _drop(self) -> None:
        accepted = self.writer.get_extra_info("socket")
        if accepted is not None:  # None once TLS was closed
            with suppress(OSError, ValueError):  # it has ended
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.writer.transport.abort()


async def _wait_no_more(*_: object) -> None:
    """Do nothing: the client cannot send another request."""


def _connection(app: AppWrapper, loop: asyncio.AbstractEventLoop, config: hypercorn.config.Config, *more: Any) -> Any:
    kind = Connection if isinstance(config, Settings) else TCPServer
    return kind(app, loop, config, *more)


def install() -> None:
    """Have Hypercorn make connections with `Settings` the gateway's own; its `serve` has no parameter for it.

    Raises:
        PlatformError: the installed Hypercorn lacks a name that this package overrides.
    """
    if hypercorn.asyncio.run.TCPServer is not _connection:  # type: ignore[attr-defined]
        if (why := misfit((*RELIED_ON, *inbox.RELIED_ON))) is not None:
            raise incompatible("hypercorn", why)
        hypercorn.asyncio.run.TCPServer = _connection  # type: ignore[assignment, attr-defined]


class UnreadLimit:
    """Bounds how long answers wait for clients that do not read them; one for all connections of a listener."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: set[asyncio.Timeout] = set()

    async def until_taken(self, taken: Callable[[], Awaitable[object]], left: Callable[[], int]) -> None:
        """Wait for `taken`, as long as there is progress.

        Args:
            taken: waits until the client has taken enough.
            left: the number of bytes that wait for the client.

        Raises:
            TimeoutError: the client took fewer than `LEAST_READ_BYTES` during a whole period.
        """
        before = left()
        while True:
            try:
                async with asyncio.timeout(self._seconds) as period:
                    self._waiting.add(period)
                    try:
                        await taken()
                        return
                    finally:
                        self._waiting.discard(period)
            except TimeoutError:
                before, previous = left(), before
                if previous - before < LEAST_READ_BYTES:
                    raise

    def shorten(self, seconds: float) -> None:
        """Shorten the limit to `seconds`, also for clients that are already waited for."""
        self._seconds = min(self._seconds, seconds)
        latest = asyncio.get_running_loop().time() + self._seconds
        for period in self._waiting:
            if not period.expired():
                period.reschedule(min(latest, period.when() or latest))


class Faults:
    """The faults of the connections of one listener; each kind is logged once a minute."""

    def __init__(self) -> None:
        self._limit = RateLimit()

    def log(self, failed: Literal["connection", "request"], error: Exception) -> None:
        """Log an error that ended a connection or a request's app."""
        left_out = self._limit.passes((failed, type(error)))
        if left_out is not None:
            # A fault of the gateway; each kind once a minute.
            _log.error(_EVENTS[failed], extra={"more_since_last": left_out} if left_out else {}, exc_info=error)
