"""The clients, each against a real FastMCP server: what they negotiate, collect and send."""

import asyncio

import pytest

from tests.support.clients import (
    EACH_ERA,
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    Connect,
    McpClient,
    initialize_client,
    modern_client,
    raw_client,
    tool_params,
)
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.leaks import assert_nothing_left, snapshot

each_era = pytest.mark.parametrize("connect", EACH_ERA)
each_version = pytest.mark.parametrize("version", [*INITIALIZE_VERSIONS, MODERN_VERSION])
EMISSION = {"logs": [{"logger": "x", "data": {"n": 1}}, {"logger": "x", "data": {"n": 2}}], "progress": ["a", "b"]}


async def test_each_client_speaks_its_era() -> None:
    async with stateless_downstream() as server, initialize_client(server.url) as client:
        assert client.protocol_version == "2025-11-25"
    async with stateless_downstream() as server, modern_client(server.url) as client:
        assert client.protocol_version == "2026-07-28"


async def test_logs_come_unasked_in_the_initialize_era() -> None:
    async with stateless_downstream() as server, initialize_client(server.url) as client:
        await client.call_tool("emit", EMISSION)

        assert [log.data for log in await client.wait_for_logs(2)] == [{"n": 1}, {"n": 2}]


async def test_logs_come_only_if_asked_for_in_the_2026_era() -> None:
    async with (
        stateless_downstream() as server,
        modern_client(server.url, log_level="info") as asking,
        modern_client(server.url) as silent,
    ):
        await asking.call_tool("emit", EMISSION)
        await silent.call_tool("emit", EMISSION)

        assert [log.data for log in await asking.wait_for_logs(2)] == [{"n": 1}, {"n": 2}]
        assert silent.logs == []
        await silent.call_tool("emit", EMISSION, meta={"io.modelcontextprotocol/logLevel": "info"})
        assert len(await silent.wait_for_logs(2)) == 2


@each_era
async def test_an_error_in_the_block_comes_out_as_it_is(connect: Connect) -> None:
    async with stateless_downstream() as server:
        with pytest.raises(KeyError, match="mine"):
            async with connect(server.url):
                raise KeyError("mine")


async def test_a_cancelled_sdk_call_closes_its_stream_in_the_2026_era() -> None:
    async with stateless_downstream() as server, modern_client(server.url) as client:
        await _cancel_once_inside(server, client)
        await server.gate.wait_for_cancelled()

    assert "notifications/cancelled" not in server.recorder.rpc_methods


async def test_a_cancelled_sdk_call_says_so_in_the_initialize_era() -> None:
    async with stateless_downstream() as server, initialize_client(server.url) as client:
        await _cancel_once_inside(server, client)
        await server.recorder.until(lambda recorder: "notifications/cancelled" in recorder.rpc_methods)


async def test_version_header_is_sent_where_the_version_has_one() -> None:
    expected = {"2025-03-26": None, "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25"}
    async with stateless_downstream() as server:
        for version, header in expected.items():
            async with raw_client(server.url, protocol_version=version) as raw:
                await raw.initialize()
                assert "mcp-protocol-version" not in server.recorder.requests[-2].headers
                await raw.list_tools()
                assert server.recorder.requests[-1].headers.get("mcp-protocol-version") == header


async def test_headers_that_contradict_the_body_are_the_tests_to_send() -> None:
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=MODERN_VERSION) as raw:
        reply = await raw.call_tool("echo", {"text": "x"}, headers={"mcp-name": "add"})

    assert reply.status == 400
    assert reply.error["code"] == -32020


async def test_a_name_no_header_can_carry_is_encoded() -> None:
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=MODERN_VERSION) as raw:
        reply = await raw.call_tool("écho")

    assert reply.status == 200 or reply.error["code"] != -32020
    assert server.recorder.requests[0].headers["mcp-name"].startswith("=?base64?")


@each_version
async def test_leaving_the_block_is_vanishing(version: str) -> None:
    before = snapshot()
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=version) as raw:
        async with raw.in_flight("tools/call", tool_params("slow")):
            await server.gate.wait_for_entered()
        await server.gate.wait_for_cancelled()

    await assert_nothing_left(before)


async def test_a_reply_without_result_says_what_came_instead() -> None:
    async with stateless_downstream() as server, raw_client(server.url.removesuffix("/mcp")) as raw:
        reply = await raw.request("tools/list")

    with pytest.raises(AssertionError, match="no result in HTTP 404"):
        _ = reply.result


async def _cancel_once_inside(server: StatelessDownstream, client: McpClient) -> None:
    call = asyncio.create_task(client.call_tool("slow"))
    await server.gate.wait_for_entered()
    call.cancel()
    await asyncio.wait({call})
