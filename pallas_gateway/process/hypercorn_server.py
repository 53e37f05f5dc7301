"""Hypercorn on bound sockets: its settings and the renewal of certificates; see also `http_connections`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, override

import hypercorn.asyncio
import hypercorn.config

from pallas_gateway.errors import GatewayError
from pallas_gateway.process.http_connections.connection import Settings, install
from pallas_gateway.process.sockets import BACKLOG, CLOSE_SECONDS, close_listener
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.limits import ConnectionLimits
    from pallas_gateway.process.sockets import Listeners


class HypercornServer:
    """Hypercorn accepting connections on bound sockets, as an async context manager that yields the serving task.

    The task ends with the block, or with the error that made serving impossible. Then the sockets are closed.
    """

    def __init__(
        self, app: ASGIApp, listeners: Listeners, configuration: Configuration, limits: ConnectionLimits
    ) -> None:
        self._app = app
        self.listeners = listeners
        self._last_answers_seconds = limits.last_answers_seconds
        self.config = _Config(listeners, configuration, limits)
        self._stop = asyncio.Event()
        self._tasks = TaskOwner(close_seconds=CLOSE_SECONDS)

    async def __aenter__(self) -> asyncio.Task[None]:
        install()
        serving = hypercorn.asyncio.serve(self._app, self.config, shutdown_trigger=self._stop.wait)  # type: ignore[arg-type]  # its own ASGI types
        self.serving = self._tasks.spawn(serving, name="listeners")
        return self.serving

    def hurry(self) -> None:
        """Wait at most `CLOSE_SECONDS` for clients that do not read their answers."""
        self.config.unread.shorten(CLOSE_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        self.hurry()
        if not self.serving.done():  # it has closed its descriptors by then
            self.refuse_connections()
            await asyncio.sleep(self._last_answers_seconds)
        self._stop.set()
        await self._tasks.__aexit__()  # bounded: Hypercorn waits for open connections without end

    def refuse_connections(self) -> None:
        """Stop accepting before Hypercorn stops, which would drop late connections while the ports queue more.

        Sockets that are shared with other processes stay open; the parent closes them.
        """
        loop = asyncio.get_running_loop()
        for port, listener in self.listeners.sockets.items():
            if self.config.duplicates[port].fileno() >= 0:
                loop.remove_reader(self.config.duplicates[port])
            if self.listeners.sharing is None:
                close_listener(listener, self._tasks, encrypted=self.config.ssl_enabled)


class TlsError(GatewayError):
    """The configured certificate and key cannot be used."""

    reason = "bad_tls"
    exit_code = 2


def check_tls(configuration: Configuration) -> None:
    """Check that the certificate and its key can be loaded.

    Raises:
        TlsError: they cannot be read, or do not match; names the certificate.
    """
    if configuration.tls_files is None:
        return
    with _tls_errors(*configuration.tls_files):
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*configuration.tls_files)


@contextmanager
def _tls_errors(certfile: Path, keyfile: Path) -> Iterator[None]:
    """Translate errors of certificate files, with their names."""
    try:
        yield
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror or "no PEM certificate"
        raise TlsError(f"gateway.tls: {certfile} is no certificate that fits {keyfile.name} ({why})") from error


class _Config(Settings):
    """Hypercorn's settings, its sockets, and a certificate that can be renewed while it accepts connections.

    `duplicates` are copies of the sockets, by port, because Hypercorn closes its own.
    """

    backlog = BACKLOG
    graceful_timeout = CLOSE_SECONDS
    _renewed: ssl.SSLContext | None = None

    def __init__(self, listeners: Listeners, configuration: Configuration, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self.duplicates = {port: _Listening(fileno=os.dup(one.fileno())) for port, one in listeners.sockets.items()}
        if configuration.tls_files is not None:
            self.certfile, self.keyfile = map(str, configuration.tls_files)
        if listeners.sharing is not None and isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            self.backlog = 1  # see _Listening; libuv's loop uses it for the queue only
        self.errorlog = logging.getLogger("pallas.server.http")

    @override
    def create_sockets(self) -> hypercorn.config.Sockets:
        bound: list[socket.socket] = list(self.duplicates.values())
        return hypercorn.config.Sockets(bound, [], []) if self.ssl_enabled else hypercorn.config.Sockets([], bound, [])

    @override
    def create_ssl_context(self) -> ssl.SSLContext | None:
        """Return a context that asks for the present certificate with each connection."""
        context = super().create_ssl_context()
        if context is not None:
            context.sni_callback = self._hand_over
        return context

    def load_tls(self, configuration: Configuration) -> Callable[[], None]:
        """Load the present certificate files; returns a function that makes new connections use them.

        Raises:
            TlsError: they cannot be used.
        """
        if configuration.tls_files is None or self.certfile is None:
            return lambda: None
        before = self.certfile, self.keyfile
        self.certfile, self.keyfile = files = tuple(map(str, configuration.tls_files))
        try:
            with _tls_errors(*configuration.tls_files):
                context = super().create_ssl_context()
        finally:
            self.certfile, self.keyfile = before

        def use() -> None:
            self.certfile, self.keyfile = files
            self._renewed = context

        return use

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Set the renewed certificate; called within every handshake."""
        del name, context
        if self._renewed is not None:
            connection.context = self._renewed


class _Listening(socket.socket):
    """A socket whose queue keeps its length.

    asyncio uses the length also as the number of connections to accept at once. With processes that share a socket it
    has to be one, else the first to wake would accept a whole burst; but the queue must not be that short.
    """

    @override
    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Ignore the backlog; the socket listens already."""
        del backlog
        super().listen(BACKLOG)
