"""The clients, against a real FastMCP server: what they negotiate and send where no gateway would complain."""

import pytest

from tests.support.clients import (
    MODERN_VERSION,
    initialize_client,
    modern_client,
    raw_client,
)
from tests.support.downstreams import stateless_downstream


async def test_each_client_speaks_its_era() -> None:
    async with stateless_downstream() as server, initialize_client(server.url) as client:
        assert client.protocol_version == "2025-11-25"
    async with stateless_downstream() as server, modern_client(server.url) as client:
        assert client.protocol_version == "2026-07-28"


async def test_version_header_is_sent_where_the_version_has_one() -> None:
    expected = {"2025-03-26": None, "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25"}
    async with stateless_downstream() as server:
        for version, header in expected.items():
            async with raw_client(server.url, protocol_version=version) as raw:
                await raw.initialize()
                assert "mcp-protocol-version" not in server.recorder.requests[-2].headers
                await raw.list_tools()
                assert server.recorder.requests[-1].headers.get("mcp-protocol-version") == header


async def test_a_name_no_header_can_carry_is_encoded() -> None:
    async with stateless_downstream() as server, raw_client(server.url, protocol_version=MODERN_VERSION) as raw:
        reply = await raw.call_tool("écho")

    assert reply.status == 200 or reply.error["code"] != -32020
    assert server.recorder.requests[0].headers["mcp-name"].startswith("=?base64?")


async def test_a_reply_without_result_says_what_came_instead() -> None:
    async with stateless_downstream() as server, raw_client(server.url.removesuffix("/mcp")) as raw:
        reply = await raw.request("tools/list")

    with pytest.raises(AssertionError, match="no result in HTTP 404"):
        _ = reply.result
