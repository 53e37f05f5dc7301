"""The slow proxy hands on what it gets, in pieces, and holds nothing back for good."""

import httpx

from tests.support.asgi import Receive, Scope, Send, read_body, respond
from tests.support.listener import serve_app
from tests.support.slow_proxy import PIECE_BYTES, SLOW_PIECES, slow_proxy


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await respond(send, 200, (await read_body(receive)).decode(), content_type="text/plain")


async def test_a_request_and_its_answer_pass_whole_on_a_kept_connection() -> None:
    body = "0123456789" * PIECE_BYTES * SLOW_PIECES
    async with serve_app(echo) as listener, slow_proxy(listener.port) as url, httpx.AsyncClient(base_url=url) as client:
        for text in (body, "short"):
            assert (await client.post("/", content=text)).text == text
