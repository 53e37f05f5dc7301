"""The apps that answer the requests of one connection, and the messages they receive."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, override

from hypercorn.asyncio.task_group import TaskGroup

from pallas_gateway.changes.change import Fault, Name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pallas_gateway.process.http_connections.connection import Faults

FAULTS = (
    Fault(
        title="Connections with an unread body are never closed",
        text="""\
Symptom: an answer before the end of the body (401, 413) blocks its connection without a time-out.

Repair: the rest of the body is dropped (`Inbox.close`).
""",
        library="hypercorn",
        gone_when="`TaskGroup.spawn_app` returns a function that does not wait for an app that has ended",
        script="hypercorn_unread_body.py",
        test="tests/unit/process/test_http_connections.py",
    ),
)
RELIED_ON = (
    Name("hypercorn.asyncio.task_group:TaskGroup.spawn"),
    Name("hypercorn.asyncio.task_group:TaskGroup.spawn_app", ("app", "config", "scope", "send")),
    Name("hypercorn.protocol.http_stream:HTTPStream.handle"),
)


class Inbox:
    """The queue of request messages of an app; it blocks only while the app runs.

    Hypercorn's own queue blocks the connection once an app has ended without reading a long body, and cannot
    tell an app that does not read that its client has left. It is no `asyncio.Queue`, which takes 3 KB even if it is
    empty: a request that is open has one.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._messages: list[Any] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    def full(self) -> bool:
        return len(self._messages) >= self._size

    async def put(self, message: Any) -> None:
        """Wait until the app has taken enough of what came before."""
        if message["type"] == "http.disconnect" and self.full():
            self._messages.clear()
        while self.full() and not self._is_closed:
            await self._change()
        if not self._is_closed:
            self._messages.append(message)
            self._wake()

    async def get(self) -> Any:
        """Wait for the next message and return it."""
        while not self._messages:
            await self._change()
        message = self._messages.pop(0)
        self._wake()
        return message

    def close(self) -> None:
        """Drop the messages that an ended app has not received, and accept all further ones."""
        self._is_closed = True
        self._messages.clear()
        self._wake()

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


class Apps(TaskGroup):
    """Hypercorn's task group of a connection, whose apps have an `Inbox` and whose failures are rate-limited."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Faults) -> None:
        super().__init__(loop)
        self._faults = faults

    @override
    async def spawn_app(
        self, app: Any, config: Any, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Start an app; returns a function that sends it messages."""
        inbox = Inbox(config.max_app_queue_size)
        self.spawn(self._run, app, scope, inbox, send)
        return inbox.put

    async def _run(self, app: Any, scope: Any, inbox: Inbox, send: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await app(scope, inbox.get, send, partial(self._loop.run_in_executor, None), _not_from_threads)
        except Exception as error:  # noqa: BLE001  as Hypercorn does: a failed request is logged and answered with 500
            self._faults.log("request", error)
        finally:
            inbox.close()
            await send(None)


def _not_from_threads(*_: object) -> None:
    """Refuse calls that only WSGI apps make."""
    raise NotImplementedError
