"""What an agent looks like over MCP, to raw clients of every protocol version and to the SDK's in each era."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.clients import (
    EACH_ERA,
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    Connect,
    RawClient,
    raw_client,
    text_of,
)
from tests.support.gateway import Agent, Running, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="module")
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
HEALTH_SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
CALL_FACTS = {"agent", "conversation_id", "call_id", "stop_reason", "iterations", "usage", "duration_seconds"}
TOKEN_KINDS = {"input", "output", "cache_read", "cache_write", "reasoning", "estimated"}
"""A test model reports no usage, so its tokens are estimated."""
OPTIONAL_HEALTH_KEYS = {"downstream", "llm", "agent"}

each_version = pytest.mark.parametrize("version", [*INITIALIZE_VERSIONS, MODERN_VERSION])
oldest_and_newest = pytest.mark.parametrize("version", [INITIALIZE_VERSIONS[0], MODERN_VERSION])
each_initialize_version = pytest.mark.parametrize("version", INITIALIZE_VERSIONS)
each_era = pytest.mark.parametrize("connect", EACH_ERA)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    """One gateway for all tests of this module: no call leaves anything to the next."""
    settings = {"title": "Harper", "description": "Says it again."}
    path = tmp_path_factory.mktemp("protocols")
    project = write_project(path, {"harper": Agent(settings=settings)}, deployment={"version": "2.1.0"})
    async with running(project) as served:
        yield served


@asynccontextmanager
async def greeted(served: Running, version: str) -> AsyncGenerator[RawClient]:
    """A raw client after its era's greeting."""
    async with raw_client(served.url("harper"), protocol_version=version) as client:
        reply = await (client.discover() if client.is_modern else client.initialize())
        assert reply.status == 200
        yield client


@each_initialize_version
async def test_initialize_is_answered_in_the_version_asked_for(served: Running, version: str) -> None:
    async with raw_client(served.url("harper"), protocol_version=version) as client:
        reply = await client.initialize()

    assert reply.result["protocolVersion"] == version
    server = reply.result["serverInfo"]
    assert (server["name"], server["version"]) == ("harper", "2.1.0")
    assert {"tools", "prompts", "logging"} == set(reply.result["capabilities"])
    assert len(reply.headers["mcp-session-id"]) >= 16  # opaque, and without a session behind it


async def test_discover_tells_a_modern_client_what_it_may_do(served: Running) -> None:
    async with raw_client(served.url("harper"), protocol_version=MODERN_VERSION) as client:
        reply = await client.discover()

    server = reply.result["_meta"]["io.modelcontextprotocol/serverInfo"]
    assert (server["name"], server["version"]) == ("harper", "2.1.0")
    assert MODERN_VERSION in reply.result["supportedVersions"]
    assert {"tools", "prompts", "logging"} == set(reply.result["capabilities"])


@each_version
async def test_the_tools_are_the_message_tool_twice_and_get_health(served: Running, version: str) -> None:
    async with greeted(served, version) as client:
        tools = await client.list_tools()

    assert [tool["name"] for tool in tools] == ["send_message", "harper", "get_health"]
    assert tools[2]["inputSchema"] == HEALTH_SCHEMA
    arguments = {"message", "images", "history", "conversation_id", "params"}
    for tool in tools[:2]:
        assert tool["inputSchema"]["required"] == ["message"]
        assert set(tool["inputSchema"]["properties"]) == arguments
    assert tools[1]["description"] == "The same as send_message."
    assert not any("outputSchema" in tool for tool in tools)


@each_version
@pytest.mark.parametrize("tool", ["send_message", "harper"])
async def test_a_call_is_answered_with_text_and_its_facts(served: Running, version: str, tool: str) -> None:
    async with greeted(served, version) as client:
        reply = await client.call_tool(tool, {"message": "hello", "conversation_id": "c-1"})

    assert reply.result["content"] == [{"type": "text", "text": "hello"}]
    assert reply.result["isError"] is False
    assert "structuredContent" not in reply.result
    facts = reply.result["_meta"]["pallas/call"]
    assert set(facts) == CALL_FACTS
    assert set(facts["usage"]) == TOKEN_KINDS
    assert (facts["agent"], facts["conversation_id"], facts["stop_reason"]) == ("harper", "c-1", "endTurn")
    assert facts["call_id"]
    assert 0 <= facts["duration_seconds"] < 30


@each_version
async def test_get_health_is_one_block_of_json(served: Running, version: str) -> None:
    async with greeted(served, version) as client:
        reply = await client.call_tool("get_health")

    [block] = reply.result["content"]
    document = json.loads(block["text"])
    assert block["type"] == "text"
    assert document.keys() - OPTIONAL_HEALTH_KEYS == {"status", "timestamp"}
    assert document["status"] == "ok"
    assert datetime.now(UTC) - datetime.fromisoformat(document["timestamp"]) < timedelta(minutes=1)
    assert reply.result["isError"] is False
    assert "structuredContent" not in reply.result


@each_version
async def test_the_history_prompt_exists_and_is_empty(served: Running, version: str) -> None:
    async with greeted(served, version) as client:
        await client.call_tool("harper", {"message": "is this remembered?"})
        prompts = await client.request("prompts/list")
        history = await client.request("prompts/get", {"name": "harper_history"})

    assert [prompt["name"] for prompt in prompts.result["prompts"]] == ["harper_history"]
    assert history.result["messages"] == []


@each_initialize_version
@pytest.mark.parametrize(("method", "params"), [("ping", None), ("logging/setLevel", {"level": "info"})])
async def test_ping_and_set_level_are_acknowledged(
    served: Running, version: str, method: str, params: dict[str, Any] | None
) -> None:
    async with greeted(served, version) as client:
        reply = await client.request(method, params)

    assert reply.result == {}


@oldest_and_newest
@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (("tools/call", {"name": "nope", "arguments": {}}), INVALID_PARAMS, "Unknown tool 'nope'"),
        (("tools/call", {"name": "harper", "arguments": "hello"}), INVALID_PARAMS, ""),
        (("tools/call", {"arguments": {"message": "hello"}}), INVALID_PARAMS, ""),
        (("prompts/get", {"name": "nope_history"}), INVALID_PARAMS, "Unknown prompt 'nope_history'"),
        (("prompts/get", {}), INVALID_PARAMS, ""),
        (("resources/list", None), METHOD_NOT_FOUND, ""),
        (("no/such/method", None), METHOD_NOT_FOUND, ""),
    ],
)
async def test_what_does_not_exist_is_a_protocol_error(
    served: Running, version: str, request_: tuple[str, dict[str, Any] | None], code: int, said: str
) -> None:
    async with greeted(served, version) as client:
        reply = await client.request(*request_)

    assert reply.error["code"] == code
    assert said in reply.error["message"]


@oldest_and_newest
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'message'"),
        ({"message": None}, "'message'"),
        ({"message": ["hello"]}, "'message'"),
        ({"message": "hello", "conversation_id": 7}, "'conversation_id'"),
        ({"message": "hello", "histroy": []}, "'histroy'"),
    ],
)
async def test_malformed_arguments_are_refused_with_a_sentence_about_them(
    served: Running, version: str, arguments: dict[str, Any], said: str
) -> None:
    failed = served.metric("pallas_send_message_total", agent="harper", outcome="error")
    async with greeted(served, version) as client:
        reply = await client.call_tool("harper", arguments)

    [block] = reply.result["content"]
    assert reply.result["isError"] is True
    assert said in block["text"]
    assert served.metric("pallas_send_message_total", agent="harper", outcome="error") == failed + 1


@oldest_and_newest
@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (b"{not json", {PARSE_ERROR}),
        (b"", {PARSE_ERROR}),
        (b"\xff\xfe\x00", {PARSE_ERROR}),
        (b"[" * 100_000, {PARSE_ERROR}),
        (b"5", {INVALID_REQUEST, INVALID_PARAMS}),
        (b"[]", {INVALID_REQUEST, INVALID_PARAMS}),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]', {INVALID_REQUEST, INVALID_PARAMS}),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}', {INVALID_REQUEST, INVALID_PARAMS}),
    ],
    ids=["broken", "empty", "not utf-8", "deep", "a number", "empty batch", "batch", "wrong jsonrpc"],
)
async def test_what_is_no_json_rpc_request_is_a_protocol_error(
    served: Running, version: str, body: bytes, codes: set[int]
) -> None:
    async with greeted(served, version) as client:
        response = await client.post(body)
        after = await client.call_tool("harper", {"message": "still here"})

    assert response.status_code == 400
    assert response.json()["error"]["code"] in codes
    assert response.json()["id"] is None
    assert after.result["content"][0]["text"] == "still here"


@pytest.mark.parametrize("method", ["ping", "logging/setLevel"])
async def test_what_the_modern_era_dropped_is_an_unknown_method_there(served: Running, method: str) -> None:
    async with greeted(served, MODERN_VERSION) as client:
        reply = await client.request(method, {"level": "info"} if method != "ping" else None)

    assert (reply.status, reply.error["code"]) == (404, METHOD_NOT_FOUND)


@each_era
async def test_the_sdk_of_each_era_sees_the_same_agent(served: Running, connect: Connect) -> None:
    async with connect(served.url("harper")) as client:
        tools = await client.list_tools()
        by_fixed_name = await client.call_tool("send_message", {"message": "one"})
        by_agent_name = await client.call_tool("harper", {"message": "two"})
        health = await client.call_tool("get_health")
        prompts = await client.list_prompts()
        history = await client.get_prompt("harper_history")

    assert [tool.name for tool in tools] == ["send_message", "harper", "get_health"]
    assert tools[2].input_schema == HEALTH_SCHEMA
    assert [text_of(by_fixed_name), text_of(by_agent_name)] == ["one", "two"]
    assert by_agent_name.structured_content is None
    assert by_agent_name.meta is not None
    assert set(by_agent_name.meta["pallas/call"]) == CALL_FACTS
    assert by_agent_name.meta["pallas/call"]["conversation_id"] is None
    assert json.loads(text_of(health))["status"] == "ok"
    assert [prompt.name for prompt in prompts] == ["harper_history"]
    assert history.messages == []


async def test_configured_tool_names_replace_the_usual_ones(tmp_path: Path) -> None:
    names = ["talk_to_{agent}", "ask", "{agent}"]
    project = write_project(tmp_path, {"harper": Agent()}, gateway={"tool_names": names})
    async with running(project) as served, greeted(served, MODERN_VERSION) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("talk_to_harper", {"message": "hello"})
        gone = await client.call_tool("send_message", {"message": "hello"})

    assert [tool["name"] for tool in tools] == ["talk_to_harper", "ask", "harper", "get_health"]
    assert answer.result["content"][0]["text"] == "hello"
    assert gone.error["code"] == INVALID_PARAMS
