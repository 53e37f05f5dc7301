"""Responses that take long: clients that leave, silences, and the last part."""

import asyncio
import re
from typing import Any

import pytest

from pallas_gateway.long_responses import ServerSentEvents
from tests.support.asgi import Wire
from tests.support.waiting import Gate, cancelled, eventually


def quiet(wire: Wire) -> ServerSentEvents:
    """A response that is never kept alive."""
    return ServerSentEvents(wire.receive, wire.send, silence_seconds=3600)


async def test_a_block_is_cancelled_when_the_client_leaves_and_left_without_an_error() -> None:
    wire, gate = Wire(), Gate()

    async def respond() -> str:
        async with quiet(wire).watched():
            await gate.enter("work")
        return "left"

    answering = asyncio.create_task(respond())
    await gate.wait_for_entered()
    wire.left.set()
    assert (await asyncio.wait_for(answering, 20), answering.cancelling()) == ("left", 0)
    assert gate.cancelled == ["work"]


async def test_a_block_that_others_cancel_is_cancelled_and_one_that_fails_fails() -> None:
    gate = Gate()

    async def respond() -> None:
        async with quiet(Wire()).watched():
            await gate.enter("work")

    answering = asyncio.create_task(respond())
    await gate.wait_for_entered()
    await cancelled(answering)
    with pytest.raises(ValueError, match="broken"):
        async with quiet(Wire()).watched():
            raise ValueError("broken")


async def test_a_client_that_cannot_be_watched_has_left(caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> dict[str, Any]:
        raise ValueError("broken")

    async with ServerSentEvents(receive, Wire().send).watched():
        await asyncio.Event().wait()
    assert [record.message for record in caplog.records] == ["client of a call can be watched no longer, the call ends"]


async def test_a_silent_stream_is_kept_alive_from_when_it_is_asked_for() -> None:
    wire = Wire()
    stream = ServerSentEvents(wire.receive, wire.send, silence_seconds=0)
    async with stream.watched():
        for _ in range(20):
            await asyncio.sleep(0)
        assert not stream.has_begun
        stream.keep_alive()
        stream.keep_alive()
        await eventually(lambda: len(wire.sent) > 2, what="comments")
        await stream.end(b"data: 1\n\n")
    assert re.fullmatch(rb"(: keep-alive\n\n){2,}data: 1\n\n", wire.body)
    assert [message["type"] for message in wire.sent[:2]] == ["http.response.start", "http.response.body"]
    assert [message["more_body"] for message in wire.sent[1:]] == [True] * (len(wire.sent) - 2) + [False]


async def test_a_stream_that_speaks_gets_no_comments() -> None:
    wire = Wire()
    stream = quiet(wire)
    async with stream.watched():
        stream.keep_alive()
        await stream.data("1")
    await stream.end()
    assert wire.body == b"data: 1\n\n"


async def test_a_response_that_ends_is_neither_watched_nor_commented_on() -> None:
    wire = Wire()
    stream = ServerSentEvents(wire.receive, wire.send, silence_seconds=0)
    async with stream.watched():
        stream.keep_alive()
        assert not await stream.unwatch()
        wire.left.set()  # as the server does that closes the connection behind the last part
        for _ in range(20):
            await asyncio.sleep(0)
        await stream.end(b"all")
    assert (wire.body, stream.has_left) == (b"all", False)


async def test_a_block_that_others_cancel_while_its_client_leaves_is_cancelled() -> None:
    wire, gate, cleaning = Wire(), Gate(), Gate()

    async def respond() -> None:
        async with quiet(wire).watched():
            try:
                await gate.enter()
            finally:
                await cleaning.enter()

    answering = asyncio.create_task(respond())
    await gate.wait_for_entered()
    wire.left.set()
    await cleaning.wait_for_entered()
    await cancelled(answering)
