"""Limits and the audit log with several workers: one ledger in their parent, whichever process ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import yaml

from tests.e2e.fleet import WorkerManager, fleet, runs
from tests.support.calling import answer_of
from tests.support.clients import RawClient, raw_client
from tests.support.crowds import crowd
from tests.support.waiting import eventually

ASK = {"name": "send_message", "arguments": {"message": "ask"}}
OK, LIMITED = "ok", "rate_limit_exceeded"


def limits(**rule: Any) -> dict[str, Any]:
    return {"openai_api": True, "limits": {"rules": [rule]}}


async def outcome_of(http: httpx.AsyncClient, message: str = "hello", agent: str = "peer") -> str:
    """Call an agent; `ok`, or the code of the error."""
    body = {"model": agent, "messages": [{"role": "user", "content": message}]}
    response = await http.post("/v1/chat/completions", json=body)
    return OK if response.status_code == 200 else str(response.json()["error"]["code"])


async def clients_of_each(served: WorkerManager, stack: AsyncExitStack) -> list[httpx.AsyncClient]:
    return [await stack.enter_async_context(served.client_of(pid)) for pid in sorted(served.pids)]


async def until(outcome: str, http: httpx.AsyncClient, seconds: float = 30) -> None:
    async def has_come() -> bool:
        return await outcome_of(http) == outcome

    await eventually(has_come, seconds, what=f"a call that is {outcome}")


def reload(served: WorkerManager, **gateway: Any) -> None:
    file = served.folder / "agents.yaml"
    document = yaml.safe_load(file.read_text())
    document["gateway"] |= gateway
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    served.program.signal(signal.SIGHUP)


def begun(clients: list[httpx.AsyncClient]) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(outcome_of(http, "hang")) for http in clients]


@crowd(300, 1000)
async def test_of_many_calls_to_four_workers_exactly_100_begin_in_a_minute(size: int, tmp_path: Path) -> None:
    async with fleet(tmp_path, workers=4, **limits(calls_per_minute=100)) as served, AsyncExitStack() as stack:
        clients = 5 * await clients_of_each(served, stack)

        async def calls(http: httpx.AsyncClient) -> list[str]:
            return [await outcome_of(http) for _ in range(size // len(clients))]

        began = monotonic()
        outcomes = Counter(one for each in await asyncio.gather(*map(calls, clients)) for one in each)
        minutes = 1 + int((monotonic() - began) // 60)  # a machine that takes longer than one begins others later
        refused = await served.metric("pallas_calls_refused_total", agent="peer", reason="limited")
    assert outcomes.keys() == {OK, LIMITED}
    assert 100 <= outcomes[OK] <= 100 * minutes
    assert outcomes.total() == size
    assert refused == outcomes[LIMITED]


async def test_the_leases_of_a_killed_worker_end_and_its_calls_are_in_the_audit_log(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path, audit_log="audit.log", **limits(calls_at_once=2)) as served,
        AsyncExitStack() as stack,
    ):
        dying, staying = sorted(served.pids)
        # A client each: a second connection of one client may come to the other worker.
        both = [await stack.enter_async_context(served.client_of(dying)) for _ in range(2)]
        other = await stack.enter_async_context(served.client_of(staying))
        lost = begun(both)
        await served.gate.wait_for_entered(2)
        assert await outcome_of(other) == LIMITED
        os.kill(dying, signal.SIGKILL)
        assert await asyncio.gather(*lost, return_exceptions=True) != [OK, OK]
        await until(OK, other)
        ended = await eventually(lambda: _two_ended(audited(served)), what="the ends of both calls")
        lines = audited(served)
    assert [line["outcome"] for line in ended] == ["error", "error"]
    assert {line["call_id"] for line in ended} <= {line["call_id"] for line in lines if line["outcome"] == "allowed"}


async def test_a_call_that_waits_for_its_caller_keeps_its_lease_until_it_ends(tmp_path: Path) -> None:
    async with fleet(tmp_path, **limits(calls_at_once=1)) as served, AsyncExitStack() as stack:
        one, other = sorted(served.pids)
        http = await stack.enter_async_context(served.client_of(other))
        client: RawClient = await stack.enter_async_context(
            raw_client(served.url("peer"), protocol_version="2025-11-25")
        )
        with served.only(one):
            await client.initialize()
            client.session_id = "made-up.f"
            call = await stack.enter_async_context(client.in_flight("tools/call", ASK))
            [question] = [note for note in await call.wait_for_notifications(1, 60) if "elicitation" in note["method"]]
        assert await outcome_of(http) == LIMITED
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "Ada"}}}
        headers = {"mcp-session-id": "made-up.f", "content-type": "application/json"}
        assert (await http.post(served.url("peer"), json=answer, headers=headers)).status_code == 202
        assert answer_of(await call.reply(60)).text == '{"name": "Ada"}'
        assert await outcome_of(http) == OK


async def test_a_reload_raises_a_limit_for_all_workers_and_one_that_fails_changes_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path, **limits(calls_per_minute=1)) as served, AsyncExitStack() as stack:
        one, other = await clients_of_each(served, stack)
        assert [await outcome_of(http) for http in (one, other, one)] == [OK, LIMITED, LIMITED]
        reload(served, limits={"rules": [{"calls_per_minute": 4}]}, nonsense=1)
        await asyncio.to_thread(served.program.wait_for, "configuration rejected")
        assert await outcome_of(other) == LIMITED
        document = yaml.safe_load((served.folder / "agents.yaml").read_text())
        del document["gateway"]["nonsense"]
        (served.folder / "agents.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        reload(served)
        await until(OK, other)
        await until(OK, one)
        assert [await outcome_of(http) for http in (one, other)] == [OK, LIMITED]
        reload(served, limits={"rules": []})
        await until(OK, one)
        await until(OK, other)


async def test_a_worker_that_reloads_alone_counts_by_its_new_limits(tmp_path: Path) -> None:
    async with fleet(tmp_path, **limits(calls_per_minute=1)) as served, AsyncExitStack() as stack:
        one, _ = await clients_of_each(served, stack)
        assert [await outcome_of(one), await outcome_of(one)] == [OK, LIMITED]
        file = served.folder / "agents.yaml"
        file.write_text(file.read_text().replace("calls_per_minute: 1", "calls_per_minute: 100"))
        os.kill(min(served.pids), signal.SIGHUP)
        await until(OK, one)


async def test_calls_finish_when_the_parent_is_killed_and_no_process_is_left(tmp_path: Path) -> None:
    async with fleet(tmp_path, **limits(calls_at_once=10, tokens_per_day=10_000_000)) as served:
        workers = served.pids
        async with AsyncExitStack() as stack:
            clients = await clients_of_each(served, stack)
            running = begun(clients)
            await served.gate.wait_for_entered(2)
            served.program.signal(signal.SIGKILL)
            await asyncio.to_thread(served.program.end)
            late = [await _settled(outcome_of(http)) for http in clients]
            served.gate.open()
            assert await asyncio.wait_for(asyncio.gather(*running), 60) == [OK, OK]
        assert OK not in late
        await eventually(lambda: not any(map(runs, workers)), 60, what="the end of the workers")


def audited(served: WorkerManager) -> list[dict[str, Any]]:
    """The lines of the audit log so far, without one that is half written."""
    whole, _, _ = (served.folder / "audit.log").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _two_ended(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ended = [line for line in lines if line["action"] == "call_end" and line["reason"] == "worker_ended"]
    return ended if len(ended) >= 2 else []


async def _settled(call: Awaitable[str]) -> str:
    try:
        return await call
    except httpx.HTTPError as error:
        return type(error).__name__
