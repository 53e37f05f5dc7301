"""Limits of the answers of HTTP servers, for clients of httpx and httpx2; refusals as sentences.

Both libraries decompress everything that an answer holds, once for each encoding that it names: a few hundred bytes can
become gigabytes, and nothing else runs meanwhile. With the limits, an answer has one encoding, gzip, is decompressed in
pieces, and has a largest size and number of JSON values: parsed, each of those takes many times its bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, override

import httpx
import httpx2

from pallas_gateway.json_size import MOST_VALUES_OF_SERVERS, ValueCounter
from pallas_gateway.telemetry.redaction import shortened

LARGEST_ANSWER_BYTES = 64 * 2**20
"""Size after decompression; also that of one message of a stdio server."""
BUSY_SECONDS = 0.005
"""Longest time in which pieces of one answer are processed before other calls run."""
MCP_STREAMS = ("GET", "POST")
"""Methods whose streams of events the MCP SDK reads event by event, with a limit for each."""
_PIECE_BYTES = 2**16
_EVENTS = "text/event-stream"
_COMPRESSED = ("gzip", "x-gzip")
_LONGEST_QUOTE = 60
_LONGEST_WORDS = 200
_SAID_BY_CHALLENGE = re.compile(r'error_description="([^"]{1,500})"')


class AnswerError(httpx.HTTPError, httpx2.StreamError, httpx2.SSEError):  # type: ignore[misc]  # same attributes
    """An answer that is too large or cannot be decompressed.

    An error of both libraries, and for the MCP SDK one of JSON answers and of streams of events: each reports its own
    class with the reason and ends the connection for any other.
    """


def limited[C: (httpx.AsyncClient, httpx2.AsyncClient)](
    client: C, *, most_bytes: int = LARGEST_ANSWER_BYTES, streams: Collection[str] = ()
) -> C:
    """Limit the answers of a client; streams of events in answer to the methods `streams` may be of any length."""
    client.headers["Accept-Encoding"] = "gzip"
    hook = partial(limit, most_bytes=most_bytes, streams=streams)
    # First: other hooks may read the answer.
    client.event_hooks = {**client.event_hooks, "response": [hook, *client.event_hooks["response"]]}
    return client


async def limit(
    response: httpx.Response | httpx2.Response,
    *,
    most_bytes: int = LARGEST_ANSWER_BYTES,
    streams: Collection[str] = (),
) -> None:
    """As a response hook: limit an answer before it is read."""
    encoding = response.headers.pop("Content-Encoding", "").strip().lower()
    is_stream = (
        response.request.method in streams
        and response.status_code == HTTPStatus.OK
        and response.headers.get("Content-Type", "").lower().startswith(_EVENTS)
    )
    if is_stream:
        response.headers["Content-Type"] = _EVENTS  # in UTF-8, as all events are, whatever charset it states
    response.stream = _Limited(response.stream, encoding, None if is_stream else most_bytes)


def decompressor(encoding: str) -> Any:
    """Return what decompresses a body with this encoding by `pieces`; None if it is none of gzip."""
    return zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding in _COMPRESSED else None


def pieces(raw: bytes, gzip: Any) -> Iterator[bytes]:
    """Decompress `raw`, as the next part of a body, in pieces of a limited size.

    Raises:
        zlib.error: it is not compressed by gzip, or goes on after the end of that, which zlib would collect.
    """
    if gzip is None:
        yield raw
        return
    if gzip.eof and raw:
        raise zlib.error("data after the end")
    while piece := gzip.decompress(raw, _PIECE_BYTES):
        yield piece
        raw = gzip.unconsumed_tail


def refusal(status: int, headers: httpx.Headers | httpx2.Headers, body: bytes = b"") -> str:
    """Return the status as a sentence, with the server's own words and when to try again."""
    said = f"HTTP {status}{f' {HTTPStatus(status).phrase}' if status in HTTPStatus else ''}"
    challenge = _SAID_BY_CHALLENGE.search(headers.get("WWW-Authenticate", "")[:2000])
    words = _words(body, headers.get("Content-Type", "")) or (challenge[1] if challenge else "")
    printable = "".join(one if one.isprintable() else " " for one in words)
    if words := shortened(" ".join(printable.split()), _LONGEST_WORDS):
        said += f": {words}"
    seconds = headers.get("Retry-After", "")
    return f"{said} (try again in {int(seconds)} s)" if re.fullmatch("[0-9]{1,6}", seconds) else said


def not_an_answer(status: int, headers: httpx.Headers | httpx2.Headers) -> str:
    """Return the status and the kind of content of what is no MCP answer, as a sentence."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip() or "no kind of content"
    return f"not an MCP answer: HTTP {status} with {shortened(kind, _LONGEST_QUOTE)}"


def _words(body: bytes, content_type: str) -> str:
    """The reason in a refusal: of JSON its usual members, of plain text all, of a page nothing."""
    document = decoded(body)
    if isinstance(document, dict):
        error = document.get("error")
        nested = error.get("message") if isinstance(error, dict) else None
        found = (document.get("error_description"), nested, document.get("message"), document.get("detail"), error)
        return next((one for one in found if isinstance(one, str)), "")
    return body.decode(errors="replace") if content_type.lower().startswith("text/plain") else ""


def decoded(body: bytes) -> Any:
    """Return the JSON of a body; None if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # the latter: thousands of brackets
        return None


class _Limited(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """The decompressed pieces of a body; other tasks run after each `BUSY_SECONDS` of processing them."""

    def __init__(self, stream: Any, encoding: str, most_bytes: int | None) -> None:
        self._stream = stream
        self._encoding = encoding
        self._most_bytes = most_bytes

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        gzip = decompressor(self._encoding)
        if gzip is None and self._encoding not in ("", "identity"):
            raise AnswerError(f"its answer has the encoding {self._encoding[:_LONGEST_QUOTE]!r}, not gzip")
        length, busy = 0, 0.0
        values = ValueCounter(MOST_VALUES_OF_SERVERS, is_events=self._most_bytes is None)
        async with aclosing(aiter(self._stream)) as stream:  # left open, asyncio would close it in a task of its own
            async for raw in stream:
                began = monotonic()
                for piece in _readable(raw, gzip):
                    length += len(piece)
                    if self._most_bytes is not None and length > self._most_bytes:
                        raise AnswerError(f"its answer is larger than {_size(self._most_bytes)}")
                    if values.exceeds(piece):
                        raise AnswerError(f"its answer holds more than {MOST_VALUES_OF_SERVERS:,} JSON values")
                    yield piece
                    if busy + monotonic() - began > BUSY_SECONDS:
                        await asyncio.sleep(0)
                        began, busy = monotonic(), 0.0
                busy += monotonic() - began

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


def _readable(raw: bytes, gzip: Any) -> Iterator[bytes]:
    try:
        yield from pieces(raw, gzip)
    except zlib.error:
        raise AnswerError("its answer cannot be decompressed") from None


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count // 2**10} KiB"
