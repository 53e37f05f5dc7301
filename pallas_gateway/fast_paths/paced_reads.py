"""Reads of streamed answers, with a pause between them.

A piece of an answer is about a token, and each read wakes the turn's task. What arrives during a pause is read at
once. There is no pause before the first live text, after the end of an answer, or once a pause has brought
`LARGE_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from typing import Any

from pallas_gateway.calls.current import current_turn, running_call
from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

CHANGE = Change(
    "paced_reads",
    FAST_PATH,
    ("aiohttp",),
    when=Loaded("openai", "anthropic", "google.genai"),  # which read by aiohttp
    replaces=(Name("aiohttp.client_reqrep:ClientResponse.start", ("self", "connection")),),
    relies_on=(
        Name("aiohttp:StreamReader.iter_chunked", ("self", "n")),
        Name("aiohttp:StreamReader._read_nowait", ("self", "n")),
        Name("aiohttp:StreamReader._eof_waiter"),
    ),
    gone_when="fast-agent takes the events that are ready together, with one timer and one log event for them",
)
LARGE_BYTES = 65_536
PAUSE_SECONDS = 0.25
"""Between two reads of a streamed answer that is returned as a whole."""
_EVENTS = "text/event-stream"


def changed(original: Callable[[Any, Any], Awaitable[Any]], _: Any) -> Callable[[Any, Any], Awaitable[Any]]:
    """Read the events that answer an LLM turn with pauses."""

    @wraps(original)
    async def start(self: Any, connection: Any) -> Any:
        started = await original(self, connection)
        is_events = self.headers.get("Content-Type", "").lower().startswith(_EVENTS)
        if is_events and running_call.get().turn is not None:
            self.content = PacedReader(self.content)
        return started

    return start


class PacedReader:
    """The reader of a body, with pauses in `iter_chunked`."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._may_pause = False
        self._bytes_at_once = 0  # read since the last pause, or since nothing was left
        self._is_large = False

    def __getattr__(self, name: str) -> Any:
        """Forward to the reader."""
        return getattr(self._reader, name)

    def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield what has arrived, at most `size` bytes at once."""
        from aiohttp.streams import AsyncStreamIterator  # noqa: PLC0415  not before an LLM is used

        return AsyncStreamIterator(partial(self._read, size))

    async def _read(self, size: int) -> bytes:
        reader = self._reader
        is_over = reader.is_eof() or reader.exception() is not None
        if self._may_pause and not is_over:
            pause = current_turn().reading_pause()
            if seconds := PAUSE_SECONDS if pause is None else pause:
                await self._rest(seconds)
        # Of a connection that broke, `read` raises the error, although data arrived before.
        data: bytes = b"" if reader.exception() is None else reader._read_nowait(size)
        if not data:
            data = await reader.read(size)
        is_more_left = len(data) >= size
        self._bytes_at_once += len(data)
        self._is_large = self._is_large or self._bytes_at_once >= LARGE_BYTES
        if not is_more_left:
            self._bytes_at_once = 0
        self._may_pause = not is_more_left and not self._is_large
        return data

    async def _rest(self, seconds: float) -> None:
        """Wait until the time is over, the body ends or its connection breaks."""
        loop = asyncio.get_running_loop()
        pause = self._reader._eof_waiter = loop.create_future()
        timer = loop.call_later(seconds, _end, pause)
        try:
            await pause
        except Exception:  # noqa: BLE001  `read` raises it again, after what arrived before
            return
        finally:
            timer.cancel()
            self._reader._eof_waiter = None


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
