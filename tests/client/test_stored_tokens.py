"""Where the token of a sign-in goes, and where it does not."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pallas_gateway.client.gateway_api import ask, events, fetch_server_tools
from pallas_gateway.client.gateway_client import (
    RemoteAgent,
    connected,
    fetch_agents,
    fetch_readiness,
)
from pallas_gateway.client.sign_in import authorization_server
from pallas_gateway.client.sign_in.authorization_server import Offer, login_of
from pallas_gateway.client.sign_in.logins import Login, Logins, LoginsError, default_path, gateway_key, stored_token
from pallas_gateway.errors import GatewayError
from tests.support.downstreams import Recorder, stateless_downstream
from tests.support.listener import reserved_port, serve_app
from tests.support.tokens import forge, keys_of
from tests.support.waiting import Gate, eventually

TOKEN = "token-of-the-sign-in"
ELSEWHERE = "127.0.0.2"
"""Of this machine, and none of the names that count as one host."""


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logins:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Logins.of_user()


async def signed_in(logins: Logins, base_url: str, token: str = TOKEN) -> None:
    async with logins.locked():
        logins.put(base_url, Login("https://login.example", "pallas", None, token, time.time() + 3600))


@asynccontextmanager
async def answering(response: Response) -> AsyncGenerator[tuple[str, Recorder]]:
    """A server that gives one answer to everything, and what it was asked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)

    recorder = Recorder(app)
    with reserved_port() as port:
        async with serve_app(recorder, port=port):
            yield f"http://127.0.0.1:{port}", recorder


@asynccontextmanager
async def foreign_server() -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A server on another host, and the heads of its requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, ELSEWHERE, 0) as server:
        yield f"http://{ELSEWHERE}:{server.sockets[0].getsockname()[1]}", heads


async def every_request(base_url: str) -> None:
    for request in (
        fetch_agents(base_url),
        fetch_readiness(base_url),
        fetch_server_tools(base_url, "echo"),
        ask("GET", base_url, "/api/v1/calls", None),
    ):
        with suppress(GatewayError):
            await request
    with suppress(GatewayError):
        async with events(base_url, "/api/v1/threads", None, {}):
            pass


def sent_tokens(recorder: Recorder) -> set[str | None]:
    return {request.headers.get("authorization") for request in recorder.requests if request.path != "/api/sign-in"}


async def test_every_request_to_the_gateway_has_the_token(logins: Logins) -> None:
    async with answering(JSONResponse({}, 500)) as (url, asked), answering(JSONResponse({}, 500)) as (other, unknown):
        await signed_in(logins, url)
        await every_request(url)
        await every_request(other)
    assert sent_tokens(asked) == {f"Bearer {TOKEN}"}
    assert sent_tokens(unknown) == {None}


async def test_a_redirect_does_not_get_it(logins: Logins) -> None:
    async with answering(JSONResponse({})) as (target, reached), answering(RedirectResponse(target)) as (url, asked):
        await signed_in(logins, url)
        await every_request(url)
    assert asked.requests
    assert reached.requests == []


async def test_an_agent_that_the_registry_names_on_another_host_does_not_get_it(logins: Logins) -> None:
    async with foreign_server() as (elsewhere, heads):
        server = {"name": "a/echo", "remotes": [{"type": "streamable-http", "url": f"{elsewhere}/own/mcp"}]}
        async with answering(JSONResponse({"servers": [{"server": server}]})) as (url, asked):
            await signed_in(logins, url)
            [agent] = await fetch_agents(url)
            with pytest.raises(GatewayError):
                async with connected(agent) as client:
                    await client.list_tools()
    assert sent_tokens(asked) == {f"Bearer {TOKEN}"}
    assert heads
    assert all(b"authorization" not in head.lower() for head in heads)


async def test_the_authorization_server_is_not_asked_with_it(logins: Logins) -> None:
    async with answering(JSONResponse({})) as (issuer, asked):
        async with logins.locked():
            logins.put("http://127.0.0.1:1", Login(issuer, "pallas", None, TOKEN, 0, 0, "refresh"))
        with pytest.raises(GatewayError):
            await stored_token("http://127.0.0.1:1")
    assert [request.path for request in asked.requests] == ["/.well-known/openid-configuration"]
    assert sent_tokens(asked) == {None}


async def test_an_open_connection_sends_the_renewed_token(logins: Logins) -> None:
    async with stateless_downstream() as server:
        base_url = server.url.removesuffix("/mcp")
        await signed_in(logins, base_url)
        agent = RemoteAgent("echo", "Echo", "", server.url, {}, home=base_url)
        async with connected(agent) as client:
            await client.list_tools()
            await signed_in(logins, base_url, "renewed")
            await client.list_tools()
    sent = [request.headers.get("authorization") for request in server.recorder.requests]
    assert sent[0] == f"Bearer {TOKEN}"
    assert sent[-1] == "Bearer renewed"


class Issuer:
    """An authorization server that gives `renewed` for a refresh token once its gate is open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.gate = Gate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/token":
            await self.gate.enter()
        names = ("authorization_endpoint", "token_endpoint")
        metadata = {"issuer": self.url, **dict.fromkeys(names, f"{self.url}/token")}
        tokens = {"access_token": "renewed", "token_type": "Bearer", "expires_in": 600, "refresh_token": "next"}
        answer = tokens if scope["path"] == "/token" else metadata
        await JSONResponse(answer)(scope, receive, send)


@asynccontextmanager
async def issuer(logins: Logins, *, valid_seconds: float = 300) -> AsyncGenerator[Issuer]:
    """An authorization server, of which a token for `http://a` is to be renewed."""
    with reserved_port() as port:
        one = Issuer(f"http://127.0.0.1:{port}")
        async with serve_app(one, port=port):
            async with logins.locked():
                logins.put("http://a", Login(one.url, "pallas", None, TOKEN, time.time() + valid_seconds, 0, "refresh"))
            yield one
            one.gate.open()


async def test_a_valid_token_is_used_while_its_renewal_takes_long_and_the_renewal_is_stored_later(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization_server, "WAIT_SECONDS", 0.05)
    async with issuer(logins) as server:
        assert await stored_token("http://a") == TOKEN
        await server.gate.wait_for_entered()
        assert await stored_token("http://a") == TOKEN  # without a wait for the lock that the first one holds
        server.gate.open()
        await eventually(lambda: logins.all()["http://a"].refresh_token == "next", what="the end of the renewal")
        assert await stored_token("http://a") == "renewed"
    assert len(server.gate.entered) == 1


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"  # not the lifespan
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("app", [silent, JSONResponse({}, 503)])
async def test_a_server_that_does_not_answer_is_not_asked_again_for_a_while_by_any_process(
    app: ASGIApp, logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization_server, "WAIT_SECONDS", 0.2)
    recorder = Recorder(app)
    with reserved_port() as port:
        async with serve_app(recorder, port=port):
            valid = Login(f"http://127.0.0.1:{port}", "pallas", None, TOKEN, time.time() + 300, 0, "refresh")
            async with logins.locked():
                logins.put("http://a", valid)
            assert await stored_token("http://a") == TOKEN
            await eventually(lambda: logins.all()["http://a"].renew_at != 0, what="the pause")
            asked = len(recorder.requests)
            assert await stored_token("http://a") == TOKEN
            assert len(recorder.requests) == asked > 0
            pause = logins.all()["http://a"].renew_at
            assert pause == pytest.approx(time.time() + authorization_server.PAUSE_SECONDS, abs=25)
            async with logins.locked():
                logins.put("http://a", replace(valid, expires_at=0, renew_at=pause))
            monkeypatch.setattr(authorization_server, "REGISTRY_SECONDS", 0.2)
            with pytest.raises(GatewayError):  # it has ended, so it is renewed although the pause has not
                await stored_token("http://a")


@pytest.mark.parametrize("valid_seconds", [300, -1])
async def test_a_command_that_ends_within_a_renewal_stores_the_next_refresh_token(
    valid_seconds: float, logins: Logins
) -> None:
    """As with Ctrl-C, which cancels the task of a command and ends its event loop."""
    loop = asyncio.get_running_loop()
    async with issuer(logins, valid_seconds=valid_seconds) as server:

        async def command() -> None:
            asking = asyncio.create_task(stored_token("http://a"))
            entered = asyncio.run_coroutine_threadsafe(server.gate.wait_for_entered(), loop)
            await asyncio.wrap_future(entered)
            asking.cancel()
            loop.call_soon_threadsafe(server.gate.open)

        await asyncio.to_thread(asyncio.run, command())
        assert logins.all()["http://a"].refresh_token == "next"


async def test_a_renewal_that_is_removed_meanwhile_ends_the_sign_in(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logins.locked():
        logins.put("http://a", Login("http://127.0.0.1:1", "pallas", None, TOKEN, 0, 0, "refresh"))
        asked = asyncio.create_task(stored_token("http://a"))
        await asyncio.sleep(0)
        logins.remove("http://a")
    with pytest.raises(GatewayError, match="removed meanwhile"):
        await asked


async def test_another_process_that_keeps_the_lock_is_named(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.client.sign_in.logins._LOCK_SECONDS", 0)
    async with logins.locked():
        with pytest.raises(LoginsError, match="Another process has locked"):
            async with logins.locked():
                pass


async def test_a_full_disk_keeps_what_was_stored(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    await signed_in(logins, "http://a")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LoginsError, match=r"No space left on device\. Nothing was changed\."):
        await signed_in(logins, "http://b")
    assert list(logins.all()) == ["http://a"]
    assert {path.name for path in logins.path.parent.iterdir()} == {"logins.json", "logins.lock"}


async def test_the_token_is_not_shown(logins: Logins) -> None:
    login = Login("https://login.example", "pallas", None, TOKEN, refresh_token="refresh-secret")
    assert TOKEN not in repr(login)
    assert "refresh-secret" not in repr(login)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://localhost:24200", "http://localhost:24200"),
        ("HTTPS://Agents.Example.com:443/Base/", "https://agents.example.com/Base"),
        ("http://[::1]:80/", "http://[::1]"),
        ("https://agents.example.com/base", "https://agents.example.com/base"),
        ("", ""),
        ("http://[", "http://["),
        ("http://a:b", "http://a:b"),
    ],
)
def test_a_gateway_has_one_key(url: str, key: str) -> None:
    assert gateway_key(url) == key


def test_the_file_is_in_the_state_directory(tmp_path: Path) -> None:
    at_home = tmp_path / ".local/state/pallas-gateway/logins.json"
    assert default_path({}, tmp_path) == at_home
    assert default_path({"XDG_STATE_HOME": "relative"}, tmp_path) == at_home


async def test_nothing_is_made_where_nobody_signed_in(logins: Logins) -> None:
    assert await stored_token("http://localhost:24200") is None
    assert await stored_token("http://localhost:24200") is None
    assert not logins.path.parent.exists()


async def test_a_response_of_the_token_endpoint_without_a_time_uses_that_of_the_token() -> None:
    offer = Offer(issuer="https://login.example", client_id="a", scopes=(), resource=None)
    token = forge({"alg": "RS256"}, {"exp": 1234}, keys_of("a", 1).rsa, "RS256")
    assert login_of({"access_token": token}, offer).expires_at == 1234
    assert login_of({"access_token": "opaque", "expires_in": "soon"}, offer).expires_at is None
    assert login_of({"access_token": "opaque", "expires_in": "60"}, offer).expires_at == pytest.approx(
        time.time() + 60, abs=30
    )
    short = login_of({"access_token": "opaque", "expires_in": 20}, offer)
    assert short.expires_at is not None
    assert short.renew_at == pytest.approx(short.expires_at - 5)
