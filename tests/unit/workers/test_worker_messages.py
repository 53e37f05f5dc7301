"""What a worker and its parent tell each other, as lines."""

from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.identity.secret import Secret
from pallas_gateway.workers.worker_messages import (
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_UNREAD,
    Cancelled,
    Close,
    Failed,
    GivenBack,
    NotReloaded,
    Ready,
    Stopped,
    Used,
    WorkerMessage,
    WorkerSender,
    line_of,
    message_of,
    receive,
)
from tests.support.waiting import eventually

LONG = "\N{GRINNING FACE}" * (2 << 20)
KEY = RequestKey.of("root", "session-1", Secret("token-1"), 7)


async def read(data: bytes) -> list[WorkerMessage]:
    """Everything that a channel with these bytes gives."""
    reader, messages = asyncio.StreamReader(limit=LONGEST_LINE), list[WorkerMessage]()
    reader.feed_data(data)
    reader.feed_eof()
    await receive(reader, messages.append)
    return messages


def test_a_cancellation_comes_out_as_it_went_in() -> None:
    cancelled = message_of(line_of(Cancelled(KEY)))
    assert isinstance(cancelled, Cancelled)
    assert cancelled.key == KEY


@pytest.mark.parametrize("request_id", ["x" * (2 << 20), LONG, "\ud800", 10**4000])
def test_a_cancellation_is_as_short_as_ever_whatever_a_client_takes_for_an_id(request_id: str | int) -> None:
    line = line_of(Cancelled(RequestKey.of("root", "s" * 100_000, Secret("t" * 100_000), request_id)))
    assert len(line) == len(line_of(Cancelled(KEY))) < 1000


@pytest.mark.parametrize("kind", [Ready, Failed])
async def test_a_long_text_is_cut_so_that_its_line_can_be_read(kind: type[Ready | Failed]) -> None:
    line = line_of(kind(LONG))
    assert len(line) < LONGEST_LINE
    assert await read(line) == [kind(LONG[: LONGEST_TEXT - 1] + "…")]


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (LONGEST_LINE + 1),
        b"no JSON",
        b"\xff",
        b"0",
        b"{}",
        b"[" * 100_000,
        json.dumps({"is": "Garbled"}).encode(),
        json.dumps({"is": "Ready"}).encode(),
        json.dumps({"is": ["Ready"]}).encode(),
    ],
    ids=range(9),
)
async def test_a_line_that_is_no_message_is_logged_and_the_next_one_is_read(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert await read(line_of(Stopped()) + line + b"\n" + line_of(Close())) == [Stopped(), Close()]
    [record] = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "worker message unreadable")


async def test_a_message_that_cannot_be_acted_on_is_logged_and_the_next_one_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader, taken = asyncio.StreamReader(limit=LONGEST_LINE), list[WorkerMessage]()

    def take(message: WorkerMessage) -> None:
        taken.append(message)
        if isinstance(message, Stopped):
            raise ConnectionResetError("of something else")

    reader.feed_data(line_of(Stopped()) + line_of(Close()))
    reader.feed_eof()
    await receive(reader, take)
    assert taken == [Stopped(), Close()]
    [record] = caplog.records
    assert (
        vars(record).items()
        >= {"levelno": logging.ERROR, "message": "worker message failed", "kind": "Stopped"}.items()
    )


async def test_a_line_that_was_not_finished_is_none() -> None:
    assert await read(line_of(Stopped()) + line_of(Failed("because"))[:-1]) == [Stopped()]


async def test_reports_are_dropped_while_nothing_is_read_and_what_calls_wait_for_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, other = await asyncio.open_connection(sock=theirs, limit=LONGEST_LINE)
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # it hangs
    sender, report = WorkerSender(writer, {"worker": 1}), NotReloaded("because " * 20)
    for _ in range(20_000):
        sender.send(report)
    unread = sender.unread
    needed: list[WorkerMessage] = [
        Cancelled(KEY),
        Used("ticket", 1.0),
        GivenBack("ticket"),
        Close(),
    ]
    for message in 100 * needed:
        sender.send(message)
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    seen: list[WorkerMessage] = []
    receiving = asyncio.create_task(receive(reader, seen.append))
    await eventually(lambda: seen.count(Close()) == 100, what="all that is needed")
    reports = seen.count(report)
    sender.send(report)
    await eventually(lambda: seen[-1] == report, what="a report")
    for _ in range(20_000):
        sender.send(report)
    for one in (writer, other):
        one.close()
    sender.send(report)  # the other side is gone
    await receiving
    assert unread < MOST_UNREAD + 1000
    assert reports < 20_000
    assert seen[reports : reports + 400] == 100 * needed
    what = "worker messages dropped"
    assert [record.message for record in caplog.records] == [what, what]  # once for each time
