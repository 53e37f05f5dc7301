"""Hypercorn as the gateway uses it: its settings, and one repair.

The repair is checked at import, like everything that reaches into a library.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypercorn.asyncio
import hypercorn.config
from hypercorn.asyncio.tcp_server import TCPServer

from pallas_gateway.errors import GatewayError, PlatformError
from pallas_gateway.tasks import TaskOwner

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
        self._config = _hypercorn_config(listeners, configuration)
        self._sockets = tuple(listeners.sockets.values())
        self._stop = asyncio.Event()
        self._tasks = TaskOwner(close_seconds=CLOSE_SECONDS)

    async def __aenter__(self) -> asyncio.Task[None]:
        serving = hypercorn.asyncio.serve(self._app, self._config, shutdown_trigger=self._stop.wait)  # type: ignore[arg-type]  # its own ASGI types
        return self._tasks.spawn(serving, name="listeners")

    async def __aexit__(self, *_: object) -> None:
        # From here on nobody accepts, so the ports have to refuse: a connection that is only queued would be reset in
        # the end, and a proxy could not know that its call has not begun.
        for listener in self._sockets:
            listener.close()
        self._stop.set()
        await self._tasks.__aexit__()  # bounded: Hypercorn waits for open connections without end


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


def _hypercorn_config(listeners: Listeners, configuration: Configuration) -> hypercorn.config.Config:
    config = hypercorn.config.Config()
    # Hypercorn closes what it is given; a duplicate leaves the originals to the one who bound them.
    descriptors = {port: f"fd://{socket.dup(listener.fileno())}" for port, listener in listeners.sockets.items()}
    public = [descriptor for port, descriptor in descriptors.items() if port != listeners.nested]
    config.bind = public
    if configuration.tls_files is not None:
        certfile, keyfile = configuration.tls_files
        config.certfile, config.keyfile = str(certfile), str(keyfile)
        config.insecure_bind = [descriptors[listeners.nested]] if listeners.nested is not None else []
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
