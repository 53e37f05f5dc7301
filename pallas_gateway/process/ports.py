"""The ports of a running gateway: opened together, added and removed by a reload, closed together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Self

from pallas_gateway.process.hypercorn_server import HypercornServer
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from contextlib import ExitStack

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import PortRoutes
    from pallas_gateway.limits import ConnectionLimits
    from pallas_gateway.process.sockets import Listeners


class SwappableApp:
    """The ASGI app of every port, which a reload replaces between two requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._latest = -inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request by the present app."""
        self._latest = monotonic()
        try:
            await self.app(scope, receive, send)
        finally:
            self._latest = monotonic()

    async def wait_for_silence(self, seconds: float) -> None:
        """Return once no request has begun or ended for so long, at the latest after twice that time."""
        end = monotonic() + 2 * seconds
        while (left := min(end, self._latest + seconds) - monotonic()) > 0:  # noqa: ASYNC110  no event for silence
            await asyncio.sleep(left)


class Listening:
    """Accepts connections on every port; an async context manager.

    Args:
        entrance: answers requests.
        listeners: bound sockets.
        configuration: for the certificate.
        sockets: closes them, after this.
        limits: of the connections.
        had_calls: returns, after the drain, whether clients may still send requests because of their last results.
    """

    def __init__(  # noqa: PLR0913  limits are keywords
        self,
        entrance: SwappableApp,
        listeners: Listeners,
        configuration: Configuration,
        sockets: ExitStack,
        *,
        limits: ConnectionLimits,
        had_calls: Callable[[], bool],
    ) -> None:
        self._limits = limits
        self._had_calls = had_calls
        self._entrance = entrance
        self._listeners = listeners
        self._configuration = configuration
        self._sockets = sockets
        self._accepting: dict[int, HypercornServer] = {}
        self._routes: dict[int, PortRoutes] = {}
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._staying = asyncio.Lock()
        self._tasks = TaskOwner(close_seconds=0)
        self._last = TaskOwner()
        self.failed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Start accepting."""
        await self.open(self._listeners, self._configuration)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop accepting on all ports at once, and wait for the last answers."""
        await self._tasks.cancel_all()
        had_calls, sharing = self._had_calls(), self._listeners.sharing
        if sharing is not None:
            had_calls = await sharing.until_all_stopped(had_calls=had_calls)
        if had_calls:
            await self._entrance.wait_for_silence(self._limits.last_requests_seconds)
        if sharing is not None:
            for one in self._accepting.values():
                one.refuse_connections()
            sharing.closed()
        await asyncio.gather(*(one.__aexit__() for one in self._accepting.values()))
        await self._last.__aexit__()

    def steady(self) -> asyncio.Lock:
        """Return a lock; no port closes while it is held."""
        return self._staying

    @property
    def routes(self) -> Mapping[int, PortRoutes]:
        """The routes of each port, including ports that are about to close."""
        return self._routes

    @property
    def closing(self) -> Collection[int]:
        """The ports that will close after their last answers."""
        return self._closing.keys()

    def keep(self, sockets: ExitStack) -> None:
        """Close more sockets at the end."""
        self._sockets.enter_context(sockets)

    async def open(self, listeners: Listeners, configuration: Configuration) -> None:
        """Accept on more ports, and keep those that were to close and are configured again."""
        for port in self._closing.keys() & listeners.routes.keys():
            self._closing.pop(port).cancel()
        self._routes.update(listeners.routes)
        for port, listener in listeners.sockets.items():
            one = replace(listeners, sockets={port: listener})
            accepting = HypercornServer(self._entrance, one, configuration, self._limits)
            self._accepting[port] = accepting
            serving = await accepting.__aenter__()
            serving.add_done_callback(self._note_end)

    def hurry(self) -> None:
        """Shorten the time limit for clients that do not read their answers."""
        for accepting in self._accepting.values():
            accepting.hurry()

    def close_later(self, port: int, last_answers: Awaitable[object], seconds: float) -> None:
        """Stop accepting on a port after its last answers, at the latest after `seconds`."""
        closing = self._close(port, last_answers, seconds)
        self._closing[port] = self._tasks.spawn(closing, name=f"port {port} closing", report=True)

    def load_tls(self, configuration: Configuration) -> Callable[[], None]:
        """Load the present certificate files for all ports; as for one, see `HypercornServer.config`."""
        loaded = [accepting.config.load_tls(configuration) for accepting in self._accepting.values()]

        def use() -> None:
            for one in loaded:
                one()

        return use

    async def _close(self, port: int, last_answers: Awaitable[object], seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(last_answers, seconds)
        async with self._staying:
            del self._closing[port], self._routes[port]
            accepting = self._accepting.pop(port)
        # In a task that is never cancelled: the port must be closed even if the gateway stops meanwhile.
        await asyncio.shield(self._last.spawn(accepting.__aexit__(), name=f"port {port} closed", report=True))

    def _note_end(self, serving: asyncio.Task[None]) -> None:
        error = None if serving.cancelled() else serving.exception()
        is_open = any(one.serving is serving for one in self._accepting.values())
        if is_open and not self.failed.done():
            self.failed.set_result(error)
