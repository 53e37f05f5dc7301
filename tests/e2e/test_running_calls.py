"""Running and recent calls over HTTP: what a list shows while calls run and after them, and how one is ended."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.gateway import Agent
from tests.support.listener import reserved_port
from tests.support.scripted_llm import call_tools, hang, say
from tests.support.waiting import Gate
from tests.support.watching import calling, speaker, stage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn
    from tests.support.watching import Stage

PATH = "/api/v1/calls"


@asynccontextmanager
async def busy_stage(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Stage, Gate]]:
    """`root`, which asks its peer `peer` and then says what that has said; `peer` is held at the gate."""
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if speaker(request) == "peer":
            return hang(gate)
        if request.tool_results:
            return say("told: " + "".join(request.tool_results.values()))
        return call_tools([("peer__send_message", {"message": "and now?"})])

    with reserved_port() as port:
        agents = {"root": Agent(["tools", "peer"]), "peer": Agent(["tools"], settings={"port": port})}
        servers = {"peer": {"url": f"http://localhost:{port}/mcp"}}
        async with stage(path, script, agents, peers=servers, gateway=gateway) as staged:
            yield staged, gate


@asynccontextmanager
async def api_of(staged: Stage, bearer: str | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    async with httpx.AsyncClient(base_url=staged.served.base_url, trust_env=False, headers=headers) as http:
        yield http


async def listed(http: httpx.AsyncClient, query: str = "") -> dict[str, dict[str, Any]]:
    """The calls of a list by their agents, of which each has one."""
    response = await http.get(PATH + query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    calls = response.json()["calls"]
    by_agent = {one["agent"]: one for one in calls}
    assert len(by_agent) == len(calls)
    return by_agent


async def test_a_nested_call_is_ended_by_name_and_its_parent_reads_why_its_tool_has_failed(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), api_of(staged) as http:
        assert await listed(http) == {}
        async with calling(staged.url("root"), "go") as (_, call):
            await gate.wait_for_entered(1)
            running = await listed(http)
            assert (await http.delete(f"{PATH}/{running['peer']['id']}")).status_code == 204
            reply = await call.reply()
        again = await http.delete(f"{PATH}/{running['peer']['id']}")
        recent = await listed(http, "?recent=5")
        assert await listed(http) == {}

    root, peer = running["root"], running["peer"]
    assert (root["parent"], peer["parent"]) == (None, root["id"])
    assert {"api": "mcp", "caller": "anonymous", "waiting": False, "worker": 1, "step": 1}.items() <= root.items()
    assert (root["tokens"], peer["tokens"]) == (15, 0)
    assert reply.result["content"][0]["text"] == "told: The call was ended by anonymous."
    assert (again.status_code, again.json()["error"]) == (404, "not_found")
    assert (recent["peer"]["outcome"], recent["peer"]["stopReason"]) == ("error", "cancelled")
    assert (recent["root"]["outcome"], recent["root"]["stopReason"], recent["root"]["step"]) == ("ok", "endTurn", 2)
    [tool] = recent["root"]["tools"]
    assert (tool["name"], tool["ok"]) == ("peer/send_message", False)
    assert 0 <= tool["start"] <= tool["start"] + tool["seconds"] <= recent["root"]["seconds"]


async def test_the_client_of_an_ended_call_reads_who_has_ended_it(tmp_path: Path) -> None:
    async with busy_stage(tmp_path) as (staged, gate), api_of(staged) as http:
        async with calling(staged.url("root"), "go") as (_, call):
            await gate.wait_for_entered(1)
            root = (await listed(http))["root"]["id"]
            ends = await asyncio.gather(*(http.delete(f"{PATH}/{root}") for _ in range(2)))
            result = (await call.reply()).result
        recent = await listed(http, "?recent=5")

    assert {one.status_code for one in ends} <= {204, 404}
    assert result["isError"]
    assert result["content"][0]["text"] == "The call was ended by anonymous."
    assert result["_meta"]["pallas/call"]["stop_reason"] == "cancelled"
    assert {one["stopReason"] for one in recent.values()} == {"cancelled"}
