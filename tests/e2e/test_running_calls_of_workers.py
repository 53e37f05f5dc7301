"""The calls of several workers in one list, and the end of one at another worker."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from pallas_gateway.identity.static_keys import hash_of
from tests.e2e.fleet import fleet
from tests.support.askable_callers import CAN_BE_ASKED
from tests.support.clients import MODERN_VERSION
from tests.support.waiting import eventually, stopwatch

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

PATH = "/api/v1/calls"
HEADERS = {
    "mcp-protocol-version": MODERN_VERSION,
    "mcp-method": "tools/call",
    "mcp-name": "send_message",
    "accept": "application/json, text/event-stream",
}


ADA = {"action": "accept", "content": {"name": "Ada"}}


async def called(http: httpx.AsyncClient, url: str, told: str, **params: Any) -> dict[str, Any]:
    """The result of a call of 2026-07-28, or of the repeated request of one."""
    return dict((await response_of(http, url, told, **params))["result"])


async def response_of(http: httpx.AsyncClient, url: str, told: str, **params: Any) -> dict[str, Any]:
    meta = {**CAN_BE_ASKED, "io.modelcontextprotocol/protocolVersion": MODERN_VERSION}
    arguments = {"name": "send_message", "arguments": {"message": told}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**arguments, **params, "_meta": meta}}
    return dict((await http.post(url, json=body, headers=HEADERS)).json())


async def listed(http: httpx.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    document = (await http.get(PATH + query)).raise_for_status().json()
    assert "missing" not in document
    return list(document["calls"])


async def test_a_call_is_listed_and_ended_from_another_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client_of(pid)) for pid in sorted(served.pids)]
        calls = [asyncio.create_task(called(http, served.url("root"), "delegate hang on")) for http in clients]
        await served.gate.wait_for_entered(2)
        lists = [await listed(http) for http in clients]
        assert [[(one["id"], one["worker"]) for one in calls] for calls in lists[1:]] == [
            [(one["id"], one["worker"]) for one in lists[0]]
        ]
        root, of_another = sorted((one for one in lists[0] if one["agent"] == "root"), key=lambda one: one["worker"])
        assert (root["worker"], of_another["worker"]) == (1, 2)
        own = {one["id"] for one in lists[0] if one["worker"] == 1}
        for http in clients:  # each of them is told by one that has it, and by one that has not
            doomed = root if http is clients[0] else of_another
            assert (await http.delete(f"{PATH}/{doomed['id']}")).status_code == 204
        results = await asyncio.gather(*calls)
        await eventually(lambda: no_calls(clients[1]), what="the end of all calls")
        again = await clients[1].delete(f"{PATH}/{root['id']}")
        recent = await listed(clients[1], "?recent=3")

    assert len(own) == 2
    assert {one["content"][0]["text"] for one in results} == {"The call was ended by anonymous."}
    assert (again.status_code, again.json()["error"]) == (404, "not_found")
    assert len(recent) == 3
    assert [one["endedAt"] for one in recent] == sorted((one["endedAt"] for one in recent), reverse=True)
    assert {one["worker"] for one in recent} == {1, 2}


async def test_each_worker_decides_who_may_list_and_end_its_calls(tmp_path: Path) -> None:
    keys = {"alice": ["run:agents"], "bob": ["run:agents"], "seer": ["view:calls"]}
    tokens = [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in keys.items()]
    async with fleet(tmp_path, auth={"tokens": tokens}) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client_of(pid)) for pid in sorted(served.pids)]
        clients[0].headers["authorization"] = "Bearer alice"
        call = asyncio.create_task(called(clients[0], served.url("peer"), "hang on"))
        await served.gate.wait_for_entered(1)
        [running] = await listed(clients[0])
        told = {}
        for name in (None, "bob", "seer", "alice"):
            http = clients[1]
            http.headers["authorization"] = f"Bearer {name}" if name else "Bearer"
            shown = await http.get(PATH)
            ended = await http.delete(f"{PATH}/{running['id']}")
            told[name] = shown.status_code, len(shown.json().get("calls", ())), ended.status_code
        text = (await call)["content"][0]["text"]
    assert told == {None: (401, 0, 401), "bob": (200, 0, 404), "seer": (200, 1, 403), "alice": (200, 1, 204)}
    assert text == "The call was ended by key:alice."


async def no_calls(http: httpx.AsyncClient) -> bool:
    return await listed(http) == []


async def test_a_call_that_waits_between_two_requests_ends_and_its_client_reads_who_ended_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(served.client_of(pid)) for pid in served.pids]
        asked = await called(one, served.url("peer"), "ask")
        [waiting] = await listed(other)
        assert (waiting["agent"], waiting["waiting"]) == ("peer", True)
        assert (await other.delete(f"{PATH}/{waiting['id']}")).status_code == 204
        assert await listed(other) == []
        answers = dict.fromkeys(asked["inputRequests"], ADA)
        result = await called(
            other, served.url("peer"), "ask", requestState=asked["requestState"], inputResponses=answers
        )

    assert result["isError"]
    assert result["content"][0]["text"] == "The call was ended by anonymous."
    assert result["_meta"]["pallas/call"]["stop_reason"] == "cancelled"


async def test_a_call_that_was_ended_while_it_waited_is_resumed_by_no_other_worker(tmp_path: Path) -> None:
    async with fleet(tmp_path) as served, AsyncExitStack() as stack:
        doomed, other = sorted(served.pids)
        one, http = [await stack.enter_async_context(served.client_of(pid)) for pid in (doomed, other)]
        asked = [await called(one, served.url("peer"), "ask") for _ in range(2)]
        waiting = await listed(http)
        assert (await http.delete(f"{PATH}/{waiting[0]['id']}")).status_code == 204
        os.kill(doomed, signal.SIGKILL)
        await eventually(lambda: doomed not in served.pids, what="the end of the worker")
        answers = [dict.fromkeys(call["inputRequests"], ADA) for call in asked]
        ended, resumed = [
            await response_of(http, served.url("peer"), "ask", requestState=call["requestState"], inputResponses=given)
            for call, given in zip(asked, answers, strict=True)
        ]
    assert ended["error"]["data"]["reason"] == "invalid_request_state"
    assert resumed["result"]["content"][0]["text"] == '{"name": "Ada"}'


async def the_only_call(http: httpx.AsyncClient) -> dict[str, Any] | None:
    """The call, unless its worker was too busy to answer in time."""
    calls = (await http.get(PATH)).raise_for_status().json()["calls"]
    return dict(calls[0]) if calls else None


async def test_a_worker_that_does_not_answer_is_named_and_delays_nothing_for_long(tmp_path: Path) -> None:
    async with fleet(tmp_path, is_patient=False) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(one))
        stopped = await stack.enter_async_context(served.client_of(other))
        call = asyncio.create_task(called(stopped, served.url("peer"), "hang on"))
        await served.gate.wait_for_entered(1)
        running = await eventually(lambda: the_only_call(http), what="the call")
        os.kill(other, signal.SIGSTOP)
        try:
            async with stopwatch() as watch:
                document = (await http.get(PATH)).json()
                unknown = await http.delete(f"{PATH}/{running['id']}")
            assert watch.seconds < 10
        finally:
            os.kill(other, signal.SIGCONT)
        assert document == {"calls": [], "missing": [running["worker"]]}
        assert (unknown.status_code, unknown.json()["error"], unknown.headers["retry-after"]) == (503, "busy", "5")
        assert (await call)["content"][0]["text"] == "The call was ended by anonymous."  # once the worker goes on
        await eventually(lambda: no_calls(http), what="the end of the call")
