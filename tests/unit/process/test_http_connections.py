"""Parts of connections by themselves: what an app receives, the limit for unread answers, rate-limited faults."""

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pallas_gateway.process.http_connections.connection import (
    LEAST_READ_BYTES,
    Connection,
    Faults,
    Settings,
    UnreadLimit,
)
from pallas_gateway.process.http_connections.inbox import Apps, Inbox
from pallas_gateway.telemetry.rate_limit import QUIET_SECONDS, RateLimit
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.waiting import Gate, eventually

PIECE = {"type": "http.request", "body": b"x", "more_body": True}
GONE = {"type": "http.disconnect"}


async def test_an_app_that_ended_is_not_waited_for() -> None:
    inbox = Inbox(1)
    await inbox.put(PIECE)
    waiting = asyncio.create_task(inbox.put(PIECE))
    await eventually(inbox.full, what="a full inbox")
    inbox.close()
    async with asyncio.timeout(20):
        await waiting
        for _ in range(5):
            await inbox.put(PIECE)


async def test_an_app_that_does_not_read_its_body_is_told_that_its_client_has_left() -> None:
    inbox = Inbox(2)
    for _ in range(2):
        await inbox.put(PIECE)
    async with asyncio.timeout(20):
        await inbox.put(GONE)
        assert await inbox.get() == GONE


async def test_what_came_before_a_client_left_is_received_first() -> None:
    inbox = Inbox(2)
    await inbox.put(PIECE)
    await inbox.put(GONE)
    assert [await inbox.get() for _ in range(2)] == [PIECE, GONE]


async def test_a_receive_that_was_cancelled_takes_no_message() -> None:
    inbox = Inbox(1)
    cancelled, waiting = (asyncio.create_task(inbox.get()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    async with asyncio.timeout(20):
        await inbox.put(PIECE)
        assert await waiting == PIECE
        await inbox.put(GONE)
        assert await inbox.get() == GONE
    assert cancelled.cancelled()


async def test_the_failure_of_an_app_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[object] = []

    async def app(*_: object) -> None:
        raise ValueError("broken")

    async def send(message: object) -> None:
        ended.append(message)

    apps = Apps(asyncio.get_running_loop(), Faults())
    async with apps:
        for _ in range(3):
            await apps.spawn_app(app, Settings(), {}, send)
    assert ended == [None] * 3
    assert [(record.message, record.levelno) for record in caplog.records] == [("request failed", logging.ERROR)]


def test_faults_of_connections_and_of_requests_are_logged_apart(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    for _ in range(3):
        faults.log("connection", ValueError("one"))
        faults.log("request", ValueError("two"))
    assert [record.message for record in caplog.records] == ["connection failed", "request failed"]


def test_a_line_that_is_written_again_says_how_many_were_left_out() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    assert [limit.passes("a"), limit.passes("a"), limit.passes("b"), limit.passes("a")] == [0, None, 0, None]
    now = QUIET_SECONDS
    assert [limit.passes("a"), limit.passes("b")] == [2, 0]


async def test_a_client_that_takes_nothing_for_a_whole_period_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        await UnreadLimit(0.01).until_taken(_for_ever, lambda: 10)


async def test_one_that_takes_enough_in_each_period_is_waited_for() -> None:
    enough = LEAST_READ_BYTES
    left = iter([3 * enough, 2 * enough, enough, 1])
    with pytest.raises(TimeoutError):
        await UnreadLimit(0.01).until_taken(_for_ever, lambda: next(left))
    assert list(left) == []


async def test_a_shorter_limit_counts_for_those_that_are_waited_for_already() -> None:
    unread, entered = UnreadLimit(60), Gate()
    waiting = asyncio.create_task(unread.until_taken(entered.enter, lambda: 1))
    await entered.wait_for_entered()
    unread.shorten(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 20)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(unread.until_taken(_for_ever, lambda: 1), 20)


async def test_a_limit_that_is_over_can_be_shortened() -> None:
    unread, entered = UnreadLimit(60), Gate()
    unread.shorten(0)
    waiting = asyncio.create_task(unread.until_taken(entered.enter, lambda: 1))
    await entered.wait_for_entered()
    asyncio.get_running_loop().call_soon(unread.shorten, 0)  # before the task that was cancelled goes on
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 20)


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_tls_connection_that_was_closed_has_no_socket_and_is_dropped_all_the_same() -> None:
    aborted: list[bool] = []
    writer = SimpleNamespace(
        transport=SimpleNamespace(abort=lambda: aborted.append(True)), get_extra_info=lambda _: None
    )
    unused: Any = None
    closed: Any = Connection(unused, asyncio.get_running_loop(), Settings(), unused, unused, unused, writer)  # type: ignore[arg-type]
    closed._drop()
    assert aborted == [True]


async def test_a_tls_connection_is_dropped_whose_client_does_not_answer_that_it_is_closed(tmp_path: Path) -> None:
    trusting = write_certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(tmp_path / TLS_FILES["certfile"], tmp_path / TLS_FILES["keyfile"])
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0, ssl=serving)
    async with server:
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=trusting)
        settings, unused = Settings(), cast("Any", None)
        settings.unread = UnreadLimit(0)
        connection: Any = Connection(
            unused, asyncio.get_running_loop(), settings, unused, unused, unused, await accepted
        )
        connection.writer.close()  # by the idle limit; its client's answer is not there yet
        await connection._closed()
        with suppress(OSError):
            client.close()
            await client.wait_closed()


async def test_a_large_body_is_read_in_large_pieces_with_other_work_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.tasks._LONG_SECONDS", 0)
    reader, done = asyncio.StreamReader(), list[int | str]()
    reader.feed_data(bytes(512 * 1024))
    reader.feed_eof()

    async def handle(event: Any) -> None:
        done.append(len(event.data))
        asyncio.get_running_loop().call_soon(done.append, "other work")

    unused: Any = None
    connection: Any = Connection(unused, asyncio.get_running_loop(), Settings(), unused, unused, reader, unused)
    connection.protocol = SimpleNamespace(handle=handle)
    await connection._read()

    assert done == [256 * 1024, "other work"] * 2
