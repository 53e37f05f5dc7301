"""What a worker and its parent tell each other, as lines."""

from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.identity.secret import Secret
from pallas_gateway.workers.messages import (
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_UNREAD,
    Answered,
    Cancelled,
    Close,
    Failed,
    Message,
    Ready,
    Sender,
    Stopped,
    Unreadable,
    line_of,
    message_of,
    messages_on,
)

LONG = "\N{GRINNING FACE}" * (2 << 20)
KEY = RequestKey.of("root", "session-1", Secret("token-1"), 7)


async def read(data: bytes) -> list[Message | Unreadable]:
    """Everything that a channel with these bytes gives."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    reader.feed_data(data)
    reader.feed_eof()
    return [message async for message in messages_on(reader)]


def test_a_cancellation_comes_out_as_it_went_in() -> None:
    cancelled = message_of(line_of(Cancelled(KEY)))
    assert isinstance(cancelled, Cancelled)
    assert cancelled.key == KEY


@pytest.mark.parametrize("request_id", ["x" * (2 << 20), LONG, "\ud800", 10**4000])
def test_a_cancellation_is_as_short_as_ever_whatever_a_client_takes_for_an_id(request_id: str | int) -> None:
    line = line_of(Cancelled(RequestKey.of("root", "s" * 100_000, Secret("t" * 100_000), request_id)))
    assert len(line) == len(line_of(Cancelled(KEY))) < 1000


def test_an_answer_comes_out_as_it_went_in_however_it_is_written() -> None:
    response = {"id": "question-1", "result": {"action": "accept", "content": {"text": "\ud800é" * 20_000}}}
    answered = message_of(line_of(Answered.of(KEY, response)))
    assert isinstance(answered, Answered)
    assert (answered.key, json.loads(answered.response)) == (KEY, response)


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
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({"is": "Garbled"}).encode(),
        json.dumps({"is": "Ready"}).encode(),
        json.dumps({"is": ["Ready"]}).encode(),
    ],
    ids=range(9),
)
async def test_after_a_line_that_is_no_message_nothing_is_read(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert await read(line_of(Stopped()) + line + b"\n" + line_of(Stopped())) == [Stopped(), Unreadable()]
    [record] = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "worker message unreadable")


async def test_a_line_that_was_not_finished_is_none() -> None:
    assert await read(line_of(Stopped()) + line_of(Failed("because"))[:-1]) == [Stopped()]


async def test_what_may_be_lost_is_dropped_while_nothing_is_read_and_the_rest_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, other = await asyncio.open_connection(sock=theirs, limit=LONGEST_LINE)
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # it hangs
    sender, cancelled = Sender(writer, {"worker": 1}), Cancelled(KEY)
    for _ in range(20_000):
        sender.send(cancelled)
    unread = sender.unread
    sender.send(Close())
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    seen = 0
    async for message in messages_on(reader):
        if message == Close():
            break
        seen += 1
    sender.send(cancelled)
    again = await anext(messages_on(reader))
    for _ in range(20_000):
        sender.send(cancelled)
    for one in (writer, other):
        one.close()
    sender.send(cancelled)  # the other side is gone
    assert unread < MOST_UNREAD + 1000
    assert seen < 20_000
    assert again == cancelled
    what = "worker messages dropped"
    assert [record.message for record in caplog.records] == [what, what]  # once for each time
