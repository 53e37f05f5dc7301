"""HTTP/2 with prior knowledge on a real gateway: a fault of one stream ends that stream only."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from hyperframe.frame import DataFrame, PriorityFrame

from tests.support.clients import tool_params
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.http2 import Http2Client, http2_client
from tests.support.scripted_llm import hang, say
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.gateway import Limits

    type Fault = Callable[[Http2Client], Awaitable[int | None]]

MCP = b"/agents/solo/mcp"
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool_params("solo", {"message": "hello"})}
CALL_HEADERS = {b"content-type": b"application/json", b"accept": b"application/json, text/event-stream"}
GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"localhost"))
MANY = 1500
STILL = 0.05
STREAMS = 100
"""Requests that a connection takes at once."""


async def non_ascii_path(client: Http2Client) -> int:
    return await client.request("/läuft".encode())


async def non_ascii_method(client: Http2Client) -> int:
    return await client.open([(b":method", b"G\xc3\x8bT"), *GET[1:], (b":path", b"/livez")])


async def connect_without_path(client: Http2Client) -> int:
    return await client.open([(b":method", b"CONNECT"), (b":authority", b"localhost:80")])


async def websocket(client: Http2Client) -> int:
    headers = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), *GET[1:], (b":path", b"/livez")]
    return await client.open(headers, end=False)


async def upper_case_header(client: Http2Client) -> int:
    return await client.open([*GET, (b":path", b"/livez"), (b"X-Upper", b"1")])


async def no_path(client: Http2Client) -> int:
    return await client.open(GET)


async def no_number_in_length(client: Http2Client) -> int:
    return await client.request(b"/livez", end=False, headers={b"content-length": b"x"})


async def longer_than_said(client: Http2Client) -> int:
    return await client.request(MCP, body=b"{}" * 10, headers={b"content-length": b"1"})


async def data_after_the_answer(client: Http2Client) -> int:
    stream = await client.request(b"/livez", end=False)
    await client.until_begun(stream)
    data = DataFrame(stream, data=b"late")
    await client.frames(data, data)
    return stream


async def data_after_the_end(client: Http2Client) -> int:
    stream = await client.request(b"/livez")
    await client.until_ended(stream)
    await client.frames(DataFrame(stream, data=b"late"))
    return stream


async def priorities(client: Http2Client) -> None:
    await client.frames(*(PriorityFrame(1001 + 2 * n, depends_on=0, stream_weight=1) for n in range(MANY)))


async def priority_of_itself(client: Http2Client) -> None:
    await client.frames(PriorityFrame(1001, depends_on=1001, stream_weight=1))


async def resets(client: Http2Client) -> None:
    for _ in range(300):
        await client.reset(await client.request(MCP, end=False))


async def more_than_a_thousand_requests(client: Http2Client) -> None:
    for _ in range(1002):
        await client.until_ended(await client.request(b"/livez"))


FAULTS: tuple[tuple[Fault, tuple[int, ...]], ...] = (
    (non_ascii_path, (400,)),
    (non_ascii_method, (400,)),
    (connect_without_path, (405,)),
    (websocket, (405,)),
    (upper_case_header, ()),
    (no_path, ()),
    (no_number_in_length, ()),
    (longer_than_said, ()),
    (data_after_the_answer, (405,)),
    (data_after_the_end, (200,)),
    (priorities, ()),
    (priority_of_itself, ()),
    (resets, ()),
    (more_than_a_thousand_requests, ()),
)
"""Each fault, or what Hypercorn takes for one, with the status of its answer; one without is reset."""


async def test_a_fault_of_one_stream_leaves_the_others_alone(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.gateway.bodies.rest_seconds = STILL
    gates: list[Gate] = []
    async with gateway_and_model(tmp_path, {"solo": Agent()}, lambda _: hang(gates[-1], say("heard"))) as (served, _):
        for fault, statuses in FAULTS:
            gates.append(Gate())
            async with http2_client(served.gateway.addresses.registry_port) as client:
                call = await client.request(MCP, body=json.dumps(CALL).encode(), headers=CALL_HEADERS)
                await gates[-1].wait_for_entered()
                caplog.clear()
                if (faulty := await fault(client)) is not None:
                    await client.until_ended(faulty)
                    found = tuple(client.statuses[one] for one in [faulty] if one in client.statuses)
                    assert (fault.__name__, found) == (fault.__name__, statuses)
                other = await client.request(b"/livez")
                await client.until_ended(other)
                gates[-1].open()
                await client.until_ended(call)
                assert (client.statuses[other], client.resets.get(call)) == (200, None), fault.__name__
                assert b'"text":"heard"' in client.bodies[call]
                assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_header_block_that_cannot_be_decompressed_ends_the_connection(tmp_path: Path) -> None:
    """What comes after it could be read as something else than was sent."""
    async with (
        running(write_project(tmp_path, {"solo": Agent()})) as served,
        http2_client(served.gateway.addresses.registry_port) as client,
    ):
        stream = await client.request(b"/livez", end=False)
        await client.bare_headers(stream, b"\xff\xff\xff\xff\xff\xff")
        await client.until_closed()


async def test_a_request_too_many_is_refused_and_the_others_are_answered(tmp_path: Path) -> None:
    async with (
        running(write_project(tmp_path, {"solo": Agent()})) as served,
        http2_client(served.gateway.addresses.registry_port) as client,
    ):
        first, *_, last = [await client.request(MCP, end=False, headers=CALL_HEADERS) for _ in range(STREAMS + 1)]
        await client.until_ended(last)
        assert client.resets == {last: 7}  # REFUSED_STREAM
        await client.data(first, json.dumps(CALL).encode(), end=True)
        await client.until_ended(first)
        assert b'"text":"hello"' in client.bodies[first]


@pytest.mark.parametrize("opened", [0, 1], ids=["a preface alone", "a request that was cancelled"])
async def test_a_connection_without_requests_is_closed(opened: int, tmp_path: Path, limits: Limits) -> None:
    limits.gateway.connections.idle_seconds = STILL
    async with (
        running(write_project(tmp_path, {"solo": Agent()})) as served,
        http2_client(served.gateway.addresses.registry_port) as client,
    ):
        for _ in range(opened):
            await client.reset(await client.request(MCP, end=False))
        await client.until_closed()


async def test_a_body_that_does_not_come_ends_its_stream_with_408(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.bodies.seconds = STILL
    async with (
        running(write_project(tmp_path, {"solo": Agent()})) as served,
        http2_client(served.gateway.addresses.registry_port) as client,
    ):
        half = await client.request(MCP, body=b"{", end=False, headers=CALL_HEADERS)
        await client.until_ended(half)
        await eventually(lambda: half in client.resets, what="a request to send no more")
        assert client.statuses[half] == 408
        other = await client.request(b"/livez")
        await client.until_ended(other)
        assert client.statuses[other] == 200


async def test_an_answer_that_is_not_read_ends_its_stream_and_its_call(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.gateway.connections.unread_seconds = STILL
    call = {**CALL, "params": tool_params("solo", {"message": "x" * 1_000_000})}
    async with (
        running(write_project(tmp_path, {"solo": Agent()})) as served,
        http2_client(served.gateway.addresses.registry_port, credit=False) as client,
    ):
        stream = await client.request(MCP, body=json.dumps(call).encode(), headers=CALL_HEADERS)
        await client.until_ended(stream)
        assert client.resets == {stream: 8}  # CANCEL
        await until_idle(served)
        assert not client.is_closed
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
