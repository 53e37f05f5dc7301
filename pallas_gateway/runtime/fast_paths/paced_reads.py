"""Reads of streamed answers, with a pause between them. Imported when an LLM is used.

A piece of an answer is about a token. Read by itself it wakes the turn's task, and passes ten generators and timers on
its way. What arrives during a pause is read at once. The end of an answer ends the pause, and `Observer.reading_pause`
allows none before the first live text of a turn. A body that brings `LARGE_BYTES` in one pause holds images, or
arrives at once. The rest of it is read without pauses: while nothing is read, no more than 128 KB of it arrives.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.streams import AsyncStreamIterator

from pallas_gateway.calls.current import current_turn

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (aiohttp.StreamReader, "iter_chunked", ("self", "n")),
    (aiohttp.StreamReader, "_read_nowait", ("self", "n")),
    (aiohttp.StreamReader, "_eof_waiter", ()),
)
LARGE_BYTES = 65_536


def accelerate(reader: Any) -> PacedReader:
    """The reader of a stream of events, with pauses."""
    return PacedReader(reader)


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

    def iter_chunked(self, size: int) -> AsyncStreamIterator[bytes]:
        """Yield what has arrived, at most `size` bytes at once."""
        return AsyncStreamIterator(partial(self._read, size))

    async def _read(self, size: int) -> bytes:
        reader = self._reader
        is_over = reader.is_eof() or reader.exception() is not None
        if self._may_pause and not is_over and (seconds := current_turn().reading_pause()):
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
