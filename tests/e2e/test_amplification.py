"""Requests that are small on the wire and large in memory are refused at every door, with a sentence that says why."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from pallas_gateway.doors.mcp.envelope import McpRequest
from pallas_gateway.json_size import TOO_MANY_VALUES
from tests.support.calling import EACH_VERSION, ask
from tests.support.gateway import Agent, Running, gateway_and_model
from tests.support.scripted_llm import ScriptedLlm

LIMIT = 20
SAID = f"at most {LIMIT} (gateway.max_history_entries)"
ROW = {"role": "user", "content": "hi"}
ROUNDS = {"role": "user", "content": [{"type": "text", "text": "a"}] * LIMIT}
PNG = {"data": "iVBORw0KGgo=", "mime_type": "image/png"}
DOORS = {
    "/agents/scribe/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "send_message"}},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "agent-scribe"}},
    "/v1/chat/completions": {"model": "scribe"},
    "/api/v1/agents/scribe/chat": {"message": "hi"},
}


@asynccontextmanager
async def serving(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Running, ScriptedLlm]]:
    options = {"openai_api": True, "database": f"sqlite:///{path}/threads.db", "max_history_entries": LIMIT, **gateway}
    agents = {"scribe": Agent(model="generic.gpt-4o")}
    async with gateway_and_model(path, agents, gateway=options) as (served, llm):
        yield served, llm


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_more_rows_of_history_or_images_than_configured_are_refused_over_mcp(
    version: str, tmp_path: Path
) -> None:
    too_much: list[dict[str, Any]] = [
        {"history": [{}] * (LIMIT + 1)},
        {"history": [{**ROW, "images": [PNG] * LIMIT}], "images": [PNG]},
    ]
    async with serving(tmp_path) as (served, llm):
        both = [(served.url("scribe"), "send_message"), (f"{served.base_url}/mcp", "agent-scribe")]
        answers = [
            await ask(url, tool=tool, version=version, **arguments) for url, tool in both for arguments in too_much
        ]
        within = await ask(served.url("scribe"), version=version, history=[ROW] * LIMIT)

        assert len(llm.requests) == 1
        assert served.metric("pallas_calls_refused_total", agent="scribe", reason="bad_input") == len(answers)
    assert all(answer.is_error and SAID in answer.text for answer in answers)
    assert not within.is_error


async def test_more_messages_parts_or_images_than_configured_are_refused_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, llm), httpx.AsyncClient(base_url=served.base_url) as http:
        answers = [
            await http.post(path, json=body)
            for path, body in (
                ("/v1/chat/completions", {"model": "scribe", "messages": [ROW] * (LIMIT + 1)}),
                ("/v1/chat/completions", {"model": "scribe", "messages": [ROUNDS, ROW]}),
                ("/api/v1/agents/scribe/chat", {"message": "look", "images": [PNG] * (LIMIT + 1)}),
            )
        ]
        within = await http.post("/v1/chat/completions", json={"model": "scribe", "messages": [ROW] * LIMIT})

        assert len(llm.requests) == 1
    assert [answer.status_code for answer in answers] == [400] * 3
    assert all(SAID in answer.text for answer in answers)
    assert within.status_code == 200


@pytest.mark.parametrize("path", DOORS)
async def test_a_million_empty_objects_are_refused_unparsed_at_every_door(path: str, tmp_path: Path) -> None:
    start = json.dumps(DOORS[path]).removesuffix("}")
    body = (start + ', "more": [' + ",".join(["{}"] * 1_000_000) + "]}").encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with serving(tmp_path) as (served, llm), httpx.AsyncClient(base_url=served.base_url) as http:
        answers = [
            await http.post(path, content=body, headers={**headers, **({"mcp-protocol-version": one} if one else {})})
            for one in (None, *EACH_VERSION)
        ]

        assert llm.requests == []
    assert [answer.status_code for answer in answers] == [413] * 3
    assert all(TOO_MANY_VALUES in answer.text for answer in answers)


@pytest.mark.parametrize("depth", [200, 3000, 100_000])
async def test_no_depth_of_nesting_is_more_than_a_refusal(depth: int, tmp_path: Path) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    response_format = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {deep}}}}}'
    bodies_of = {
        "/v1/chat/completions": f'{{"model": "scribe", "messages": [{json.dumps(ROW)}], "response_format": %s}}',
        "/api/v1/agents/scribe/chat": '{"message": "hi", "params": {"response_format": %s}}',
    }
    async with serving(tmp_path) as (served, llm), httpx.AsyncClient(base_url=served.base_url) as http:
        headers = {"content-type": "application/json"}
        answers = [
            await http.post(path, content=body % response_format, headers=headers) for path, body in bodies_of.items()
        ]

        assert llm.requests == []
    assert [answer.status_code for answer in answers] == [400] * 2


def test_the_gate_of_callers_who_may_only_look_parses_no_such_body() -> None:
    body = b'{"method": "tools/list", "more": [' + b"{}," * 1_000_000  # which is no JSON, if it is parsed
    assert McpRequest(Request({"type": "http"}), body).calls_agent
