"""One probe against real listeners of every kind: a broken server is a result, never an exception."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from pallas_gateway.core.health.probe import ProbeResult, probe
from pallas_gateway.limits import HealthLimits
from pallas_gateway.runtime.protocols import Downstream
from pallas_gateway.tasks import TaskOwner
from tests.support.asgi import (
    AsgiApp,
    Receive,
    Scope,
    Send,
    http_only,
    read_body,
    respond,
    send_part,
    start_response,
    until_disconnect,
)
from tests.support.downstreams import Recorder, refusing, stateful_downstream, stateless_downstream
from tests.support.listener import serve_app
from tests.support.odd_server import HANDSHAKE
from tests.support.waiting import Gate

SECRET = "hunter2"
ANSWER = json.dumps({"jsonrpc": "2.0", "id": 1, "result": HANDSHAKE})


async def probed(
    url: str | None, *, headers: Mapping[str, str] | None = None, forwards_bearer: bool = False, **limits: float
) -> ProbeResult:
    async with httpx.AsyncClient(timeout=None) as client, TaskOwner() as tasks:  # noqa: S113  the probe's own deadline
        return await probe(
            Downstream("tools", url, headers or {}, forwards_bearer), client, tasks, HealthLimits(**limits)
        )


@asynccontextmanager
async def answering(
    body: bytes | str, *, status: int = 200, content_type: str = "application/json"
) -> AsyncGenerator[tuple[str, Recorder]]:
    """A server that answers every request alike."""

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await respond(send, status, body, content_type=content_type)

    async with served(app) as (url, recorder):
        yield url, recorder


@asynccontextmanager
async def served(app: AsgiApp) -> AsyncGenerator[tuple[str, Recorder]]:
    recorder = Recorder(app)
    async with serve_app(recorder) as listener:
        yield f"{listener.base_url}/mcp", recorder


async def test_a_server_of_both_eras_is_reachable() -> None:
    async with stateless_downstream() as tools:
        result = await probed(tools.url)
        await tools.recorder.wait_until_idle()
    assert replace(result, seconds=0) == ProbeResult("tools", 0, None, "initialize")
    assert 0 < result.seconds < 3
    assert tools.recorder.rpc_methods == ["initialize"]


async def test_a_session_that_was_opened_is_ended_again() -> None:
    async with stateful_downstream() as counter:
        assert (await probed(counter.url)).error is None
        assert counter.recorder.sessions == set()
        assert [request.method for request in counter.recorder.requests] == ["POST", "DELETE"]


@pytest.mark.parametrize("refusal", [405, 500])
async def test_a_server_that_does_not_end_sessions_is_reachable_all_the_same(refusal: int) -> None:
    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            await respond(send, refusal, "")
        else:
            await read_body(receive)
            await opens_a_session(send)

    async with served(app) as (url, recorder):
        assert (await probed(url)).error is None
    assert recorder.requests[-1].headers["mcp-session-id"] == "s1"


def opens_a_session(send: Send) -> Awaitable[None]:
    return respond(send, 200, ANSWER, headers={"Mcp-Session-Id": "s1"})


async def test_a_server_that_hangs_at_the_end_of_a_session_is_reachable_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="pallas.health")
    gate = Gate()

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            await gate.enter()
        else:
            await read_body(receive)
            await opens_a_session(send)

    async with served(app) as (url, _):
        result = await probed(url, end_seconds=0.1)
        assert (result.error, result.protocol) == (None, "initialize")
        gate.open()
    assert [record.message for record in caplog.records if record.name == "pallas.health"] == [
        "probe session not ended"
    ]


async def test_a_session_id_that_cannot_be_sent_back_is_no_trouble() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = ANSWER.encode()
        head = f"HTTP/1.1 200 OK\r\nMcp-Session-Id: \xe9\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode("latin-1") + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert (await probed(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")).error is None


async def test_a_probe_sends_the_servers_own_headers_and_says_what_it_accepts() -> None:
    async with stateless_downstream() as tools:
        await probed(tools.url, headers={"Authorization": f"Bearer {SECRET}", "X-Team": "a"}, forwards_bearer=True)
    (request,) = tools.recorder.requests
    assert request.bearer == SECRET
    assert request.headers["x-team"] == "a"
    assert request.headers["accept"] == "application/json, text/event-stream"


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, None), (403, None), (404, "HTTP 404 Not Found"), (500, "HTTP 500 Internal Server Error")],
)
async def test_a_server_that_wants_the_callers_token_is_reachable_when_it_refuses_none(
    status: int, error: str | None
) -> None:
    async with refusing(status) as server:
        assert (await probed(server.url, forwards_bearer=True)).error == error
    assert {request.bearer for request in server.recorder.requests} == {None}


@pytest.mark.parametrize(
    ("status", "forwards_bearer", "error"),
    [(401, True, None), (403, True, None), (401, False, "HTTP 400 Bad Request")],
)
async def test_a_server_of_the_modern_era_that_wants_the_callers_token_is_reachable_too(
    status: int, forwards_bearer: bool, error: str | None
) -> None:
    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = json.loads(await read_body(receive))  # it knows no `initialize`
        await respond(send, 400 if request["method"] == "initialize" else status, "")

    async with served(app) as (url, recorder):
        result = await probed(url, forwards_bearer=forwards_bearer)
    assert (result.error, result.protocol) == (error, None)
    assert [request.headers.get("mcp-method") for request in recorder.requests] == [None, "server/discover"]


@pytest.mark.parametrize("end", ["\n\n", "\r\r", "\r\n\r\n", ""])
async def test_an_answer_in_a_stream_may_come_after_other_events(end: str) -> None:
    events = ["event: message", ": hello", 'data: {"id": 7, "result": {}}', f"data: {ANSWER}"]
    stream = (end or "\n\n").join(events) + end
    async with answering(stream, content_type="text/event-stream") as (url, _):
        assert (await probed(url)).error is None


async def test_a_redirect_is_not_followed() -> None:
    async with stateless_downstream() as tools, refusing(307, {"Location": tools.url}) as server:
        result = await probed(server.url, headers={"Authorization": f"Bearer {SECRET}"})
        assert tools.recorder.requests == []
    assert result.error == "HTTP 307 Temporary Redirect"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<html>It works!</html>", "text/html"),
        ("", "application/json"),
        ("{", "application/json"),
        ("[1, 2]", "application/json"),
        ('"hello"', "application/json"),
        ('{"status": "ok"}', "application/json"),
        (b"\xff\xfe\x00", "application/json"),
        ("[" * 200_000, "application/json"),
        ("data: not json\n\n", "text/event-stream"),
        (": only a comment\n\n", "text/event-stream"),
        ("", "text/event-stream"),
        ('{"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "?"}}', "application/json"),
    ],
    ids=lambda value: repr(value[:60]),
)
async def test_an_answer_that_is_not_mcp_is_told(body: bytes | str, content_type: str) -> None:
    async with answering(body, content_type=content_type) as (url, _):
        assert (await probed(url)).error == f"not an MCP answer: HTTP 200 with {content_type}"


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_a_server_that_never_stops_talking_is_not_listened_to_for_ever(content_type: str) -> None:
    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await start_response(send, 200, content_type=content_type)
        gone = asyncio.create_task(until_disconnect(receive))
        while not gone.done():
            await send_part(send, "x" * 2**16)

    async with served(app) as (url, _):
        assert (await probed(url, probe_seconds=30)).error == "its answer is larger than 4 MiB"


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_a_server_that_begins_and_never_ends_costs_no_more(content_type: str) -> None:
    gate = Gate()

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await start_response(send, 200, content_type=content_type)
        await gate.enter()

    async with served(app) as (url, _):
        assert (await probed(url, probe_seconds=0.1)).error == "no answer within 0.1 s"


async def test_tls_spoken_to_a_plain_port_is_told() -> None:
    async with stateless_downstream() as tools:
        result = await probed(tools.url.replace("http://", "https://"))
    assert result.error == "TLS error"


@pytest.mark.parametrize("url", ["http://[::1", "nonsense", "http://127.0.0.1:port/mcp", "ftp://127.0.0.1/mcp"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    assert (await probed(url)).error


@pytest.mark.parametrize("value", [f"Bearer {SECRET}\n", f"Bearer {SECRET}✓", f"Bearer {SECRET}\x00"])
async def test_a_header_that_cannot_be_sent_is_told_without_showing_it(value: str) -> None:
    async with stateless_downstream() as tools:
        result = await probed(tools.url, headers={"Authorization": value})
    assert result.error == "a configured header holds a character that HTTP does not allow"
    assert SECRET not in repr(result)


async def test_an_error_nobody_foresaw_is_a_result_and_its_traceback_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def surprise(_: httpx.Request) -> httpx.Response:
        raise KeyError("unforeseen")

    async with httpx.AsyncClient(transport=httpx.MockTransport(surprise)) as client, TaskOwner() as tasks:
        result = await probe(Downstream("tools", "http://127.0.0.1:9/mcp"), client, tasks, HealthLimits())
    assert result.error == "the probe failed: KeyError"
    assert [record.exc_info is not None for record in caplog.records] == [True]
