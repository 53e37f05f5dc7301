"""Reads of a streamed answer: what they return, and when.

Most pauses are so long that only the end of the body ends them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from fast_agent.llm.provider_types import Provider
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.calls.current import AgentCall, LlmTurn, calling
from pallas_gateway.fast_paths.paced_reads import LARGE_BYTES, PacedReader
from tests.support.loaded_providers import load

SIZE = 16
FOR_EVER = 3600.0


class Pace:
    """An observer's pause."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def pause(self) -> float:
        return self.seconds


@contextmanager
def in_a_call(seconds: float) -> Iterator[Pace]:
    pace = Pace(seconds)
    with calling(AgentCall(turn=LlmTurn(reading_pause=pace.pause))):
        yield pace


def a_body() -> aiohttp.StreamReader:
    """A body without data; whatever feeds it plays the socket."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop=loop, parser=None)
    protocol.connection_made(asyncio.Transport())
    return aiohttp.StreamReader(protocol, 2**16, loop=loop)


async def turned() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_piece_is_read_at_once_and_later_ones_together_at_the_end() -> None:
    body = a_body()
    with in_a_call(FOR_EVER):
        reads = PacedReader(body).iter_chunked(SIZE)
        body.feed_data(b"a")
        assert await anext(reads) == b"a"

        following = asyncio.ensure_future(anext(reads))
        for piece in (b"b", b"c", b"d"):
            body.feed_data(piece)
            await turned()
            assert not following.done()
        body.feed_eof()

        assert await following == b"bcd"
        with pytest.raises(StopAsyncIteration):
            await anext(reads)


async def test_outside_of_a_turn_each_piece_is_read_as_it_comes() -> None:
    body = a_body()
    with calling(AgentCall()):
        reads = PacedReader(body).iter_chunked(SIZE)
        for piece in (b"a", b"b", b"c"):
            body.feed_data(piece)
            assert await asyncio.wait_for(anext(reads), 30) == piece


async def test_a_pause_that_is_allowed_later_applies_from_then_on() -> None:
    body = a_body()
    with in_a_call(0.0) as pace:
        reads = PacedReader(body).iter_chunked(SIZE)
        for piece in (b"a", b"b"):
            body.feed_data(piece)
            assert await anext(reads) == piece
        pace.seconds = FOR_EVER
        following = asyncio.ensure_future(anext(reads))
        body.feed_data(b"c")
        await turned()
        assert not following.done()
        body.feed_eof()
        assert await following == b"c"


async def test_pieces_after_a_full_read_are_read_together() -> None:
    body = a_body()
    with in_a_call(FOR_EVER):
        reads = PacedReader(body).iter_chunked(SIZE)
        body.feed_data(b"x" * (SIZE + 1))
        assert [len(await anext(reads)) for _ in range(2)] == [SIZE, 1]
        following = asyncio.ensure_future(anext(reads))
        await turned()
        for piece in (b"a", b"b"):
            body.feed_data(piece)
            await turned()
        body.feed_eof()

        assert await following == b"ab"


async def test_after_so_much_at_once_that_it_is_no_text_the_rest_of_the_body_is_read_without_pauses() -> None:
    body = a_body()
    with in_a_call(FOR_EVER):
        reads = PacedReader(body).iter_chunked(LARGE_BYTES // 4)
        body.feed_data(b"x" * LARGE_BYTES)
        for _ in range(4):
            await anext(reads)
        for piece in (b"y", b"z"):
            body.feed_data(piece)
            assert await asyncio.wait_for(anext(reads), 30) == piece


async def test_a_connection_that_breaks_ends_a_pause_and_what_arrived_is_read_before_the_error() -> None:
    body = a_body()
    with in_a_call(FOR_EVER):
        reads = PacedReader(body).iter_chunked(SIZE)
        body.feed_data(b"a")
        assert await anext(reads) == b"a"
        following = asyncio.ensure_future(anext(reads))
        await turned()
        body.feed_data(b"data: [DONE]")
        body.set_exception(aiohttp.ClientPayloadError("cut"))

        assert await following == b"data: [DONE]"
        with pytest.raises(aiohttp.ClientPayloadError, match="cut"):
            await anext(reads)


async def test_a_turn_that_is_cancelled_in_a_pause_leaves_no_timer() -> None:
    body = a_body()
    with in_a_call(FOR_EVER):
        paced = PacedReader(body)
        reads = paced.iter_chunked(SIZE)
        body.feed_data(b"a")
        await anext(reads)
        following = asyncio.ensure_future(anext(reads))
        await turned()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following

        body.feed_data(b"b")
        body.feed_eof()
        assert paced.is_eof()
        assert await anext(reads) == b"b"


@settings(max_examples=50)
@given(
    st.lists(st.binary(min_size=1, max_size=2 * SIZE), max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from([0.0, 0.0001]),
)
def test_the_bytes_are_those_that_were_sent(pieces: list[bytes], turns: list[bool], seconds: float) -> None:
    async def read() -> bytes:
        body = a_body()

        async def send() -> None:
            for piece, turn in zip(pieces, turns, strict=False):
                body.feed_data(piece)
                if turn:
                    await turned()
            body.feed_eof()

        with in_a_call(seconds):
            sending = asyncio.ensure_future(send())
            received = b"".join([piece async for piece in PacedReader(body).iter_chunked(SIZE)])
            await sending
        return received

    assert asyncio.run(read()) == b"".join(pieces)


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_events_that_answer_a_turn_are_read_with_pauses(content_type: str) -> None:
    load(Provider.OPENAI)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with in_a_call(FOR_EVER):
            async with http.get(url) as response:
                assert isinstance(response.content, PacedReader) == (content_type == "text/event-stream")
        async with http.get(url) as response:
            assert not isinstance(response.content, PacedReader)
