"""A real Hypercorn listener on loopback for any ASGI app, on a port nobody chose beforehand.

Stopping is abrupt on purpose: running requests are cancelled, so it never waits for a client. Draining is the
gateway's own business and is tested on the gateway.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from pallas_gateway.process.http_connections.connection import Settings, install

from .asgi import AsgiApp, Receive, Scope, Send

HOST = "127.0.0.1"
STOP_SECONDS = 5  # everything a stop waits for has been cancelled by then; more is a bug


@dataclass(frozen=True)
class Listener:
    """Where an app is being served. `base_url` has no trailing slash."""

    base_url: str
    port: int


@asynccontextmanager
async def serve_app(app: AsgiApp, *, port: int = 0, websockets: bool = False) -> AsyncGenerator[Listener]:
    """Serve `app`, lifespan included, until the block ends; `port` is one of `reserved_port`, or 0 for any free one.

    The gateway's own connections take WebSockets for ordinary requests; with `websockets` they are accepted.
    """
    sock = _bound_socket(port)
    sock.listen(1024)  # connections queue from here on, so nobody has to wait for the server task
    bound_port: int = sock.getsockname()[1]
    requests = _Requests(app)
    running, stopping = asyncio.Event(), asyncio.Event()

    async def shutdown_trigger() -> None:
        running.set()  # Hypercorn asks for this once its sockets are served
        await stopping.wait()
        # asyncio fails over a connection that it accepts in the moment in which it closes the server.
        asyncio.get_running_loop().remove_reader(descriptor)
        await asyncio.sleep(0)

    hypercorn_app: Any = requests  # Hypercorn types scopes and messages more narrowly than ASGI apps do
    descriptor = sock.detach()
    serving = asyncio.create_task(
        serve(hypercorn_app, _config(descriptor, websockets=websockets), shutdown_trigger=shutdown_trigger),
        name=f"listener {bound_port}",
    )
    try:
        await _first_of(running, serving)
        yield Listener(f"http://{HOST}:{bound_port}", bound_port)
    finally:
        stopping.set()
        if running.is_set():
            requests.cancel()
        else:
            serving.cancel()
            os.close(descriptor)  # Hypercorn takes it over only after the lifespan has started
        await _ended(serving, bound_port)


@contextmanager
def reserved_port() -> Generator[int]:
    """Keep one port for `serve_app(port=…)` or another process: connecting is refused until one of them listens.

    The port stays bound for the whole block, also while the other process listens, which Linux allows to sockets that
    name the port and have SO_REUSEADDR. It gives the port to no socket that asks for any.
    """
    with _bound_socket(0) as sock:
        yield sock.getsockname()[1]


@contextmanager
def black_hole() -> Generator[str]:
    """Yield the base URL of a port that accepts connections and never says a word."""
    with _bound_socket(0) as sock:
        sock.listen(1024)
        yield f"http://{HOST}:{sock.getsockname()[1]}"


class _Requests:
    """The app as Hypercorn sees it, knowing the task of each running request so that a stop can cancel them."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[object]] = set()
        self._refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        if self._refusing or task is None:
            return
        self._tasks.add(task)
        try:
            await self._app(scope, receive, send)
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        self._refusing = True
        for task in self._tasks:
            task.cancel()


def _bound_socket(port: int) -> socket.socket:
    # The explicit protocol number is what lets asyncio switch Nagle off on accepted connections. SO_REUSEADDR lets a
    # listener share the port with the idle socket of `reserved_port`, and return to it while old connections linger.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock


def _config(descriptor: int, *, websockets: bool) -> Config:
    # Hypercorn's own connections outlive clients that hung up; the gateway's do not.
    install()
    config = Config() if websockets else Settings()
    config.bind = [f"fd://{descriptor}"]
    config.errorlog = logging.getLogger("hypercorn.error")
    config.keep_alive_timeout = 600  # or a slow test races its own idle connections being closed
    config.graceful_timeout = 1
    config.shutdown_timeout = STOP_SECONDS
    return config


async def _first_of(running: asyncio.Event, serving: asyncio.Task[None]) -> None:
    started = asyncio.create_task(running.wait())
    try:
        await asyncio.wait({started, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        started.cancel()
    if not running.is_set():
        await serving
        raise AssertionError("the server ended before it served anything")


async def _ended(serving: asyncio.Task[None], port: int) -> None:
    _, late = await asyncio.wait({serving}, timeout=STOP_SECONDS)
    if late:
        serving.cancel()
        await asyncio.wait({serving}, timeout=STOP_SECONDS)
        raise AssertionError(f"the listener on port {port} did not stop within {STOP_SECONDS} s")
    if not serving.cancelled() and (error := serving.exception()) is not None:
        raise error
