"""A socket with unread data answers the next request."""

import asyncio
from contextlib import suppress

import httpx2
import pytest

from pallas_gateway.runtime import preparation

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n%b"


@pytest.fixture(autouse=True)
def prepared() -> None:
    preparation.prepare()


@pytest.mark.parametrize("more", [b"", ANSWER % b"other", ANSWER[:20], b"\0"])
async def test_socket_that_received_more_than_the_answer_is_not_used_again(more: bytes) -> None:
    sockets: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER % b"right" + more)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with httpx2.AsyncClient(limits=httpx2.Limits(keepalive_expiry=None)) as client:
            for _ in range(3):
                assert (await client.get(url)).text == "right"
    assert len(sockets) == (3 if more else 1)
