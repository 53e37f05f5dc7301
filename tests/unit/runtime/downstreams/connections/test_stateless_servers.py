"""Requests to servers of the 2026-07-28 era without a connection: each a POST by the task that needs its answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pallas_gateway.repairs.mcp.unanswered_requests import UNANSWERED
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.connections import stateless_servers
from pallas_gateway.runtime.downstreams.connections.stateless_servers import PostDispatcher
from tests.support.listener import serve_app
from tests.support.waiting import cancelled

URL = "http://server.test/mcp"
EVENTS = {"content-type": "text/event-stream"}


class Session:
    def __init__(self) -> None:
        self.notified: list[str] = []

    async def _on_notify(self, _: object, method: str, params: object) -> None:
        del params
        self.notified.append(method)

    async def _on_request(self, _: object, method: str, params: object) -> dict[str, Any]:
        del params
        raise MCPError(code=METHOD_NOT_FOUND, message=method)


@asynccontextmanager
async def posting(answer: Callable[[httpx2.Request], Any]) -> AsyncIterator[tuple[PostDispatcher, Session]]:
    preparation.prepare()
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http_client:
        dispatcher = PostDispatcher(URL, http_client)
        dispatcher.session = session = cast("Any", Session())
        yield dispatcher, session


def result(request: httpx2.Request, **fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": json.loads(request.content)["id"], "result": {"ok": True}, **fields}


def stream(*messages: dict[str, Any]) -> httpx2.Response:
    text = "".join(f"event: message\ndata: {json.dumps(one)}\n\n" for one in messages)
    return httpx2.Response(200, text=text, headers=EVENTS)


async def test_notifications_within_an_answer_are_handled_before_it_by_the_task_that_asked() -> None:
    seen: list[tuple[object, ...]] = []

    async def on_progress(*progress: object) -> None:
        seen.append((asyncio.current_task(), *progress))

    def answer(request: httpx2.Request) -> httpx2.Response:
        token = json.loads(request.content)["params"]["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1, "message": "half"}
        notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
        return stream({**notice, "method": "notifications/progress", "params": progress}, notice, result(request))

    async with posting(answer) as (dispatcher, session):
        assert await dispatcher.send_raw_request("tools/call", {}, {"on_progress": on_progress}) == {"ok": True}

    assert seen == [(asyncio.current_task(), 1.0, None, "half")]
    assert session.notified == ["notifications/progress", "notifications/message"]


async def test_a_callback_that_fails_does_not_fail_the_request() -> None:
    async def on_progress(*_: object) -> None:
        raise ValueError

    def answer(request: httpx2.Request) -> httpx2.Response:
        params = {"progressToken": 1, "progress": 1}
        return stream({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, result(request))

    async with posting(answer) as (dispatcher, _):
        assert await dispatcher.send_raw_request("tools/call", {}, {"on_progress": on_progress}) == {"ok": True}


def without_connection(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (without_connection, "Connection closed"),
        (lambda request: httpx2.Response(200, json=result(request, id=77)), UNANSWERED),
        (lambda _: stream(), "SSE stream ended without a response"),
    ],
    ids=["no connection", "answer to another request", "no answer"],
)
async def test_a_request_without_an_answer_fails(answer: Callable[[httpx2.Request], Any], message: str) -> None:
    async with posting(answer) as (dispatcher, _):
        with pytest.raises(MCPError) as failed:
            await dispatcher.send_raw_request("tools/call", {})

    assert (failed.value.error.code, failed.value.error.message) == (CONNECTION_CLOSED, message)


@pytest.mark.parametrize(
    ("before", "after"),
    [([{"jsonrpc": "2.0", "id": 9, "method": "roots/list"}], ""), ([], "id: 7\nretry: 0\ndata:\n\n")],
    ids=["a request of the server", "an event with an id after the answer"],
)
async def test_no_further_request_is_made_for(before: list[dict[str, Any]], after: str) -> None:
    methods: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        methods.append(request.method)
        return httpx2.Response(200, text=stream(*before, result(request)).text + after, headers=EVENTS)

    async with posting(answer) as (dispatcher, _):
        assert await dispatcher.send_raw_request("tools/call", {}) == {"ok": True}

    assert methods == ["POST"]


async def test_the_time_limit_ends_a_request_and_its_post_and_sends_nothing_else() -> None:
    ended = SimpleNamespace(posts=0, requests=0)

    async def answer(_: httpx2.Request) -> httpx2.Response:
        ended.requests += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.posts += 1
        raise AssertionError

    async with posting(answer) as (dispatcher, _):
        with pytest.raises(MCPError) as failed:
            await dispatcher.send_raw_request("tools/call", {}, {"timeout": 0.01})

    assert failed.value.error.code == REQUEST_TIMEOUT
    assert (ended.requests, ended.posts) == (1, 1)


async def test_a_cancelled_request_ends_its_post_and_sends_nothing_else() -> None:
    entered, methods = asyncio.Event(), []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        methods.append(json.loads(request.content)["method"])
        entered.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with posting(answer) as (dispatcher, _):
        sending = asyncio.create_task(dispatcher.send_raw_request("tools/call", {}))
        await entered.wait()
        await cancelled(sending)

    assert methods == ["tools/call"]


@asynccontextmanager
async def streaming(*, ends: bool = True) -> AsyncIterator[tuple[PostDispatcher, list[int], asyncio.Event]]:
    """A server that answers by streams, which it ends or not; the ports of its clients, and one's hang-up."""
    ports: list[int] = []
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        ports.append(scope["client"][1])
        body = (await receive())["body"]
        message = {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": {"ok": True}}
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        text = f"event: message\ndata: {json.dumps(message)}\n\n".encode()
        await send({"type": "http.response.body", "body": text, "more_body": True})
        if not ends:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()
        await send({"type": "http.response.body", "body": b""})

    async with serve_app(app) as listener, httpx2.AsyncClient(trust_env=False) as http_client:
        dispatcher = PostDispatcher(f"{listener.base_url}/mcp", http_client)
        dispatcher.session = cast("Any", Session())
        yield dispatcher, ports, left


async def test_requests_use_the_socket_of_the_answer_before() -> None:
    async with streaming() as (dispatcher, ports, _):
        for _ in range(3):
            assert await dispatcher.send_raw_request("tools/call", {}) == {"ok": True}

    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_the_stream_of_an_answer_that_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateless_servers, "END_SECONDS", 0.01)
    async with streaming(ends=False) as (dispatcher, ports, left):
        for _ in range(2):
            assert await dispatcher.send_raw_request("tools/call", {}) == {"ok": True}
        async with asyncio.timeout(20):
            await left.wait()

    assert len(set(ports)) == 2
