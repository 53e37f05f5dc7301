"""Bodies that come slowly, or not at all: what is hard to bring about over a real connection."""

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from pallas_gateway.doors.http.bodies import AnswerAfterBody
from pallas_gateway.limits import BodyLimits
from tests.support.asgi import AsgiClient, Message, Receive, Scope, Send, answering, piece, respond_json
from tests.support.waiting import cancelled, eventually


def guard(app: Any, **limits: float) -> AnswerAfterBody:
    return AnswerAfterBody(app, BodyLimits(**limits))


@pytest.mark.parametrize(
    ("status", "pieces", "limits"),
    [
        (413, [piece(more=True), piece(more=True), piece(more=False)], {}),
        (404, [piece(more=True), {"type": "http.disconnect"}], {}),
        (413, [piece(more=True)], {"rest_seconds": 0.05}),
        (200, [piece(more=True)] * 30 + [piece(more=False)], {}),
    ],
    ids=["refusal", "client that left", "body without end", "answer"],
)
async def test_an_answer_is_sent_once_the_body_was_read_or_nobody_sends_more(
    status: int, pieces: list[Message], limits: dict[str, float]
) -> None:
    client = AsgiClient(pieces)
    async with asyncio.timeout(20):
        await guard(answering(status), **limits)(client.scope, client.receive, client.send)

    assert (client.pieces, client.status) == ([], status)


async def test_a_body_without_end_is_read_on_while_it_is_answered() -> None:
    is_answered = asyncio.Event()
    client = AsgiClient([piece(more=True)])

    async def receive() -> Message:
        if client.pieces:
            return client.pieces.pop()
        await is_answered.wait()  # more comes only then
        client.pieces = [{"type": "http.disconnect"}]
        return piece(more=True)

    async def send(message: Message) -> None:
        """As Hypercorn: the end of an answer waits until what has come is read."""
        client.sent.append(message)
        is_answered.set()
        if message["type"] == "http.response.body":
            await eventually(lambda: not client.pieces, what="an end of reading")

    async with asyncio.timeout(20):
        await guard(answering(200), rest_seconds=0.05)(client.scope, receive, send)

    assert (client.pieces, client.status) == ([], 200)


async def test_a_body_that_does_not_come_is_a_client_that_left_and_is_answered_with_408() -> None:
    received: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.extend([await receive() for _ in range(3)])
        await respond_json(send, 400, {})  # to half a request

    client = AsgiClient([piece(more=True)])
    async with asyncio.timeout(20):
        await guard(app, seconds=0.01, bytes_per_second=1 << 30)(client.scope, client.receive, client.send)

    assert [message["type"] for message in received] == ["http.request", *["http.disconnect"] * 2]
    assert client.status == 408


async def test_a_client_that_still_sends_when_the_gateway_stops_is_told_to_come_again() -> None:
    never = asyncio.Event()

    async def receive() -> Message:
        await never.wait()
        raise AssertionError

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    client = AsgiClient([])
    answering = asyncio.create_task(guard(reading)(client.scope, receive, client.send))
    await asyncio.sleep(0)
    await cancelled(answering)
    assert client.status == 503
    assert dict(client.sent[0]["headers"])[b"retry-after"] == b"5"


async def test_each_part_of_a_body_gives_the_rest_more_time() -> None:
    client, rest = AsgiClient([piece(more=True)]), asyncio.Event()

    async def receive() -> Message:
        if not client.pieces:
            await rest.wait()
            return piece(more=False)
        asyncio.get_running_loop().call_soon(rest.set)
        return client.pieces.pop()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await respond_json(send, 200, {})

    async with asyncio.timeout(20):
        await AnswerAfterBody(reading, BodyLimits(seconds=0, bytes_per_second=1000 / 60))(
            client.scope, receive, client.send
        )

    assert client.status == 200


async def test_an_app_that_gives_up_half_a_request_leaves_no_answer() -> None:
    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    client = AsgiClient([])
    await guard(reading)(client.scope, client.receive, client.send)

    assert client.sent == []


async def test_a_refusal_after_a_body_that_was_read_waits_for_nothing() -> None:
    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await respond_json(send, 400, {})

    client = AsgiClient([piece(more=False)])
    async with asyncio.timeout(20):
        await guard(reading)(client.scope, client.receive, client.send)

    assert client.status == 400
