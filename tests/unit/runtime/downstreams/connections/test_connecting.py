"""The HTTP clients that calls share: sockets, and nothing of a call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from fast_agent.config import MCPServerSettings

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.connections.answers import allow_silence
from pallas_gateway.runtime.downstreams.connections.connecting import SharedClients
from pallas_gateway.tasks import TaskOwner
from tests.support.changing import changing_downstream


@asynccontextmanager
async def a_client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    preparation.prepare()
    tasks = TaskOwner()
    clients = SharedClients(tasks, 1)
    try:
        yield clients.make(MCPServerSettings(transport="http", url=url, name="tools"))
    finally:
        await clients.close()
        await tasks.cancel_all()


async def test_client_keeps_no_cookies() -> None:
    async with changing_downstream("one") as server, a_client(server.url) as client:
        for _ in range(2):
            assert (await client.post(server.url, json={})).headers["set-cookie"]
        assert ["cookie" in request.headers for request in server.recorder.requests] == [False, False]


async def test_request_waits_as_long_as_a_question_of_its_call_may_be_open() -> None:
    async with a_client("http://tools.example/mcp") as client:
        assert allow_silence in client.event_hooks["request"]


async def test_client_that_is_closed_sends_nothing() -> None:
    async with a_client("http://127.0.0.1:9/mcp") as client:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await client.get("http://127.0.0.1:9/mcp")
