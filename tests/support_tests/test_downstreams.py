"""The downstreams: what they answer and record, how they go down, which era they refuse."""

import pytest
from mcp import MCPError

from tests.support.clients import (
    EACH_ERA,
    Connect,
    initialize_client,
    modern_client,
    raw_client,
    tool_params,
)
from tests.support.downstreams import stateful_downstream, stateless_downstream
from tests.support.leaks import assert_nothing_left, snapshot

each_era = pytest.mark.parametrize("connect", EACH_ERA)


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


@each_era
async def test_downstream_leaves_nothing_behind(connect: Connect) -> None:
    before = snapshot()
    async with stateless_downstream() as downstream, connect(downstream.url) as client:
        await client.call_tool("add", {"a": 1, "b": 2})

    await assert_nothing_left(before)
