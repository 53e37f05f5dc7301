"""A client that leaves or cancels stops the spending: the loop, the model's request, the downstream's call, peers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import (
    EACH_ERA,
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    Connect,
    RawCall,
    RawClient,
    raw_client,
    tool_params,
)
from tests.support.crowds import crowd
from tests.support.gateway import Agent, until_idle
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say, stream
from tests.support.waiting import Gate, eventually
from tests.support.watching import EACH_VERSION, TOKEN, Stage, calling, speaker, stage, watch

pytestmark = [pytest.mark.crowd, pytest.mark.usefixtures("brief_sockets")]
INITIALIZE = "2025-06-18"

# What the agents are busy with, by what they were told; and how many LLM requests that takes.
SCENES = {"streams": 1, "hangs": 1, "tool": 1, "peer hangs": 2, "peer tool": 2}


@asynccontextmanager
async def busy_stage(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Stage, Gate]]:
    """`root` and its peer `peer`, both with `tools`. Models are held at the gate, tools at `tools.gate`."""
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        told = request.last_user_text
        if request.tool_results:
            return say("and on")
        if told.startswith("peer "):
            return call_tools([("peer__send_message", {"message": told.removeprefix("peer ")})])
        if told == "tool":
            return call_tools([("tools__slow", {"label": speaker(request)})])
        return stream(["Once ", "upon ", "a time."], gate) if told == "streams" else hang(gate)

    with reserved_port() as port:
        agents = {"root": Agent(["tools", "peer"]), "peer": Agent(["tools"], settings={"port": port})}
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with stage(path, script, agents, peers=servers, gateway=gateway) as staged:
            yield staged, gate


async def until_busy(staged: Stage, gate: Gate, scene: str, count: int = 1) -> None:
    """Return once the model, or the downstream, is held in the middle of `count` calls."""
    await (staged.tools.gate if scene.endswith("tool") else gate).wait_for_entered(count)


async def assert_stopped(staged: Stage, scene: str, count: int = 1) -> None:
    """What was under way was aborted, nothing else was asked, and everything the calls held is released."""
    if scene.endswith("tool"):
        await staged.tools.gate.wait_for_cancelled(count)
        assert staged.llm.aborted == []
    else:
        await staged.llm.wait_for_aborted(count)
    await until_released(staged)
    assert len(staged.llm.requests) == SCENES[scene] * count


async def until_released(staged: Stage) -> None:
    await until_idle(staged.served)
    await staged.llm.wait_until_idle()
    await staged.tools.recorder.wait_until_idle()
    await eventually(lambda: not staged.served.gateway.calls.started, what="no call left")
    for agent in staged.served.gateway.agents:
        assert staged.served.metric("pallas_calls_in_flight", agent=agent) == 0


async def cancel(client: RawClient, call: RawCall, **headers: str) -> None:
    """Send `notifications/cancelled` for `call`, as that client does or with other headers."""
    params = {"requestId": call.request_id, "reason": "no longer wanted"}
    body = client.body_of("notifications/cancelled", params, request_id=None)
    sent = {**client.headers_of("notifications/cancelled"), **headers}
    response = await client.post(body, headers={name: value for name, value in sent.items() if value})
    assert response.status_code == 202


@pairs({"scene": ["streams", "tool", "peer hangs"], "version": EACH_VERSION})
async def test_a_closed_stream_stops_whatever_the_call_was_doing(scene: str, version: str, tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate):
        before = snapshot()
        async with calling(staged.url("root"), scene, version=version) as (_, call):
            await until_busy(staged, gate, scene)
            await call.vanish()
            await assert_stopped(staged, scene)
        await assert_nothing_left(before)

        assert staged.served.metric("pallas_send_message_total", agent="root", outcome="error") == 1


@pytest.mark.parametrize("scene", ["hangs", "peer tool"])
async def test_a_cancelled_notification_on_another_post_stops_the_call(
    scene: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.calls")
    async with busy_stage(tmp_path) as (staged, gate):
        before = snapshot()
        async with calling(staged.url("root"), scene, version=INITIALIZE) as (client, call):
            await until_busy(staged, gate, scene)
            await cancel(client, call)
            reply = await call.reply()
            await assert_stopped(staged, scene)
        await assert_nothing_left(before)

        assert reply.result["isError"]
        facts = reply.result["_meta"]["pallas/call"]
        assert facts["stop_reason"] == "cancelled"
        [line] = [vars(one) for one in caplog.records if one.msg == "call ended" and vars(one)["agent"] == "root"]
        assert (facts["iterations"], facts["usage"]) == (line["iterations"], line["tokens"])
        assert facts["iterations"] > 0
        assert staged.served.metric("pallas_send_message_total", agent="root", outcome="error") == 1


@pytest.mark.parametrize("connect", EACH_ERA)
async def test_an_sdk_client_can_cancel_and_go_on(connect: Connect, tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), connect(staged.url("root"), bearer="alice") as client:
        call = asyncio.ensure_future(client.call_tool("send_message", {"message": "hangs"}))
        await until_busy(staged, gate, "hangs")
        call.cancel()
        await assert_stopped(staged, "hangs")
        gate.open()
        answer = await client.call_tool("send_message", {"message": "hangs"})

    assert not answer.is_error


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_cancelled_call_makes_room_for_the_next_that_still_waits(version: str, tmp_path: Path) -> None:
    async with busy_stage(tmp_path, max_in_flight=1, queue_seconds=30) as (staged, gate):
        async with calling(staged.url("root"), "hangs", version=INITIALIZE) as (client, call):
            await until_busy(staged, gate, "hangs")
            async with (
                calling(staged.url("root"), version=version) as (_, leaving),
                calling(staged.url("root"), "queued") as (_, queued),
            ):
                calls = staged.served.gateway.calls
                await eventually(lambda: len(calls.running()) == 3, what="both waiting for their turn")
                await leaving.vanish()
                await cancel(client, call)
                await gate.wait_for_entered(2)
                gate.open()
                reply = await queued.reply()

        assert [request.last_user_text for request in staged.llm.requests] == ["hangs", "queued"]
        assert reply.result["content"][0]["text"] == "released"
        await until_released(staged)


async def test_nobody_cancels_anothers_call(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), AsyncExitStack() as stack:
        client, mine = await stack.enter_async_context(
            calling(staged.url("root"), "hangs", version=INITIALIZE, bearer="alice")
        )
        await until_busy(staged, gate, "hangs")
        other, theirs = await stack.enter_async_context(
            calling(staged.url("root"), "streams", version=INITIALIZE, bearer="alice")
        )
        await until_busy(staged, gate, "hangs", 2)
        assert (mine.request_id, client.session_id) != (theirs.request_id, other.session_id)
        assert mine.request_id == theirs.request_id

        await cancel(client, mine, **{"mcp-session-id": "another"})
        await cancel(client, mine, **{"mcp-session-id": ""})
        await cancel(client, mine, authorization="Bearer bob")
        await cancel(client, mine, authorization="")
        client.url = staged.url("peer")
        await cancel(client, mine)
        await cancel(other, theirs)  # this one counts, and came last
        cancelled = await theirs.reply()
        gate.open()
        answered = await mine.reply()

    assert cancelled.result["_meta"]["pallas/call"]["stop_reason"] == "cancelled"
    assert answered.result["content"][0]["text"] == "released"
    assert [request.last_user_text for request in staged.llm.aborted] == ["streams"]


async def test_cancelling_what_is_not_running_does_nothing(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate):
        gate.open()
        async with calling(staged.url("root"), "hangs", version=INITIALIZE) as (client, call):
            await call.reply()
            await cancel(client, call)
            again = await client.call_tool("send_message", {"message": "hangs"})

    assert not again.result.get("isError")


async def test_a_session_id_is_handed_out_at_initialize_only_and_any_is_accepted(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate):
        handed_out = set()
        for version in INITIALIZE_VERSIONS:
            async with raw_client(staged.url("root"), protocol_version=version) as client:
                assert "mcp-session-id" in (await client.initialize()).headers
                handed_out.add(client.session_id)
                assert "mcp-session-id" not in (await client.request("tools/list")).headers
        async with raw_client(staged.url("root"), protocol_version=MODERN_VERSION) as client:
            assert "mcp-session-id" not in (await client.discover()).headers
        assert len(handed_out) == len(INITIALIZE_VERSIONS)

        async with raw_client(staged.url("root"), protocol_version=INITIALIZE) as client:
            client.session_id = "made up, as after a restart of the gateway"
            async with client.in_flight("tools/call", tool_params("send_message", {"message": "hangs"})) as call:
                await until_busy(staged, gate, "hangs")
                await cancel(client, call)
                await assert_stopped(staged, "hangs")


@crowd(40, 100)
async def test_calls_cancelled_at_random_moments_leave_nothing_behind(size: int, tmp_path: Path) -> None:
    chance = random.Random(20260728)  # noqa: S311  the same moments in every run
    busy = asyncio.Semaphore(10)

    async def call_and_leave(client: RawClient) -> None:
        moment, by_notification = chance.randrange(14), chance.random() < 0.5
        scene = chance.choice(["streams", "tool", "peer tool", "peer streams"])
        params, meta = tool_params("send_message", {"message": scene}), {"progressToken": TOKEN}
        async with busy, client.in_flight("tools/call", params, meta=meta) as call:
            await until_told(call, moment)
            if by_notification and not client.is_modern:
                await cancel(client, call)
                await call.reply()

    async with busy_stage(tmp_path) as (staged, gate):
        gate.open()
        staged.tools.gate.open()
        for version in EACH_VERSION:
            await watch(staged.url("root"), "peer tool", version=version)  # what is made once is made now
        await until_released(staged)
        before, filters = snapshot(), logging_filters()
        async with (
            raw_client(staged.url("root"), protocol_version=INITIALIZE) as older,
            raw_client(staged.url("root"), protocol_version=MODERN_VERSION) as modern,
        ):
            await older.initialize()
            await asyncio.gather(*(call_and_leave(client) for _ in range(size // 2) for client in (older, modern)))
            await until_released(staged)
            asked = len(staged.llm.requests)
        await assert_nothing_left(before)

        assert logging_filters() == filters
        assert len(staged.llm.requests) == asked
        outcomes = {
            outcome: staged.served.metric("pallas_send_message_total", agent="root", outcome=outcome)
            for outcome in ("ok", "error")
        }
        assert sum(outcomes.values()) >= 0.85 * size  # the earliest leave before their call has begun
        assert outcomes["error"] >= 10  # how many are still at it when they leave depends on the machine


async def until_told(call: RawCall, count: int) -> None:
    """Return once `count` notifications have come, or the call has ended before."""

    def told() -> bool:
        return len(call.messages) >= count or "method" not in (call.messages or [{"method": ""}])[-1]

    await eventually(told, timeout_seconds=60, what="the moment to leave")


def logging_filters() -> dict[str, int]:
    """Filters by logger, of those that have any."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    return {logger.name: len(logger.filters) for logger in loggers if logger.filters}
