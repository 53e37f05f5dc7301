"""The downstreams: a restart ends their sessions, and each refuses the era that it does not speak."""

import pytest
from mcp import MCPError

from tests.support.clients import (
    initialize_client,
    modern_client,
    raw_client,
)
from tests.support.downstreams import stateful_downstream, stateless_downstream


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
