"""Hypercorn as the gateway uses it: its settings, and one repair.

The repair is checked at import, like everything that reaches into a library.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypercorn.asyncio
import hypercorn.config
from hypercorn.asyncio.tcp_server import TCPServer

from pallas_gateway.errors import GatewayError, PlatformError
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.web.guards import RETRY_AFTER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

    from pallas_gateway.config.configuration import Configuration
    from pallas_gateway.web.app import PortRoutes

BACKLOG = 1024
KEEP_ALIVE_SECONDS = 120.0
"""Longer than proxies and clients keep idle connections (60 s), else one is closed just as it is used again."""
CLOSE_SECONDS = 2.0
"""How long open connections may take to go once everything has been answered."""
LAST_ANSWERS_SECONDS = 0.2
"""How long requests on the connections accepted last get to arrive; a gateway that stops answers each at once."""
_STOPPING = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_SECONDS}\r\n"
    "Connection: close\r\nContent-Length: 0\r\n\r\n"
).encode()


@dataclass(frozen=True, slots=True)
class Listeners:
    """Bound sockets with their routes; `nested` is the plain loopback one that TLS needs, `host` the bound address."""

    sockets: Mapping[int, socket.socket]
    routes: Mapping[int, PortRoutes]
    nested: int | None
    host: str


class Accepting:
    """Hypercorn accepting connections on bound sockets, as an async context manager that yields the serving task.

    The task ends only when the block does, or with the error that made serving impossible. Then the sockets are closed.
    """

    def __init__(self, app: ASGIApp, listeners: Listeners, configuration: Configuration) -> None:
        self._app = app
        self._sockets = listeners.sockets
        self._encrypted = set(listeners.sockets) - {listeners.nested} if configuration.tls_files else set()
        # Hypercorn closes what it is given; a duplicate leaves the originals to the one who bound them.
        self._duplicates = {port: socket.dup(listener.fileno()) for port, listener in listeners.sockets.items()}
        self._config = _hypercorn_config(self._duplicates, listeners.nested, configuration)
        self._stop = asyncio.Event()
        self._tasks = TaskOwner(close_seconds=CLOSE_SECONDS)

    def renew_tls(self, configuration: Configuration) -> None:
        """Encrypt connections made from now on with the configured certificate as its files are now.

        Raises:
            ssl.SSLError, OSError: they cannot be used; `check_tls` says so beforehand.
        """
        self._config.renew_tls(configuration)

    async def __aenter__(self) -> asyncio.Task[None]:
        serving = hypercorn.asyncio.serve(self._app, self._config, shutdown_trigger=self._stop.wait)  # type: ignore[arg-type]  # its own ASGI types
        self.serving = self._tasks.spawn(serving, name="listeners")
        return self.serving

    async def __aexit__(self, *_: object) -> None:
        if not self.serving.done():  # it has closed its descriptors by then
            self._refuse_connections()
            await asyncio.sleep(LAST_ANSWERS_SECONDS)
        self._stop.set()
        await self._tasks.__aexit__()  # bounded: Hypercorn waits for open connections without end

    def _refuse_connections(self) -> None:
        """Before Hypercorn stops: it drops connections that it accepts then, and the ports would queue more.

        A proxy cannot tell a call on such a connection from one that has begun; one that is refused it may send on.
        Without an await, so that hardly any connection comes between the last that is accepted and the first refused.
        """
        loop = asyncio.get_running_loop()
        for port, listener in self._sockets.items():
            loop.remove_reader(self._duplicates[port])
            late = _queued(listener)
            with suppress(OSError):  # not listening any more
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for connection in late:
                if port in self._encrypted:
                    connection.close()
                else:
                    self._tasks.spawn(_turn_away(connection), name="late connection", report=True)


def _queued(listener: socket.socket) -> list[socket.socket]:
    """Connections that wait to be accepted."""
    found = []
    while True:
        try:
            found.append(listener.accept()[0])
        except OSError:
            return found


async def _turn_away(connection: socket.socket) -> None:
    """Answer as a gateway does that stops, then let the client close: data left unread would reset the answer."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(_STOPPING)
            writer.write_eof()
            async with asyncio.timeout(CLOSE_SECONDS / 2):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.close()


class TlsError(GatewayError):
    """The configured certificate and key cannot be used."""

    reason = "bad_tls"


def check_tls(configuration: Configuration) -> None:
    """Load the certificate and its key once, before anything depends on them.

    Raises:
        TlsError: they cannot be read, or do not fit each other; names the certificate.
    """
    if configuration.tls_files is None:
        return
    certfile, keyfile = configuration.tls_files
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certfile, keyfile)
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror or "no PEM certificate"
        raise TlsError(f"gateway.tls: {certfile} is no certificate that fits {keyfile.name} ({why})") from error


class _Config(hypercorn.config.Config):
    """Hypercorn's settings, with a certificate that can be renewed while connections are accepted."""

    _renewed: ssl.SSLContext | None = None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        """What Hypercorn encrypts with: each connection asks here for the certificate it is to get."""
        context = super().create_ssl_context()
        if context is not None:
            context.sni_callback = self._hand_over
        return context

    def renew_tls(self, configuration: Configuration) -> None:
        if configuration.tls_files is not None and self.certfile is not None:
            self.certfile, self.keyfile = map(str, configuration.tls_files)
            self._renewed = super().create_ssl_context()

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called within every handshake, whether the client names a server or not."""
        del name, context
        if self._renewed is not None:
            connection.context = self._renewed


def _hypercorn_config(sockets: Mapping[int, int], nested: int | None, configuration: Configuration) -> _Config:
    config = _Config()
    descriptors = {port: f"fd://{descriptor}" for port, descriptor in sockets.items()}
    config.bind = [descriptor for port, descriptor in descriptors.items() if port != nested]
    if not config.bind:
        config.bind = [*descriptors.values()]
    elif configuration.tls_files is not None:
        certfile, keyfile = configuration.tls_files
        config.certfile, config.keyfile = str(certfile), str(keyfile)
        config.insecure_bind = [descriptors[nested]] if nested in descriptors else []
    config.backlog = BACKLOG
    config.graceful_timeout = CLOSE_SECONDS
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("pallas.server.http")
    return config


def _end_connections_at_eof() -> None:
    """Hypercorn keeps a connection whose client hung up until its keep-alive time is over: end it at once.

    Raises:
        PlatformError: the installed Hypercorn has no `TCPServer._read_data`.
    """
    original = getattr(TCPServer, "_read_data", None)
    if original is None:
        raise PlatformError("Hypercorn does not fit: TCPServer._read_data is missing. Install requirements.lock.")

    async def read_data(self: TCPServer) -> None:
        await original(self)
        await self.idle_task.stop()

    TCPServer._read_data = read_data  # type: ignore[method-assign]  # the repair itself


_end_connections_at_eof()
