"""Limits of answers of providers' servers. Imported when an LLM is used."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, override

import httpx2

from pallas_gateway.calls.provider_failures import incomplete, too_long
from pallas_gateway.http_answers import decompressor, pieces
from pallas_gateway.limits import BUSY_SECONDS, LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES


def limited(client: Any, *, busy_seconds: float = BUSY_SECONDS) -> Any:
    """Limit the answers of an HTTP client; other calls run after each `busy_seconds` of processing one."""
    client.headers["Accept-Encoding"] = "gzip"
    client.event_hooks["response"].append(partial(limit, busy_seconds=busy_seconds))
    return client


def is_limited(client: Any) -> bool:
    """True of an HTTP client whose answers are limited."""
    return any(getattr(hook, "func", None) is limit for hook in client.event_hooks["response"])


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
    """The decompressed pieces of a body. Over its limit, an error is cut off and an answer is refused."""

    def __init__(self, stream: Any, *, is_error: bool, gzip: Any, busy_seconds: float) -> None:
        self._busy_seconds = busy_seconds
        self._stream = stream
        self._left = LARGEST_ERROR_BYTES if is_error else LARGEST_ANSWER_BYTES
        self._is_error = is_error
        self._gzip = gzip

    @override
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
                    yield piece
                    busy += monotonic() - began
                    if busy > self._busy_seconds:
                        busy = 0.0
                        await asyncio.sleep(0)

    @override
    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()

    def _pieces_of(self, raw: bytes) -> Iterator[bytes]:
        try:
            yield from pieces(raw, self._gzip)
        except zlib.error as error:
            raise incomplete() from error
