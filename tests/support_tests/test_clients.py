"""The clients, each against a real FastMCP server: what they negotiate, collect and send."""

import asyncio

import pytest

from tests.support.clients import (
    EACH_ERA,
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    Connect,
    McpClient,
    ProgressLog,
    initialize_client,
    modern_client,
    raw_client,
    tool_params,
)
from tests.support.downstreams import StatelessDownstream, stateful_downstream, stateless_downstream
from tests.support.leaks import assert_nothing_left, snapshot

each_era = pytest.mark.parametrize("connect", EACH_ERA)
each_version = pytest.mark.parametrize("version", [*INITIALIZE_VERSIONS, MODERN_VERSION])
EMISSION = {"logs": [{"logger": "x", "data": {"n": 1}}, {"logger": "x", "data": {"n": 2}}], "progress": ["a", "b"]}


async def test_each_client_speaks_its_era() -> None:
    async with stateless_downstream() as server, initialize_client(server.url) as client:
        assert client.protocol_version == "2025-11-25"
    async with stateless_downstream() as server, modern_client(server.url) as client:
        assert client.protocol_version == "2026-07-28"


@each_era
async def test_progress_is_collected_in_order(connect: Connect) -> None:
    progress = ProgressLog()
    async with stateless_downstream() as server, connect(server.url) as client:
        await client.call_tool("emit", EMISSION, progress_callback=progress)
        await progress.wait_for(2)

    assert progress.events == [(1, None, "a"), (2, None, "b")]
    assert progress.messages == ["a", "b"]


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
async def test_prompts_are_listed_and_got(connect: Connect) -> None:
    async with stateless_downstream() as server, connect(server.url) as client:
        assert [prompt.name for prompt in await client.list_prompts()] == ["greeting"]
        prompt = await client.get_prompt("greeting", {"name": "Ada"})

    assert prompt.messages[0].content.text == "Hello, Ada"  # type: ignore[union-attr]


@each_era
async def test_bearer_headers_and_meta_reach_the_server(connect: Connect) -> None:
    async with stateless_downstream() as server, connect(server.url, bearer="b", headers={"x-own": "1"}) as client:
        await client.call_tool("echo", {"text": "x"}, meta={"pallas/stream": "delta"})
        call = server.recorder.calls("echo")[0]

    assert call.bearer == "b"
    assert call.headers["x-own"] == "1"
    assert call.rpc["params"]["_meta"]["pallas/stream"] == "delta"


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


@each_version
async def test_raw_client_shakes_hands_lists_and_calls(version: str) -> None:
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=version) as raw:
        if raw.is_modern:
            assert (await raw.discover()).result["supportedVersions"] == [version]
        else:
            assert (await raw.initialize()).result["protocolVersion"] == version
        assert [tool["name"] for tool in await raw.list_tools()] == ["add", "echo", "fail", "slow", "emit"]
        reply = await raw.call_tool("echo", {"text": "hé"})
        assert reply.result["content"][0]["text"] == "hé"


@each_version
async def test_raw_client_sees_notifications_before_the_result(version: str) -> None:
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=version) as raw:
        meta = {"progressToken": "t", "io.modelcontextprotocol/logLevel": "info"}
        reply = await raw.call_tool("emit", EMISSION, meta=meta)

    assert [n["method"] for n in reply.notifications] == ["notifications/progress"] * 2 + ["notifications/message"] * 2
    assert reply.notifications[0]["params"] == {"progressToken": "t", "progress": 1, "message": "a"}
    assert reply.messages[-1]["result"] == reply.result


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


async def test_anything_at_all_can_be_posted() -> None:
    async with stateless_downstream() as server, raw_client(server.url) as raw:
        assert (await raw.post(b"{not json")).status_code == 400
        assert (await raw.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])).status_code == 400


async def test_session_is_kept_and_ended() -> None:
    async with stateful_downstream() as server, raw_client(server.url) as raw:
        await raw.initialize()
        assert {raw.session_id} == server.recorder.sessions
        assert [(await raw.call_tool("count")).result["structuredContent"]["result"] for _ in range(2)] == [1, 2]

        assert (await raw.end_session()).status_code == 200
        assert server.recorder.sessions == set()


@each_version
async def test_a_call_in_flight_can_be_watched_and_answered(version: str) -> None:
    async with (
        stateless_downstream() as server,
        raw_client(server.url, protocol_version=version) as raw,
        raw.in_flight("tools/call", tool_params("slow", {"label": "x"})) as call,
    ):
        await server.gate.wait_for_entered()
        assert call.notifications == []
        server.gate.open()
        assert (await call.reply()).result["content"][0]["text"] == "done x"


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
