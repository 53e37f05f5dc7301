"""HTTP/1.1 connections of clients that mean no good, on a real gateway."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from pallas_gateway.process.http_connections.connection import Connection
from tests.support.calling import ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import tool_params
from tests.support.gateway import Agent, Limits, Running, running, until_idle, write_project
from tests.support.guarded import STATIC_KEY, static_key
from tests.support.listener import HOST
from tests.support.pairs import pairs
from tests.support.scripted_llm import hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = (
    b"POST /agents/solo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\n"
)
LARGE = "x" * 12_000_000
"""More than the buffers of both ends of a connection hold."""
MODERN = "2026-07-28"
STILL = 0.05
STOP_SECONDS = 15  # a call gives up its client by itself after twice that


@asynccontextmanager
async def connection(served: Running) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HOST, served.gateway.addresses.registry_port)
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, whose body is read as well."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next((line.split(":")[1] for line in head.splitlines() if line.startswith("content-length:")), "0")
    await reader.readexactly(int(length))
    return int(head.split(" ")[1])


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "half a websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
}


async def test_an_upgrade_is_ignored(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"solo": Agent()})) as served:
        for upgrade in UPGRADES.values():
            async with connection(served) as (reader, writer):
                for _ in range(2):
                    writer.write(GET + upgrade + b"\r\n")
                    assert await status_of(reader) == 200, upgrade


async def test_a_request_with_two_lengths_is_refused_and_ends_the_connection(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"solo": Agent()})) as served, connection(served) as (reader, writer):
        writer.write(POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n")
        assert await status_of(reader) == 400
        assert await reader.read() == b""


@pairs(
    {
        "path": ["/agents/solo/mcp", "/mcp", "/v1/chat/completions", "/api/v1/agents/solo/chat"],
        "leaves": {"leaves": True, "stays": False},
    }
)
async def test_half_a_body_leaves_no_error_in_the_log(
    path: str, leaves: bool, tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.gateway.bodies.seconds = 30 if leaves else STILL
    settings = {"openai_api": True, "database": "sqlite:///threads.db"}
    async with running(write_project(tmp_path, {"solo": Agent()}, gateway=settings)) as served:
        async with connection(served) as (reader, writer):
            writer.write(POST.replace(b"/agents/solo/mcp", path.encode()) + b"Content-Length: 100\r\n\r\n{")
            if not leaves:
                assert await status_of(reader) == 408
                assert await reader.read() == b""
            else:
                await writer.drain()
        assert (await ask(served.url("solo"), "still here")).text == "still here"
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_clients_that_leave_before_they_are_accepted_leave_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(write_project(tmp_path, {"solo": Agent()})) as served:
        for _ in range(20):  # nothing here waits, so the gateway accepts them when they have left
            with socket.create_connection((HOST, served.gateway.addresses.registry_port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with connection(served) as (reader, writer):
            writer.write(GET + b"\r\n")
            assert await status_of(reader) == 200
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("before", [0, 1])
async def test_http2_with_prior_knowledge_is_refused_in_words(before: int, tmp_path: Path) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    async with running(write_project(tmp_path, {"solo": Agent()})) as served, connection(served) as (reader, writer):
        writer.write((GET + b"\r\n") * before + preface)
        assert [await status_of(reader) for _ in range(before)] == [200] * before
        said = (await reader.read()).decode()
    assert said.startswith("HTTP/1.1 400 ")
    assert said.endswith("\r\n\r\nThis server speaks HTTP/1.1 only. Use HTTP/1.1, or an ingress that speaks HTTP/2.\n")


async def test_a_tls_client_that_offers_http2_gets_http1(tmp_path: Path) -> None:
    client = write_certificate(tmp_path)
    client.set_alpn_protocols(["h2", "http/1.1"])
    tls = {key: f"../{name}" for key, name in TLS_FILES.items()}
    async with running(write_project(tmp_path / "project", {"solo": Agent()}, gateway={"tls": tls})) as served:
        port = served.gateway.addresses.registry_port
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.write(GET + b"\r\n")
        assert await status_of(reader) == 200
        writer.close()


async def test_a_half_sent_head_is_waited_for_only_so_long(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.connections.idle_seconds = STILL
    async with running(write_project(tmp_path, {"solo": Agent()})) as served, connection(served) as (reader, writer):
        writer.write(POST)
        assert await reader.read() == b""


@contextmanager
def deaf_caller(served: Running) -> Iterator[socket.socket]:
    """A client that calls the agent with a long message and does not read."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool_params("solo", {"message": LARGE})}
    body = json.dumps(call).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.connect((HOST, served.gateway.addresses.registry_port))
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        sending = asyncio.get_running_loop().run_in_executor(None, client.sendall, body)
        try:
            yield client
        finally:
            assert sending.done()


def is_answered(client: socket.socket) -> bool:
    """Whether some of the answer's large part has come."""
    try:
        return b"xxxx" in client.recv(1 << 14, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


async def test_an_answer_that_is_not_read_ends_its_connection_and_its_call(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.gateway.connections.unread_seconds = STILL
    async with running(write_project(tmp_path, {"solo": Agent()})) as served:
        with deaf_caller(served) as client:
            await eventually(lambda: is_answered(client), what="an answer")
            await until_idle(served)
            await eventually(lambda: _is_reset(client), what="the end of the connection")
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def _is_reset(client: socket.socket) -> bool:
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


async def test_a_client_that_does_not_read_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"solo": Agent()}, gateway={"drain_seconds": 600})
    with ExitStack() as clients:
        async with running(project) as served:
            client = clients.enter_context(deaf_caller(served))
            await eventually(lambda: is_answered(client), what="an answer")
            served.stop.set()
            await eventually(lambda: _refuses(served), STOP_SECONDS, what="the end of the drain")


async def _refuses(served: Running) -> bool:
    try:
        async with connection(served):
            return False
    except OSError:
        return True


async def test_a_stopping_gateway_reads_no_body_of_a_caller_without_a_token(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.bodies.rest_seconds = STILL
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate, say("done"))) as llm:
        auth = {"tokens": [static_key("run:agents")]}
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, gateway={"auth": auth})
        async with running(project) as served:
            call = asyncio.create_task(ask(served.url("solo"), bearer=STATIC_KEY))
            await gate.wait_for_entered()
            served.stop.set()
            await eventually(lambda: served.gateway.calls.draining, what="the drain")
            for path in (b"/agents/solo/mcp", b"/mcp"):
                async with connection(served) as (reader, writer):
                    writer.write(POST.replace(b"/agents/solo/mcp", path) + b"Content-Length: 100\r\n\r\n{")
                    assert await status_of(reader) == 401
            gate.open()
            assert (await call).text == "done"


_CHAT: dict[str, object] = {"model": "solo", "messages": [{"role": "user", "content": "hi"}]}
_META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
_CALL = {"name": "send_message", "arguments": {"message": "hi"}}
_ROUTING = f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: send_message\r\n"
DOORS: dict[str, tuple[str, str, dict[str, object]]] = {
    "initialize": ("/agents/solo/mcp", "", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _CALL}),
    "2026-07-28": (
        "/agents/solo/mcp",
        _ROUTING,
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**_CALL, "_meta": _META}},
    ),
    "/v1": ("/v1/chat/completions", "", _CHAT),
    "/v1 streamed": ("/v1/chat/completions", "", {**_CHAT, "stream": True}),
}


async def test_a_client_that_wants_no_further_request_gets_the_end_of_a_long_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes its side behind the last part, of which the client has not read the begin."""
    run = Connection.run

    async def with_little_room(self: Connection) -> None:
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        await run(self)

    monkeypatch.setattr(Connection, "run", with_little_room)
    answer = "0123456789" * 14_000
    async with scripted_llm(lambda _: say(answer)) as llm:
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, gateway={"openai_api": True})
        async with running(project) as served:
            for number, (path, headers, document) in enumerate(DOORS.values(), 1):
                with socket.socket() as client:
                    client.setblocking(False)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    loop, body = asyncio.get_running_loop(), json.dumps(document).encode()
                    await loop.sock_connect(client, (HOST, served.gateway.addresses.registry_port))
                    head = POST.decode().replace("/agents/solo/mcp", path)
                    head += f"{headers}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                    await loop.sock_sendall(client, head.encode() + body)
                    await eventually(lambda: len(served.gateway.calls.recent()) == number, what="an ended call")  # noqa: B023
                    read = bytearray()
                    while part := await loop.sock_recv(client, 65_536):
                        read += part
                assert read.endswith((b"0\r\n\r\n", b"}")), (path, len(read))
                assert len(read) > len(answer), path
