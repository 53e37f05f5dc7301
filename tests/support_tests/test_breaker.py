"""The breaker: what it lets through is whole, and what it cuts is cut."""

import asyncio

import httpx

from tests.support.asgi import Receive, Scope, Send, end_body, http_only, send_part, start_response
from tests.support.breaker import Breaker, breaker
from tests.support.listener import serve_app

PIECE = "piece " * 100


@http_only
async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers in ten pieces."""
    await start_response(send, 200, content_type="text/plain")
    for _ in range(10):
        await send_part(send, PIECE)
    await end_body(send)


async def answers(relay: Breaker, count: int) -> list[str | None]:
    """What `count` requests get, each on a connection of its own; None where the connection broke."""

    async def get() -> str | None:
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                return (await http.get(f"http://127.0.0.1:{relay.port}/")).text
            except httpx.TransportError:
                return None

    return await asyncio.gather(*(get() for _ in range(count)))


async def test_with_the_whole_share_nothing_comes_through() -> None:
    async with serve_app(app) as listener, breaker(listener.port, share=1, most_chunks=0, seed=1) as relay:
        assert await answers(relay, 20) == [None] * 20
        assert (relay.connections, relay.cuts) == (20, 20)


async def test_a_share_is_cut_and_the_rest_comes_through_whole() -> None:
    async with serve_app(app) as listener, breaker(listener.port, share=0.5, most_chunks=0, seed=1) as relay:
        got = await answers(relay, 100)

    assert set(got) == {None, PIECE * 10}
    assert got.count(None) == relay.cuts
    assert 20 < relay.cuts < 80
