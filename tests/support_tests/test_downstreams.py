"""The downstreams: what they answer and record, how they go down, which era they refuse."""

import asyncio

import httpx2
import pytest
from mcp import MCPError

from tests.support.clients import (
    EACH_ERA,
    Connect,
    McpClient,
    initialize_client,
    modern_client,
    raw_client,
    text_of,
    tool_params,
)
from tests.support.downstreams import refusing, stateful_downstream, stateless_downstream
from tests.support.leaks import assert_nothing_left, snapshot

each_era = pytest.mark.parametrize("connect", EACH_ERA)


@each_era
async def test_tools_answer_in_each_era(connect: Connect) -> None:
    async with stateless_downstream() as downstream, connect(downstream.url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add", "echo", "fail", "slow", "emit"]
        assert text_of(await client.call_tool("add", {"a": 1, "b": 2})) == "3"
        assert text_of(await client.call_tool("echo", {"text": "hé"})) == "hé"
        failed = await client.call_tool("fail", {"message": "ouch"})
        assert failed.is_error
        assert text_of(failed) == "ouch"


async def test_recorder_has_every_request_with_its_headers() -> None:
    async with stateless_downstream() as downstream:
        async with modern_client(downstream.url, bearer="of-the-caller") as client:
            await client.list_tools()
            await client.call_tool("echo", {"text": "x"})

        assert downstream.recorder.rpc_methods == ["server/discover", "tools/list", "tools/call"]
        call = downstream.recorder.calls("echo")[0]
        assert (call.method, call.path, call.status, call.era) == ("POST", "/mcp", 200, "modern")
        assert call.bearer == "of-the-caller"
        assert call.headers["mcp-name"] == "echo"
        assert call.rpc["params"]["arguments"] == {"text": "x"}
        assert "of-the-caller" not in repr(call)
        assert downstream.recorder.calls("add") == []

        downstream.recorder.clear()
        async with initialize_client(downstream.url) as client:
            await client.list_prompts()

        assert downstream.recorder.rpc_methods == ["initialize", "notifications/initialized", "prompts/list"]
        assert {request.era for request in downstream.recorder.requests} == {"initialize"}


@each_era
async def test_slow_calls_are_held_together_and_released(connect: Connect) -> None:
    async with stateless_downstream() as downstream, connect(downstream.url) as client:
        calls = [asyncio.create_task(client.call_tool("slow", {"label": name})) for name in ("a", "b")]
        await downstream.gate.wait_for_entered(2)
        assert len(downstream.recorder.open) >= 2

        downstream.gate.open()
        assert [text_of(result) for result in await asyncio.gather(*calls)] == ["done a", "done b"]
        await downstream.recorder.until(lambda recorder: not [r for r in recorder.open if r.tool])
        assert downstream.gate.cancelled == []


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_a_vanished_client_is_recorded_and_its_call_cancelled(version: str) -> None:
    async with stateless_downstream() as downstream, raw_client(downstream.url, protocol_version=version) as raw:
        async with raw.in_flight("tools/call", tool_params("slow", {"label": "gone"})) as call:
            await downstream.gate.wait_for_entered()
            await call.vanish()
            await downstream.gate.wait_for_cancelled()

        await downstream.recorder.wait_until_idle()
        assert downstream.gate.cancelled == ["gone"]
        assert downstream.recorder.calls("slow")[0].client_left


async def test_sessions_count_for_themselves() -> None:
    async with stateful_downstream() as downstream:
        async with initialize_client(downstream.url) as first, initialize_client(downstream.url) as second:
            assert [await _count(client) for client in (first, first, second, first)] == ["1", "2", "1", "3"]
            assert len(downstream.recorder.sessions) == 2

        assert sorted(downstream.counts.values()) == [1, 3]
        await downstream.recorder.until(lambda recorder: not recorder.sessions)


async def test_downstream_is_refused_while_down_and_back_at_the_same_address() -> None:
    async with stateless_downstream() as downstream, modern_client(downstream.url) as client:
        await downstream.stop()
        with pytest.raises(httpx2.ConnectError):
            async with modern_client(downstream.url):
                pass

        await downstream.start()
        assert text_of(await client.call_tool("echo", {"text": "back"})) == "back"


async def test_downstream_may_begin_down() -> None:
    async with stateless_downstream(start=False) as downstream:
        with pytest.raises(httpx2.ConnectError):
            async with initialize_client(downstream.url):
                pass

        await downstream.start()
        async with initialize_client(downstream.url) as client:
            assert text_of(await client.call_tool("add", {"a": 1, "b": 1})) == "2"


async def test_stopping_cancels_a_running_tool() -> None:
    async with (
        stateless_downstream() as downstream,
        raw_client(downstream.url) as raw,
        raw.in_flight("tools/call", tool_params("slow")),
    ):
        await downstream.gate.wait_for_entered()
        await downstream.stop()
        await downstream.gate.wait_for_cancelled()


async def test_sessions_do_not_survive_a_restart() -> None:
    async with stateful_downstream() as downstream, raw_client(downstream.url) as raw:
        await raw.initialize()
        assert (await raw.call_tool("count")).result["content"][0]["text"] == "1"

        await downstream.stop()
        await downstream.start()

        assert (await raw.call_tool("count")).status == 404


async def test_a_server_of_the_initialize_era_refuses_the_other() -> None:
    async with stateless_downstream(era="initialize") as downstream:
        async with initialize_client(downstream.url) as client:
            assert client.protocol_version == "2025-11-25"
        with pytest.raises(AssertionError, match="negotiated 2025-11-25, not 2026-07-28"):
            async with modern_client(downstream.url):
                pass


async def test_a_server_of_the_2026_era_refuses_the_other() -> None:
    async with stateless_downstream(era="modern") as downstream:
        async with modern_client(downstream.url) as client:
            assert client.protocol_version == "2026-07-28"
        with pytest.raises(MCPError, match="Unsupported protocol version"):
            async with initialize_client(downstream.url):
                pass


async def test_refusing_answers_one_status_to_everything() -> None:
    async with refusing(401, {"www-authenticate": "Bearer"}) as server, raw_client(server.url) as raw:
        reply = await raw.request("initialize", {})
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert server.recorder.rpc_methods == ["initialize"]


@each_era
async def test_downstream_leaves_nothing_behind(connect: Connect) -> None:
    before = snapshot()
    async with stateless_downstream() as downstream, connect(downstream.url) as client:
        await client.call_tool("add", {"a": 1, "b": 2})

    await assert_nothing_left(before)


async def _count(client: McpClient) -> str:
    return text_of(await client.call_tool("count"))
