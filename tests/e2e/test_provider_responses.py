"""The Responses API by WebSocket, which a project has to choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.calling import ask, health
from tests.support.gateway import Agent, running, write_project
from tests.support.provider_gateways import KEY, serving
from tests.support.provider_matrix import RESPONSES, WEBSOCKET
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import say

if TYPE_CHECKING:
    from pathlib import Path

REPEATED = "LLM request repeated"


async def test_a_refused_handshake_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("At last.")]) as served:
        served.llm.handshakes = [served.llm.refuse(429), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.text, [record.message for record in caplog.records].count(REPEATED)) == ("At last.", 2)
    assert {request.body["type"] for request in served.llm.requests} == {"response.create"}


async def test_events_that_take_the_place_of_a_websocket_are_repeated_by_the_library_alone(tmp_path: Path) -> None:
    either = replace(RESPONSES, model="responses.gpt-4.1?transport=auto")
    async with serving(tmp_path, either, lambda _: served.llm.refuse(429, retry_after="0.01")) as served:
        served.llm.handshakes = [served.llm.refuse(503), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.is_error, len(served.llm.requests), len(served.llm.handshakes)) == (True, 3, 1)


async def test_a_handshake_with_a_wrong_key_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("never")]) as served:
        served.llm.handshakes = [served.llm.refuse(401, "wrong key")]
        answer = await ask(served.url)

    reason = "responses.gpt-4.1: its provider answered 401 (check its API key): wrong key"
    assert (answer.text, answer.meta["stop_reason"]) == (f"The model could not answer: {reason}", "llm_error")
    assert served.llm.handshakes == []
    assert served.llm.requests == []


async def test_a_server_that_the_provider_manages_is_named_in_the_request_and_not_connected_to(tmp_path: Path) -> None:
    agents = {"solo": Agent(["docs"], model=RESPONSES.model, settings={"approve": ["local/*"]})}
    servers = {"docs": {"url": "https://docs.example/mcp", "management": "provider"}}
    async with scripted_provider(RESPONSES.dialect, lambda _: say("Done.")) as llm:
        config = {"responses": {"api_key": KEY, "base_url": f"{llm.base_url}/v1"}}
        async with running(write_project(tmp_path, agents, servers=servers, fastagent=config)) as served:
            assert (await ask(served.url("solo"))).text == "Done."
            assert (await health(served.url("solo")))["status"] == "ok"
    (request,) = llm.requests
    (tool,) = request.body["tools"]
    assert (tool["type"], tool["server_url"]) == ("mcp", "https://docs.example/mcp")
