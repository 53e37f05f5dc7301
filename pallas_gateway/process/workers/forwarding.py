"""Requests between workers: one worker forwards an HTTP request to the worker of its call, and the response back.

Each worker listens on a Unix socket in a folder that only the user of the gateway can open. A connection is for one
request: its scope and body in one direction, the ASGI messages of its response in the other. The end of the connection
is the disconnect of the client, or the end of the worker. A worker reads no further message before its client has taken
the one before, so a client that reads slowly slows the call down as on a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
from collections import Counter
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, override
from weakref import WeakValueDictionary

from pallas_gateway.calls.asking.elsewhere import FOR_ONE_KEY, TAKE_KEY, Elsewhere, NotThere, ProcessAnswer
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.process.sockets import BACKLOG
from pallas_gateway.process.workers.channel import packed, read
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import Message, Receive, Send

_NAME = re.compile(r"[0-9a-f]{8}")
TAKEN_SECONDS = 30.0
"""Longest wait until another worker takes a request. One that hangs must not hold clients and their bodies."""
MOST_UNTAKEN = 64
"""Requests sent to one worker that it has not taken yet; further ones wait for their turn."""
MOST_WAITING = 1024
"""Requests for one worker that wait here until it takes them; further ones are refused."""
MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Of their bodies. A request that waits alone may have more."""
ASK_SECONDS = 2.0
"""Time for the answers of workers that are all asked."""
MOST_ASKED_BYTES = 16 * 1024 * 1024
"""Of one answer: some ten thousand calls."""
_log = logging.getLogger("pallas.workers")
_TAKEN = {"type": "pallas_gateway.taken"}
_SCOPE = frozenset(
    {"type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers"}
    | {"client", "server"}
)


class NotHereError(Exception):
    """A request that this worker does not take: it drains, and another worker resumes the call, or its sender left."""


def socket_of(folder: Path, process: str) -> Path:
    """Return the socket of the worker with this name."""
    return folder / f"{process}.sock"


class WorkerForwarding(Elsewhere):
    """The other workers as one of them sees them; an async context manager, in which it answers their requests.

    Args:
        folder: of the sockets.
        process: the name of this worker.
        draining: returns whether this worker drains.
    """

    def __init__(self, folder: Path, process: str, draining: Callable[[], bool]) -> None:
        super().__init__(process)
        self._folder = folder
        self._draining = draining
        self._queues = WeakValueDictionary[str, _Queue]()
        self._asked: Counter[str] = Counter()
        self._tasks = TaskOwner(close_seconds=0)

    async def __aenter__(self) -> Self:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._tasks.spawn(self._answer(reader, writer), name="request of another worker", report=True)

        path = str(socket_of(self._folder, self.process))
        self._server = await asyncio.start_unix_server(accept, path, backlog=BACKLOG)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._tasks.__aexit__()
        socket_of(self._folder, self.process).unlink(missing_ok=True)

    # to another worker

    @override
    async def _forward(
        self, process: str, request: Request, body: bytes, send: Send, if_cut: Callable[[], bytes]
    ) -> NotThere | None:
        if _NAME.fullmatch(process) is None:
            return NotThere(process)
        queue, deadline = self._queues.setdefault(process, _Queue()), asyncio.timeout(TAKEN_SECONDS)
        try:
            async with AsyncExitStack() as untaken:
                untaken.enter_context(queue.place(len(body)))
                await untaken.enter_async_context(deadline)
                await untaken.enter_async_context(queue.turns)
                return await self._forwarded(process, request, body, _Response(send, untaken.aclose), if_cut)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            # It took no forwarded request within 30 s; its clients get 503 with `Retry-After`.
            _log.warning("worker takes no requests", extra={"worker": process})
            raise _busy() from error

    async def _forwarded(
        self, process: str, request: Request, body: bytes, response: _Response, if_cut: Callable[[], bytes]
    ) -> NotThere | None:
        try:
            reader, writer = await asyncio.open_unix_connection(str(socket_of(self._folder, process)))
        except (FileNotFoundError, ConnectionRefusedError):  # it has ended
            return NotThere(process)
        except OSError as error:
            raise _busy() from error
        leaving = self._tasks.spawn(_abort_when_left(request.receive, writer), name="client of a forwarded request")
        try:
            with suppress(ConnectionError):  # its end is noticed by reading
                await _write(writer, [{name: request.scope[name] for name in _SCOPE & request.scope.keys()}, body])
            await response.relay(reader)
        finally:
            has_left = leaving.done()
            leaving.cancel()
            writer.transport.abort() if not response.is_taken else writer.close()
        if has_left or response.is_whole:
            return None
        return None if await response.is_ended(if_cut) else NotThere(process, is_lost=response.is_taken)

    # to all other workers

    @override
    async def ask_all(self, request: Request) -> Sequence[ProcessAnswer]:
        sent = {name: request.scope[name] for name in _SCOPE & request.scope.keys()}
        names = [path.stem for path in self._folder.glob("*.sock") if path.stem != self.process]
        answers = await asyncio.gather(*(self._ask(name, {**sent, FOR_ONE_KEY: True}) for name in names))
        return [one for one in answers if one is not None]

    async def _ask(self, process: str, scope: dict[str, Any]) -> ProcessAnswer | None:
        """Return the answer of another worker; None if it is late, too large, or the worker has ended."""
        if self._asked[process] >= MOST_UNTAKEN:
            return None
        self._asked[process] += 1
        try:
            async with asyncio.timeout(ASK_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(socket_of(self._folder, process)))
                try:
                    await _write(writer, [scope, b""])
                    return await _collected(reader)
                finally:
                    writer.transport.abort()
        except (TimeoutError, OSError):
            return None
        finally:
            self._asked[process] -= 1
            self._asked += Counter()  # drops the names of ended workers

    # from another worker

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_taken = is_for_one = False

        def take() -> None:
            nonlocal is_taken
            if not is_taken:
                if self._draining() or _has_hung_up(writer):
                    raise NotHereError
                is_taken = True
                _put(writer, _TAKEN)

        async def send(message: Message) -> None:
            if not is_for_one:
                take()  # a request that is refused here is answered as well
            plain = {"status": int(message["status"])} if "status" in message else {}  # not `HTTPStatus`
            await _write(writer, {**message, **plain})

        try:
            if (asked := await read(reader)) is not None and self.app is not None:
                is_for_one = FOR_ONE_KEY in asked[0]
                with _receiving(asked[1], reader) as receive, suppress(NotHereError, ConnectionError):
                    await self.app({**asked[0], TAKE_KEY: take}, receive, send)
        finally:
            writer.close()


class _Queue:
    """The requests that one worker has not taken yet; it lives as long as one of them.

    Attributes:
        turns: those that may be sent.
        sizes: of the bodies of all.
    """

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(MOST_UNTAKEN)
        self.sizes: list[int] = []

    @contextmanager
    def place(self, size: int) -> Iterator[None]:
        """Count the block as a request that waits.

        Raises:
            CallRefusedError: `busy`; too many wait.
        """
        if len(self.sizes) >= MOST_WAITING or (self.sizes and sum(self.sizes) + size > MOST_WAITING_BYTES):
            raise _busy()
        self.sizes.append(size)
        try:
            yield
        finally:
            self.sizes.remove(size)


def _busy() -> CallRefusedError:
    return CallRefusedError("The worker of this call is busy. Send the same request again in a moment.", reason="busy")


class _Response:
    """The response of another worker on its way to the client.

    Attributes:
        is_taken: the other worker has the call.
        is_whole: the client was sent all of it.
    """

    def __init__(self, send: Send, on_taken: Callable[[], Awaitable[object]]) -> None:
        """`on_taken` is awaited when the other worker takes the request."""
        self.is_taken = self.is_whole = False
        self._on_taken = on_taken
        self._start: Message | None = None
        self._send = send

    async def relay(self, reader: asyncio.StreamReader) -> None:
        """Send the response to the client, as far as it comes."""
        while not self.is_whole and (message := await read(reader)) is not None:
            if not self.is_taken:
                self.is_taken = True
                await self._on_taken()
            if message["type"] == "http.response.start":
                self._start = message
            if message != _TAKEN:
                await self._send(message)
                self.is_whole = message is not self._start and not message.get("more_body")

    async def is_ended(self, if_cut: Callable[[], bytes]) -> bool:
        """End an event stream that was cut; return False if no response has begun."""
        if self._start is None:
            return False
        if dict(self._start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
            await self._send({"type": "http.response.body", "body": if_cut(), "more_body": False})
        return True


async def _collected(reader: asyncio.StreamReader) -> ProcessAnswer | None:
    """Return a whole response; None if the connection ends before.

    Raises:
        OSError: it is too large.
    """
    start: Message = {}
    body = b""
    while (message := await read(reader, MOST_ASKED_BYTES - len(body))) is not None:
        start = message if "status" in message else start
        body += message.get("body", b"")
        if message is not start and not message.get("more_body"):
            return ProcessAnswer(start["status"], start["headers"], body)
    return None


@contextmanager
def _receiving(body: bytes, reader: asyncio.StreamReader) -> Iterator[Receive]:
    """Yield the `receive` of a request: its body, then its disconnect at the end of the connection."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    leaving = asyncio.create_task(read(reader), name="end of a forwarded request")

    async def receive() -> Message:
        if not unread:
            await asyncio.wait({leaving})
        return unread.pop() if unread else {"type": "http.disconnect"}

    try:
        yield receive
    finally:
        leaving.cancel()


async def _abort_when_left(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """End the connection to the other worker when the client disconnects."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        writer.transport.abort()


async def _write(writer: asyncio.StreamWriter, value: Any) -> None:
    """Write a value, and wait until the other worker has read most of what came before.

    Raises:
        ConnectionError: the connection has ended.
    """
    _put(writer, value)
    await writer.drain()


def _put(writer: asyncio.StreamWriter, value: Any) -> None:
    if writer.transport.is_closing():  # uvloop raises a `RuntimeError` then
        raise ConnectionResetError
    writer.write(packed(value))


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Return True if the other side has closed its socket, also before the event loop notices it."""
    if writer.transport.is_closing():  # its socket has no descriptor any more
        return True
    hung_up = select.poll()
    hung_up.register(writer.get_extra_info("socket"), 0)
    return bool(hung_up.poll(0))
