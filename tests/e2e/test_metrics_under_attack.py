"""No client, no model and no downstream makes a series of its own; and what ends badly is still counted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION, raw_client, tool_params
from tests.support.crowds import crowd
from tests.support.downstreams import stateless_downstream
from tests.support.exposition import Exposition
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.scripted_llm import call_tools, say
from tests.support.watching import calling, script_of, stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.clients import RawClient
    from tests.support.gateway import Running
    from tests.support.scripted_llm import Turn
    from tests.support.watching import Stage

    type Attack = Callable[[RawClient, str], Awaitable[object]]

ATTACKS: tuple[Attack, ...] = (
    lambda client, evil: client.http.get(f"{_base(client)}/{evil}"),
    lambda client, evil: client.http.get(f"{_base(client)}/metrics?{evil}", headers={"accept": f"text/{evil}"}),
    lambda client, evil: client.http.post(f"{_base(client)}/agents/{evil}/mcp", json={}),
    lambda client, evil: client.http.post(client.url, json={}, headers={"host": f"{evil}.example"}),
    lambda client, evil: client.request("tools/call", tool_params(evil)),
    lambda client, evil: client.request("prompts/get", {"name": evil}),
    lambda client, evil: client.request(evil),
    lambda client, evil: client.call_tool("send_message", {"message": "hi", "images": evil}),
    lambda client, evil: client.call_tool("send_message", {"message": "hi", evil: evil}),
    lambda client, evil: client.call_tool(
        "send_message", {"message": evil, "conversation_id": evil}, headers={"user-agent": evil, "x-agent": evil}
    ),
)


HOSTILE_PATHS = [
    *("/agents/nope/mcp", "/agents/%22%7d%0apallas_up%2042/mcp", "/agents/%ff/mcp", "/agents/%00/mcp"),
    *("/agents/../../etc/passwd", "/%0d%0aX-Injected:%20yes", f"/agents/{'a' * 5_000}/mcp", "/metrics/../x"),
]


@pytest.mark.crowd
@crowd(100, 1000)
async def test_hostile_requests_add_no_series(size: int, tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        await ask(served.url("echo"))
        await health(served.url("echo"))
        before = await _scrape(served)
        many = asyncio.Semaphore(20)

        async def attack(number: int) -> None:
            async with many:
                await ATTACKS[number % len(ATTACKS)](client, f"evil{number}")

        async with raw_client(served.url("echo"), protocol_version=MODERN_VERSION) as client:
            async with asyncio.TaskGroup() as attacks:
                for number in range(size):
                    attacks.create_task(attack(number))
            for path in HOSTILE_PATHS:
                for method in ("GET", "POST", "BREW"):
                    answer = await client.http.request(method, f"{_base(client)}{path}", json={})
                    assert answer.status_code in {400, 404, 405}, (method, path)
            await until_idle(served)
            after = await _scrape(served)

    assert set(after.series) == set(before.series)
    assert "evil" not in after.text
    assert after.text.count("\n") == before.text.count("\n")
    assert after.value("pallas_send_message_total", agent="echo", outcome="ok") == 1 + size / 10
    assert after.value("pallas_calls_refused_total", agent="echo", reason="bad_image") == size / 10
    assert after.value("pallas_calls_refused_total", agent="echo", reason="bad_input") == size / 10


async def test_neither_tools_that_a_model_makes_up_nor_those_it_is_offered_add_series(tmp_path: Path) -> None:
    nothings: list[tuple[str, dict[str, str]]] = [(f"tools__nothing{number}", {}) for number in range(20)]
    nobodies: list[tuple[str, dict[str, str]]] = [(f"nobody{number}__tool", {}) for number in range(20)]
    listed: list[tuple[str, dict[str, str]]] = [(f"more__tool{number}", {}) for number in range(20)]
    turns: list[Turn] = [call_tools([*nothings, *nobodies]), call_tools(listed), say("done")]
    agents = {"solo": Agent(servers=["tools", "more"])}
    async with AsyncExitStack() as stack:
        more = await stack.enter_async_context(stateless_downstream())
        for number in range(20):
            more.server.tool(lambda: "listed", name=f"tool{number}")
        servers = {"more": {"transport": "http", "url": more.url}}
        staged = await stack.enter_async_context(stage(tmp_path, script_of(solo=turns), agents, peers=servers))
        before = await _scrape(staged.served)
        assert (await ask(staged.url("solo"))).text == "done"
        await until_idle(staged.served)
        after = await _scrape(staged.served)

    assert after.labels_of("pallas_tool_calls_total") == before.labels_of("pallas_tool_calls_total")
    labels = {"agent": "solo", "server": "more", "operation": "tool"}
    # What a model makes up is never asked of anybody.
    assert after.value("pallas_tool_calls_total", outcome="ok", **labels) == len(listed)
    assert after.value("pallas_tool_calls_total", outcome="error", **labels) == 0


async def test_a_cancelled_calls_tool_and_tokens_are_counted(tmp_path: Path) -> None:
    async with stage(tmp_path, script_of(solo=[call_tools([("tools__slow", {})])])) as staged:
        async with calling(staged.url("solo")):
            await staged.tools.gate.wait_for_entered()
        await until_idle(staged.served)
        assert _operations(staged, "error") == 1
        assert staged.served.metric("pallas_tool_call_duration_seconds_count", **SLOW) == 1
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="error") == 1
        assert staged.served.metric("pallas_llm_turns_total", agent="solo", model="test-model") == 1
        assert staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="input") == 10


async def test_a_downstream_that_goes_away_under_a_tool_call_is_an_error_of_it(tmp_path: Path) -> None:
    async with stage(tmp_path, script_of(solo=[call_tools([("tools__slow", {})]), say("gone")])) as staged:
        async with calling(staged.url("solo")) as (_, call):
            await staged.tools.gate.wait_for_entered()
            await staged.tools.stop()
            await call.reply()
        assert (_operations(staged, "ok"), _operations(staged, "error")) == (0, 1)
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="ok") == 1


SLOW = {"agent": "solo", "server": "tools", "operation": "tool"}


def _operations(staged: Stage, outcome: str) -> float:
    return staged.served.metric("pallas_tool_calls_total", outcome=outcome, **SLOW)


def _base(client: RawClient) -> str:
    return client.url.partition("/agents/")[0]


async def _scrape(served: Running) -> Exposition:
    async with raw_client(f"{served.base_url}/metrics") as client:
        return Exposition((await client.http.get(client.url)).raise_for_status().text)
