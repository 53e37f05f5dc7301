"""Responses that take long: the client may leave meanwhile, and proxies close a connection that is silent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.types import Receive, Send

_EVENT_STREAM = {
    b"content-type": b"text/event-stream; charset=utf-8",
    b"cache-control": b"no-store, no-transform",
    b"x-accel-buffering": b"no",  # nginx would buffer the stream
}
_log = logging.getLogger("pallas.responses")


class LongResponse:
    """The response to one request, which may become a stream, and the client that waits for it.

    Args:
        receive: of a request whose body was read, so that its next message is the disconnect.
        send: sends the response.
        headers: of the stream.
        silence_seconds: silence of the stream after which the client is sent a comment.
        comment: makes this comment.

    Attributes:
        has_begun: the stream has begun; until then another response may be sent.
        has_left: the client has disconnected.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        headers: Mapping[bytes, bytes],
        silence_seconds: float,
        comment: Callable[[], bytes],
    ) -> None:
        self.has_begun = self.has_left = False
        self._receive = receive
        self._send = send
        self._headers = headers
        self._silence_seconds = silence_seconds
        self._comment = comment
        self._sending = asyncio.Lock()  # messages and comments must not interleave
        self._is_kept_alive = False
        self._watching: asyncio.Task[None] | None = None
        self._silence: asyncio.Timeout | None = None
        self._last = 0.0

    def keep_alive(self) -> None:
        """Send comments during silences from now on; the first of them may begin the stream."""
        if self._is_kept_alive:
            return
        self._is_kept_alive = True
        self._last = asyncio.get_running_loop().time()
        if self._silence is not None:
            self._silence.reschedule(self._end_of_silence())

    async def begin(self) -> None:
        """Begin the stream, unless it has begun."""
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers.items()]})

    async def write(self, body: bytes) -> None:
        """Send a part of the stream, which begins it."""
        async with self._sending:
            await self._write(body)

    async def unwatch(self) -> bool:
        """Stop watching the client, before the last part of the response; return whether a stream has begun.

        No comment is sent afterwards. The server may close the connection after the last part: without this, that would
        look like a client that has left, and the rest of the answer would be lost.
        """
        async with self._sending:
            if self._watching is not None:
                self._watching.cancel()
        return self.has_begun

    async def end(self, body: bytes = b"") -> None:
        """Send the last part of the stream."""
        if not await self.unwatch():
            await self.begin()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel the block when the client disconnects or cannot be watched; the block then ends without an error."""
        answering = cast("asyncio.Task[Any]", asyncio.current_task())  # an ASGI app runs in one
        cancelled = answering.cancelling()
        self._watching = asyncio.create_task(self._watch(answering), name="client of a response")
        try:
            yield
        except asyncio.CancelledError:
            if not self.has_left or answering.uncancel() > cancelled:  # others have cancelled it, too
                raise
        finally:
            self._watching.cancel()
            self._watching = None  # which refers to this response

    async def _watch(self, answering: asyncio.Task[Any]) -> None:
        try:
            while not await self._leaves_within_a_silence():
                async with self._sending:
                    if asyncio.get_running_loop().time() >= self._last + self._silence_seconds:
                        await self._write(self._comment())
        except asyncio.CancelledError:
            return  # the response has ended; an exception with a traceback would be a reference cycle of the task
        except OSError:
            pass  # by the ASGI specification, this is a closed connection, too
        except Exception as failure:  # noqa: BLE001  a call must not continue without this watch
            _log.error("client of a call can be watched no longer, the call ends", exc_info=failure)
        self.has_left = True
        answering.cancel()

    async def _leaves_within_a_silence(self) -> bool:
        try:
            async with asyncio.timeout_at(self._end_of_silence()) as self._silence:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            if self._silence is None or not self._silence.expired():  # a timeout of the socket
                raise
            return False
        finally:
            self._silence = None  # which refers to the task
        return True

    def _end_of_silence(self) -> float | None:
        return self._last + self._silence_seconds if self._is_kept_alive else None

    async def _write(self, body: bytes) -> None:
        await self.begin()
        self._last = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


class ServerSentEvents(LongResponse):
    """The response to one request; the first event makes it a stream."""

    def __init__(self, receive: Receive, send: Send, *, silence_seconds: float = 15.0) -> None:
        """`silence_seconds` are those without an event, after which a comment is written; see `keep_alive`."""
        super().__init__(
            receive, send, headers=_EVENT_STREAM, silence_seconds=silence_seconds, comment=lambda: b": keep-alive\n\n"
        )

    async def data(self, text: str, *, event: str | None = None) -> None:
        """Send one event, with its name if it has one; `text` is a single line, as JSON is."""
        name = f"event: {event}\n" if event else ""
        await self.write(f"{name}data: {text}\n\n".encode())
