"""What a worker and its parent tell each other, as lines."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pallas_gateway.calls.cancellation import RequestKey
from pallas_gateway.identity.secret import Secret
from pallas_gateway.workers.messages import (
    LONGEST_LINE,
    LONGEST_TEXT,
    Cancelled,
    Failed,
    Garbled,
    Message,
    Ready,
    Stopped,
    line_of,
    message_of,
    messages_on,
)

LONG = "\N{GRINNING FACE}" * (2 << 20)
KEY = RequestKey.of("root", "session-1", Secret("token-1"), 7)


async def read(data: bytes) -> list[Message | Garbled]:
    """Everything that a channel with these bytes gives."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    reader.feed_data(data)
    reader.feed_eof()
    return [message async for message in messages_on(reader)]


def test_a_cancellation_comes_out_as_it_went_in() -> None:
    cancelled = message_of(line_of(Cancelled.of(KEY)))
    assert isinstance(cancelled, Cancelled)
    assert cancelled.key == KEY


@pytest.mark.parametrize("request_id", ["x" * (2 << 20), LONG, "\ud800", 10**4000])
def test_a_cancellation_is_as_short_as_ever_whatever_a_client_takes_for_an_id(request_id: str | int) -> None:
    line = line_of(Cancelled.of(RequestKey.of("root", "s" * 100_000, Secret("t" * 100_000), request_id)))
    assert len(line) == len(line_of(Cancelled.of(KEY))) < 1000


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
    assert await read(line_of(Stopped()) + line + b"\n" + line_of(Stopped())) == [Stopped(), Garbled()]
    [record] = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "message between workers cannot be read")


async def test_a_line_that_was_not_finished_is_none() -> None:
    assert await read(line_of(Stopped()) + line_of(Failed("because"))[:-1]) == [Stopped()]
