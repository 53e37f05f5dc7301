"""A server can fill memory through a WebSocket."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider
from websockets.asyncio import client as client_module
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pallas_gateway.runtime import preparation
from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import WEBSOCKET
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import Reply, say

PING = b"\x89\x7d" + b"p" * 125
TEXT = b"\x81\x7d" + b"t" * 125


async def flooded_by(flood: Callable[[asyncio.Transport], Awaitable[None]], **limits: int) -> None:
    """Have a client with these limits be flooded by a server; returns when both have lost their connection."""
    preparation.prepare()
    ModelFactory._load_provider_class(Provider.RESPONSES)
    is_lost = asyncio.Event()
    connection_class = client_module.ClientConnection
    assert hasattr(connection_class, "most_bytes")

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await flood(connection.transport)
        await connection.wait_closed()
        is_lost.set()

    limited = type("Limited", (connection_class,), limits)
    async with (
        serve(handle, "127.0.0.1", 0) as server,
        connect(
            f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", proxy=None, create_connection=limited
        ) as client,
    ):
        await client.send("begin")
        with pytest.raises(ConnectionClosed):
            await read(client)
        await asyncio.wait_for(is_lost.wait(), 10)


async def read(client: ClientConnection) -> None:
    while True:
        await client.recv()


async def test_a_server_that_floods_pings_is_cut_off() -> None:
    async def flood(transport: asyncio.Transport) -> None:
        transport.write(PING * 51)

    await flooded_by(flood, most_control_frames=50)


async def test_a_server_that_sends_more_than_an_answer_is_cut_off() -> None:
    async def flood(transport: asyncio.Transport) -> None:
        transport.write(TEXT * (2**14 // len(TEXT) + 1))

    await flooded_by(flood, most_bytes=2**14)


async def test_a_server_that_reads_no_answers_to_its_pings_is_cut_off() -> None:
    async def flood(transport: asyncio.Transport) -> None:
        transport.pause_reading()
        while not transport.is_closing():
            transport.write(PING * 1000)
            await asyncio.sleep(0)

    await flooded_by(flood, most_unsent_bytes=2**16, most_control_frames=2**30)


async def test_no_websocket_goes_to_a_server_that_an_answer_names(tmp_path: Path) -> None:
    async with (
        scripted_provider(WEBSOCKET.dialect) as elsewhere,
        serving(tmp_path, WEBSOCKET, [say("Hello.")]) as served,
    ):
        url = f"ws://127.0.0.1:{urlsplit(elsewhere.base_url).port}/v1/responses"
        served.llm.handshakes = [Reply(307, b"", "text/plain", {"location": url})] * 3
        answer = await ask(served.url)

    assert "its provider answered 307" in answer.text
    assert elsewhere.requests == []
