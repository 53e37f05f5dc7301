"""Long responses over HTTP: clients that disconnect, and keep-alive comments in streams."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.tasks import TaskOwner, report_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping
    from typing import Any

    from starlette.types import Receive, Send

CLEAN_UP_SECONDS = 10.0  # the wait of a disconnected client's request for the end of its work
_KEEP_ALIVE = b": keep-alive\n\n"
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # nginx would buffer the stream
}


async def while_connected[T](
    receive: Receive, work: Coroutine[Any, Any, T], tasks: TaskOwner, *, clean_up_seconds: float = CLEAN_UP_SECONDS
) -> T | None:
    """Return the result of `work`, which runs in a task of its own; None if the client disconnects, which ends it.

    Args:
        receive: of a request whose body was read, so that the next message is the disconnect.
        work: answers the request.
        tasks: owns the work, whose clean-up may continue there after `clean_up_seconds`.
        clean_up_seconds: longest wait for the end of the work after the disconnect.
    """
    working = tasks.spawn(work, name="answer")
    leaving = tasks.spawn(_until_left(receive), name="client")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving}, timeout=clean_up_seconds)
    if not working.done():
        working.add_done_callback(report_failure)
        return None
    return None if working.cancelled() else working.result()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ServerSentEvents:
    """One response of server-sent events. The first event begins it; until then another response may be sent."""

    def __init__(self, send: Send, *, silence_seconds: float, headers: Mapping[str, str] | None = None) -> None:
        """Write to `send`; a comment is written after every `silence_seconds` without an event."""
        self._send = send
        self._silence_seconds = silence_seconds
        self._headers = {**_STREAM_HEADERS, **(headers or {})}
        self._sending = asyncio.Lock()
        self._last = asyncio.get_running_loop().time()
        self.has_begun = False

    async def data(self, text: str) -> None:
        """Send one event; `text` is a single line, as JSON is."""
        await self._write(f"data: {text}\n\n".encode())

    async def end(self) -> None:
        """End the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send keep-alive comments while the block runs."""
        tasks = TaskOwner()
        tasks.spawn(self._send_comments(), name="keep-alive", report=True)
        try:
            yield
        finally:
            await tasks.cancel_all()

    async def _send_comments(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            if (left := self._last + self._silence_seconds - now()) > 0:
                await asyncio.sleep(left)
            else:
                await self._write(_KEEP_ALIVE)

    async def _write(self, body: bytes) -> None:
        async with self._sending:  # events and comments must not interleave
            if not self.has_begun:
                self.has_begun = True
                headers = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self._last = asyncio.get_running_loop().time()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
