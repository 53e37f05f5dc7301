"""Limits on what a provider's server may do with an answer. Imported once an LLM is used.

Libraries read an error body as long as it is, decompress whatever they receive, and follow redirects to any host with
all headers but `Authorization`, such as Anthropic's and Google's keys. A server that sends faster than an answer is
processed would keep the event loop from all other calls.
"""

from __future__ import annotations

import asyncio
import zlib
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx2

from pallas_gateway.errors import CallFailedError
from pallas_gateway.runtime.llm.endings import BUSY_SECONDS, incomplete

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LARGEST_ANSWER_BYTES = 2**27
"""Decompressed. 400,000 tokens in an event each, the longest answers there are, take about 100 MB."""
LARGEST_ERROR_BYTES = 2**18
"""What follows is not read: 200 characters of an error are shown."""
_PIECE_BYTES = 2**16
_COMPRESSED = frozenset({"gzip", "x-gzip"})


def limited(client: Any, *, busy_seconds: float = BUSY_SECONDS) -> Any:
    """An HTTP client whose answers are limited; other calls run after each `busy_seconds` of processing one."""
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
        most=LARGEST_ERROR_BYTES if response.status_code >= HTTPStatus.MULTIPLE_CHOICES else LARGEST_ANSWER_BYTES,
        is_error=response.status_code >= HTTPStatus.MULTIPLE_CHOICES,
        is_compressed=encoding in _COMPRESSED,
        busy_seconds=busy_seconds,
    )


def too_long() -> CallFailedError:
    """The failure of a turn whose answer is longer than any model's."""
    return CallFailedError(
        f"its provider sent more than {LARGEST_ANSWER_BYTES // 2**20} MB in one answer", reason="llm_error"
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
    """A body in pieces, decompressed; other calls run between them. An error is cut off, an answer is refused."""

    def __init__(self, stream: Any, *, most: int, is_error: bool, is_compressed: bool, busy_seconds: float) -> None:
        self._busy_seconds = busy_seconds
        self._stream = stream
        self._left = most
        self._is_error = is_error
        self._gzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        busy = 0.0
        async for raw in self._stream:
            for piece in self._pieces_of(raw):
                self._left -= len(piece)
                if self._left < 0:
                    if self._is_error:
                        return
                    raise too_long()
                began = monotonic()
                yield piece
                busy += monotonic() - began
                if busy > self._busy_seconds:
                    busy = 0.0
                    await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()

    def _pieces_of(self, raw: bytes) -> Iterator[bytes]:
        if self._gzip is None:
            yield raw
            return
        try:
            while piece := self._gzip.decompress(raw, _PIECE_BYTES):
                yield piece
                raw = self._gzip.unconsumed_tail
        except zlib.error as error:
            raise incomplete() from error
