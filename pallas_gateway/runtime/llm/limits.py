"""Limits of answers of providers' servers. Imported when an LLM is used.

Libraries read error bodies of any length, decompress all that they receive, and follow redirects to any host with all
headers but `Authorization`, so also with Anthropic's and Google's keys. A server that sends faster than its answer is
processed would block the event loop for all other calls.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx2

from pallas_gateway.calls.provider_failures import incomplete, too_long
from pallas_gateway.http_answers import decompressor, pieces
from pallas_gateway.limits import BUSY_SECONDS, LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES
from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.fast_paths.delta_events import DeltaEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_EVENTS = "text/event-stream"


def limited(client: Any, *, busy_seconds: float = BUSY_SECONDS) -> Any:
    """Limit the answers of an HTTP client; other calls run after each `busy_seconds` of processing one."""
    client.headers["Accept-Encoding"] = "gzip"
    client.event_hooks["response"].append(partial(limit, busy_seconds=busy_seconds))
    return client


async def limit(response: httpx2.Response, *, busy_seconds: float = BUSY_SECONDS) -> None:
    """A hook of HTTP clients: limit a response before it is read or redirects the request."""
    if response.has_redirect_location and not _stays(response):
        del response.headers["Location"]  # without it, the library raises an error with the status
    encoding = response.headers.pop("Content-Encoding", "").strip().lower()
    stream: Any = response.stream
    response.stream = _Limited(
        stream,
        is_error=response.status_code >= HTTPStatus.MULTIPLE_CHOICES,
        gzip=decompressor(encoding),
        busy_seconds=busy_seconds,
        is_events=response.headers.get("Content-Type", "").lower().startswith(_EVENTS),
    )


def _stays(response: httpx2.Response) -> bool:
    """Return True if a redirect leads to the server that sent it."""
    asked = response.request.url
    try:
        wanted = asked.join(response.headers["Location"])
    except (httpx2.InvalidURL, ValueError):
        return False
    return (wanted.scheme, wanted.host, wanted.port) == (asked.scheme, asked.host, asked.port)


class _Limited(httpx2.AsyncByteStream):
    """The decompressed pieces of a body, with events joined where a fast path does that.

    Over its limit, an error is cut off and an answer is refused.
    """

    def __init__(self, stream: Any, *, is_error: bool, gzip: Any, busy_seconds: float, is_events: bool) -> None:
        self._busy_seconds = busy_seconds
        self._stream = stream
        self._left = LARGEST_ERROR_BYTES if is_error else LARGEST_ANSWER_BYTES
        self._is_error = is_error
        self._gzip = gzip
        self._events = DeltaEvents() if is_events and fast_paths.DELTA_EVENTS.is_on else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        busy = 0.0
        async with aclosing(aiter(self._stream)) as stream:  # left open, asyncio would close it in a task of its own
            async for raw in stream:
                for piece in self._pieces_of(raw):
                    self._left -= len(piece)
                    if self._left < 0:
                        if self._is_error:
                            return
                        raise too_long()
                    began = monotonic()
                    yield piece if self._events is None else self._events.joined(piece)
                    busy += monotonic() - began
                    if busy > self._busy_seconds:
                        busy = 0.0
                        await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()

    def _pieces_of(self, raw: bytes) -> Iterator[bytes]:
        try:
            yield from pieces(raw, self._gzip)
        except zlib.error as error:
            raise incomplete() from error
