"""The client that health checks, provider checks and the fetching of issuers' keys share."""

import asyncio

import httpx
import pytest

from pallas_gateway.core.gateway import http_client
from tests.support.asgi import Receive, Scope, Send, http_only, read_body, respond
from tests.support.downstreams import Recorder
from tests.support.listener import serve_app
from tests.support.waiting import Gate

HANGING = 110
"""More than the connections that httpx allows unless told otherwise."""


async def test_servers_that_hang_are_not_in_the_way_of_one_that_answers() -> None:
    gate = Gate()

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        if scope["path"] == "/hangs":
            await gate.enter()
        await respond(send, 200, "{}")

    async with serve_app(app) as listener, http_client() as client:
        hanging = [asyncio.create_task(client.get(f"{listener.base_url}/hangs")) for _ in range(HANGING)]
        await gate.wait_for_entered(HANGING)
        async with asyncio.timeout(20):
            assert (await client.get(f"{listener.base_url}/answers")).status_code == 200
        gate.open()
        assert {response.status_code for response in await asyncio.gather(*hanging)} == {200}


async def test_the_cookies_of_one_server_do_not_come_along_to_another() -> None:
    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await respond(send, 200, "{}", headers={"Set-Cookie": "session=ours"})

    recorder = Recorder(app)
    async with serve_app(recorder) as listener, http_client() as client:
        for path in ("/one", "/two"):  # a cookie belongs to a host name, whatever the port: one server or two
            await client.get(f"{listener.base_url}{path}")
        assert client.cookies == httpx.Cookies()
    assert [request.headers.get("cookie") for request in recorder.requests] == [None, None]


async def test_the_companys_proxy_is_used_but_for_hosts_of_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    @http_only
    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await respond(send, 200, "{}")

    recorder = Recorder(proxy)
    async with serve_app(recorder) as listener:
        monkeypatch.setenv("HTTP_PROXY", listener.base_url)
        monkeypatch.setenv("http_proxy", listener.base_url)
        monkeypatch.setenv("NO_PROXY", "direct.invalid")
        monkeypatch.setenv("no_proxy", "direct.invalid")
        async with http_client() as client:
            assert (await client.get("http://login.invalid/jwks.json")).status_code == 200
            with pytest.raises(httpx.ConnectError):
                await client.get("http://tools.direct.invalid/mcp")
    assert [request.headers["host"] for request in recorder.requests] == ["login.invalid"]
