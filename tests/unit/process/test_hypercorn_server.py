"""Hypercorn on bound sockets: a port that nobody accepts on any more refuses connections."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import hypercorn.asyncio.run
import pytest
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Updated
from hypercorn.protocol.h11 import H11Protocol
from starlette.types import ASGIApp

from pallas_gateway.errors import PlatformError
from pallas_gateway.limits import ConnectionLimits
from pallas_gateway.process.http_connections.connection import Connection, Settings, install
from pallas_gateway.process.hypercorn_server import HypercornServer
from pallas_gateway.process.sockets import bind
from tests.support.asgi import Receive, Scope, Send, http_only, respond_json, until_disconnect
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.configuration import load_deployment
from tests.support.gateway import Agent, write_project
from tests.support.listener import HOST
from tests.support.waiting import Gate, eventually


class Page:
    """An app that answers every request with 200 once `gate` lets it."""

    def __init__(self) -> None:
        self.gate = Gate()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate.enter()
        await respond_json(send, 200, {})


@asynccontextmanager
async def accepting(
    page: ASGIApp, path: Path, *, unread_seconds: float = 60, **gateway: Any
) -> AsyncGenerator[tuple[HypercornServer, int]]:
    """`page` accepting connections, and the port. The test ends it; the sockets are closed at the latest after it."""
    write_project(path, {"echo": Agent()}, gateway=gateway)
    configuration = load_deployment(path / "agents.yaml", environ={})
    with ExitStack() as sockets:
        listeners = bind(configuration, sockets)
        accepting = HypercornServer(page, listeners, configuration, ConnectionLimits(unread_seconds=unread_seconds))
        serving = await accepting.__aenter__()
        yield accepting, next(iter(listeners.sockets))
        assert serving.done()


async def test_a_port_refuses_connections_while_the_last_answers_are_still_under_way(tmp_path: Path) -> None:
    page = Page()
    async with accepting(page, tmp_path) as (server, port), httpx.AsyncClient(trust_env=False) as client:
        asked = asyncio.create_task(client.get(f"http://{HOST}:{port}/"))
        await page.gate.wait_for_entered()
        closing = asyncio.create_task(server.__aexit__())
        await eventually(lambda: _refuses(port), what="a refused connection")
        assert not closing.done()
        page.gate.open()
        assert (await asked).status_code == 200
        await closing


async def test_a_connection_that_nobody_has_accepted_yet_is_told_that_the_gateway_stops(tmp_path: Path) -> None:
    async with accepting(Page(), tmp_path) as (server, port):
        await eventually(lambda: _answers(port), what="a listener that accepts")
        with socket.create_connection((HOST, port), timeout=20) as late:  # blocking: the loop has no chance to accept
            late.sendall(b"POST /agents/echo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
            closing = asyncio.create_task(asyncio.to_thread(late.recv, 4096))
            await server.__aexit__()
            said = (await closing).decode()
    assert said.startswith("HTTP/1.1 503 ")
    assert "Retry-After: 5\r\n" in said


async def test_one_that_wants_tls_is_closed(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    async with accepting(Page(), tmp_path / "project", tls={k: f"../{v}" for k, v in TLS_FILES.items()}) as (
        server,
        port,
    ):
        await eventually(lambda: _answers(port), what="a listener that accepts")
        with socket.create_connection((HOST, port), timeout=20) as late:
            await server.__aexit__()
            assert await asyncio.to_thread(late.recv, 4096) == b""


def test_a_hypercorn_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypercorn.asyncio.run, "TCPServer", TCPServer)
    monkeypatch.delattr(H11Protocol, "_send_h11_event")
    with pytest.raises(PlatformError, match=r"hypercorn 0\.\S+ does not fit: H11Protocol\._send_h11_event is missing"):
        install()
    assert hypercorn.asyncio.run.TCPServer is TCPServer  # type: ignore[attr-defined]


async def test_an_answer_comes_whole_though_nobody_reads_the_body_of_its_request(tmp_path: Path) -> None:
    chunks = b"1\r\na\r\n" * 30 + b"0\r\n\r\n"  # more than Hypercorn keeps for an app
    async with accepting(InPieces(b"one", b"two"), tmp_path) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        writer.close()
        await server.__aexit__()


async def test_pieces_come_at_once_after_large_answers_that_nobody_waited_for(tmp_path: Path) -> None:
    large = b"x" * 8_000_000
    app = Slow(large)
    async with accepting(app, tmp_path) as (server, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        await app.begun.wait()  # and waits, as nobody reads
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(b"7a1200\r\n") + len(large) + 2)
            assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"5\r\nfirst\r\n")).startswith(b"HTTP/1.1 200")
        app.gate.open()
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nlast\r\n0\r\n\r\n"
        writer.close()
        await server.__aexit__()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_client_that_reads_nothing_is_reset_and_its_app_learns_of_it(
    tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = write_certificate(tmp_path)
    gateway = {"tls": {key: f"../{name}" for key, name in TLS_FILES.items()}} if tls else {}
    app = Endless()
    async with accepting(app, tmp_path / "project", unread_seconds=0.05, **gateway) as (server, port):
        with await asyncio.to_thread(_asked, port, context if tls else None) as client:
            await asyncio.wait_for(app.has_left.wait(), 20)
            ended = errno.ECONNRESET
            await eventually(lambda: client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == ended, what="a reset")
        await server.__aexit__()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def _asked(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A connection whose client has asked and reads nothing."""
    client = socket.create_connection((HOST, port), timeout=20)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    connection = context.wrap_socket(client, server_hostname="localhost") if context else client
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


class Endless:
    """An app that answers without end, until its client has left."""

    def __init__(self) -> None:
        self.has_left = asyncio.Event()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        leaving = asyncio.create_task(until_disconnect(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not leaving.done():
            await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})
            await asyncio.wait({leaving}, timeout=0)
        self.has_left.set()


class Slow:
    """An app that answers with `large` at once, and to `/slow` in two pieces, the second when `gate` is open."""

    def __init__(self, large: bytes) -> None:
        self.large = large
        self.begun = asyncio.Event()
        self.gate = Gate()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.begun.set()
        if scope["path"] == "/large":
            await send({"type": "http.response.body", "body": self.large})
            return
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await self.gate.enter()
        await send({"type": "http.response.body", "body": b"last"})


class InPieces:
    """An app whose answers come in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in self.pieces:
            more = piece is not self.pieces[-1]
            await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _answers(port: int) -> bool:
    return not await _refuses(port)


async def _refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it came in the very moment
        return False
    writer.close()
    return False


async def test_a_connection_that_has_ended_does_not_wait_for_another_request() -> None:
    """An answer may end after its client has hung up, and would have Hypercorn wait as long as for any client."""
    reader = asyncio.StreamReader()
    reader.feed_eof()
    anything: Any = None
    connection = Connection(anything, asyncio.get_running_loop(), Settings(), anything, anything, reader, anything)
    connection.protocol = Deaf()  # type: ignore[assignment]
    async with TaskGroup(asyncio.get_running_loop()) as tasks:
        connection._task_group = tasks
        await connection._read_data()
        await connection.protocol_send(Updated(idle=True))

        assert [task for task in asyncio.all_tasks() if "_idle_timeout" in repr(task)] == []


class Deaf:
    async def handle(self, event: object) -> None:
        """Nobody is there."""
