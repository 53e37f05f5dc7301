"""Limits on WebSockets, over sockets to a server that keeps none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pallas_gateway.runtime.llm import websockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PING = b"\x89\x7d" + b"p" * 125
TEXT = b"\x81\x7d" + b"t" * 125


async def flooded_by(flood: Callable[[asyncio.Transport], Awaitable[None]]) -> None:
    """Have a client with limits be flooded by a server; returns when both have lost their connection."""
    websockets.prepare()
    websockets.prepare()
    is_lost = asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await flood(connection.transport)
        await connection.wait_closed()
        is_lost.set()

    async with (
        serve(handle, "127.0.0.1", 0) as server,
        connect(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", proxy=None) as client,
    ):
        assert type(client) is websockets.LimitedConnection
        await client.send("begin")
        with pytest.raises(ConnectionClosed):
            await read(client)
        await asyncio.wait_for(is_lost.wait(), 10)


async def read(client: ClientConnection) -> None:
    while True:
        await client.recv()


async def test_a_server_that_floods_pings_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "MOST_CONTROL_FRAMES", 50)

    async def flood(transport: asyncio.Transport) -> None:
        transport.write(PING * 51)

    await flooded_by(flood)


async def test_a_server_that_sends_more_than_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "LARGEST_ANSWER_BYTES", 2**14)

    async def flood(transport: asyncio.Transport) -> None:
        transport.write(TEXT * (2**14 // len(TEXT) + 1))

    await flooded_by(flood)


async def test_a_server_that_reads_no_answers_to_its_pings_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "MOST_UNSENT_BYTES", 2**16)
    monkeypatch.setattr(websockets, "MOST_CONTROL_FRAMES", 2**30)

    async def flood(transport: asyncio.Transport) -> None:
        transport.pause_reading()
        while not transport.is_closing():
            transport.write(PING * 1000)
            await asyncio.sleep(0)

    await flooded_by(flood)
