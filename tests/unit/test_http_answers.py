"""Limits of answers, over clients of both HTTP libraries."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any, override

import httpx
import httpx2
import pytest

from pallas_gateway.http_answers import AnswerError, limited
from pallas_gateway.json_size import MOST_VALUES_OF_SERVERS

URL = "http://server.test/mcp"
PIECE = b"x" * 1024
EVENTS = {"Content-Type": "text/event-stream"}


class Body(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """A body that counts the pieces that were read of it."""

    def __init__(self, *pieces: bytes, repeats: int = 1) -> None:
        self._pieces = pieces * repeats
        self.read = 0

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.read += 1
            yield piece


async def answered(
    library: Any, body: Body, headers: dict[str, str] | None = None, *, method: str = "POST", **options: Any
) -> bytes:
    """Return a limited client's answer."""

    def answer(request: Any) -> Any:
        assert request.headers["Accept-Encoding"] == "gzip"
        return library.Response(200, headers=headers, stream=body)

    transport = library.MockTransport(answer)
    async with limited(library.AsyncClient(transport=transport), **options) as client:
        return bytes((await client.request(method, URL)).content)


LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)


@LIBRARIES
async def test_an_answer_is_read_up_to_its_limit(library: Any) -> None:
    assert await answered(library, Body(PIECE, repeats=4), most_bytes=4096) == 4 * PIECE

    body = Body(PIECE, repeats=100)
    with pytest.raises(AnswerError, match="its answer is larger than 4 KiB"):
        await answered(library, body, most_bytes=4096)
    assert body.read == 5


@LIBRARIES
async def test_a_compressed_answer_is_limited_by_its_size_after_that(library: Any) -> None:
    compressed = gzip.compress(bytes(4096))
    headers = {"Content-Encoding": "gzip"}

    assert await answered(library, Body(compressed[:9], compressed[9:]), headers, most_bytes=4096) == bytes(4096)
    with pytest.raises(AnswerError, match="larger than 3 KiB"):
        await answered(library, Body(compressed), headers, most_bytes=3072)


@LIBRARIES
@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate"])
async def test_another_encoding_is_refused_unread(library: Any, encoding: str) -> None:
    body = Body(PIECE)

    with pytest.raises(AnswerError, match=f"the encoding '{encoding}', not gzip"):
        await answered(library, body, {"Content-Encoding": encoding})
    assert body.read == 0


@LIBRARIES
@pytest.mark.parametrize(("first", "read"), [(PIECE, 1), (gzip.compress(b"{}"), 2)], ids=["none", "with more behind"])
async def test_what_is_not_compressed_as_it_says_is_an_error_without_its_text(
    library: Any, first: bytes, read: int
) -> None:
    body = Body(first, *[PIECE] * 9)

    with pytest.raises(AnswerError, match=r"^its answer cannot be decompressed$"):
        await answered(library, body, {"Content-Encoding": "gzip"})
    assert body.read == read


@LIBRARIES
async def test_an_answer_of_more_values_than_a_message_has_is_not_parsed(library: Any) -> None:
    few, many = (b"[" + b"[]," * (MOST_VALUES_OF_SERVERS * share // 8) + b"[]]" for share in (3, 5))
    headers = {"Content-Encoding": "gzip"}

    assert await answered(library, Body(gzip.compress(few)), headers) == few
    with pytest.raises(AnswerError, match=r"^its answer holds more than 200,000 JSON values$"):
        await answered(library, Body(gzip.compress(many)), headers)


@pytest.mark.parametrize("charset", ["utf-8", "utf-7", "utf-16"])
async def test_the_values_of_each_event_of_a_stream_are_limited(charset: str) -> None:
    headers = {"Content-Type": f"text/event-stream; charset={charset}"}

    def read(event: bytes) -> Any:
        return answered(httpx2, Body(event, repeats=3), headers, streams=("POST",))

    half = b"data: [" + b"[]," * (MOST_VALUES_OF_SERVERS // 3) + b"[]]\n"
    assert await read(half + b"\n") == 3 * (half + b"\n")
    with pytest.raises(AnswerError, match="JSON values"):
        await read(half)


async def test_events_are_read_as_utf_8_whatever_charset_they_state() -> None:
    headers = {"Content-Type": "text/event-stream; charset=utf-7"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=b"data: +AFs-\n\n"))
    async with (
        limited(httpx2.AsyncClient(transport=transport), streams=("GET",)) as client,
        client.stream("GET", URL) as response,
    ):
        assert [event.data async for event in httpx2.EventSource(response)] == ["+AFs-"]


@pytest.mark.parametrize(("method", "is_read"), [("POST", True), ("DELETE", False)])
async def test_only_streams_that_are_read_event_by_event_are_of_any_length(method: str, *, is_read: bool) -> None:
    reading = answered(httpx2, Body(PIECE, repeats=9), EVENTS, method=method, most_bytes=4096, streams=("POST",))

    if is_read:
        assert len(await reading) == 9 * len(PIECE)
        return
    with pytest.raises(AnswerError):
        await reading


async def test_other_tasks_run_while_a_large_answer_is_decompressed() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await answered(httpx2, Body(gzip.compress(bytes(50_000_000))), {"Content-Encoding": "gzip"})
    counting.cancel()

    assert turns > 4
