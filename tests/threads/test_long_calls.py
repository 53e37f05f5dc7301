"""Turns in the background that outlive their process, counted at the downstream and at the model."""

import asyncio
import json
import random
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from pallas_gateway.shared.database.tables import task_steps
from tests.support import task_worlds
from tests.support.commands import PATIENT_GATEWAY, Program, started
from tests.support.leases import let_leases_end
from tests.support.task_worlds import World
from tests.support.waiting import eventually, tick

ROUNDS = ([("echo", "one")], [("slow", "two"), ("echo", "beside")], [("echo", "three")])
"""The tools that the model asks for, a round after the other."""


def world(database_url: str, path: Path, **options: Any) -> AbstractAsyncContextManager[World]:
    return task_worlds.world(database_url, path, two=True, off=True, rounds=ROUNDS, **options)


def said(result: str) -> str:
    return str(json.loads(result)["result"]) if result.startswith("{") else result


async def begin(gateways: World, process: Program | None = None) -> str:
    """Begin a turn in the background at another process; return its thread."""
    there = f"{(process or gateways.other).url.replace('localhost', '127.0.0.1')}/api/v1"
    body, headers = {"message": "go", "background": True}, {"Accept": "text/event-stream"}
    async with gateways.api.stream("POST", f"{there}/agents/solo/chat", json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            if '"threadId"' in line:
                return str(line.partition('"threadId":"')[2].partition('"')[0])
    raise AssertionError("no thread")


async def ended(gateways: World, thread: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        messages: list[dict[str, Any]] = (await gateways.api.get(f"/threads/{thread}/messages")).json()["messages"]
        return messages[-1] if messages[-1]["status"] != "pending" else None

    return dict(await eventually(found, what="the end of the turn") or {})


async def are_stored(gateways: World, results: int) -> None:
    """Return once so many results of tools are stored: they are written beside the next step."""
    count = select(func.count()).where(task_steps.c.kind == "result")

    async def stored() -> bool:
        return bool(await gateways.stored(count) == results)

    await eventually(stored, what="the results in the database")


async def test_another_process_goes_on_after_a_kill_in_a_tool_and_runs_nothing_twice(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path) as gateways:
        thread = await begin(gateways)
        await gateways.tools.gate.wait_for_entered(1)
        await are_stored(gateways, 2)
        gateways.other.signal(signal.SIGKILL)
        gateways.tools.gate.open()
        await let_leases_end(database_url)
        answer = await ended(gateways, thread)
        steps = gateways.llm.requests
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["status"] == "complete"
    assert len(steps) == len(ROUNDS) + 1
    results = [said(one) for one in steps[-1].tool_results.values()]
    assert results[0] == "one"
    assert [one for one in results if "result is not known" in one] == [results[1]]


@pytest.mark.parametrize("turn", [1, 2, 4])
async def test_a_turn_of_the_model_that_was_cut_off_is_asked_for_again(
    database_url: str, tmp_path: Path, turn: int
) -> None:
    async with world(database_url, tmp_path, held_turn=turn) as gateways:
        gateways.tools.gate.open()
        thread = await begin(gateways)
        await gateways.model.wait_for_entered(1)
        await are_stored(gateways, [0, 1, 3, 4][turn - 1])
        gateways.other.signal(signal.SIGKILL)
        gateways.model.open()
        await let_leases_end(database_url)
        answer = await ended(gateways, thread)
        asked = len(gateways.llm.requests)
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"
    assert asked == len(ROUNDS) + 2


async def test_a_process_that_was_paused_and_replaced_writes_nothing_and_begins_no_tool(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, held_turn=2) as gateways:
        gateways.tools.gate.open()
        thread = await begin(gateways)
        await gateways.model.wait_for_entered(1)
        await are_stored(gateways, 1)
        gateways.other.signal(signal.SIGSTOP)
        gateways.model.let_through(1)  # its answer waits for the paused process
        await let_leases_end(database_url)
        await gateways.model.wait_for_entered(2)
        gateways.other.signal(signal.SIGCONT)
        await asyncio.to_thread(gateways.other.wait_for, "call ended")
        gateways.model.open()
        answer = await ended(gateways, thread)
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"


async def test_a_drain_leaves_a_turn_after_its_tool_and_loses_nothing(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path) as gateways:
        thread = await begin(gateways)
        await gateways.tools.gate.wait_for_entered(1)
        gateways.other.signal(signal.SIGTERM)
        await asyncio.to_thread(gateways.other.wait_for, "stopping")
        gateways.tools.gate.open()
        answer = await ended(gateways, thread)
        stopped = await asyncio.to_thread(gateways.other.end)
    assert stopped.code == 0
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"
    assert len(gateways.llm.requests) == len(ROUNDS) + 1


async def test_a_client_that_attaches_and_leaves_does_not_end_a_turn_that_went_on(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path, held_turn=2) as gateways:
        gateways.tools.gate.open()
        thread = await begin(gateways)
        await gateways.model.wait_for_entered(1)
        await are_stored(gateways, 1)
        gateways.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        headers = {"Accept": "text/event-stream"}
        request = ("POST", f"/threads/{thread}/answers")
        async with gateways.api.stream(*request, json={"answers": {}}, headers=headers) as attached:
            await anext(attached.aiter_lines())
            await gateways.model.wait_for_entered(2)
        gateways.model.open()
        answer = await ended(gateways, thread)
    assert answer["content"] == "one | done two | beside | three"


async def test_a_turn_of_the_model_that_a_drain_cuts_off_is_asked_for_again(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path, held_turn=2, drain_seconds=0.1) as gateways:
        gateways.tools.gate.open()
        thread = await begin(gateways)
        await gateways.model.wait_for_entered(1)
        gateways.other.signal(signal.SIGTERM)
        await gateways.model.wait_for_entered(2)
        gateways.model.open()
        answer = await ended(gateways, thread)
        stopped = await asyncio.to_thread(gateways.other.end)
    assert stopped.code == 0
    assert answer["content"] == "one | done two | beside | three"


async def test_a_turn_that_another_gateway_runs_is_listed_and_ended_here(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path) as gateways:
        runs = await begin(gateways)
        await gateways.tools.gate.wait_for_entered(1)
        [running_there] = (await gateways.api.get("/calls")).json()["calls"]
        removed = await gateways.api.delete(f"/calls/{running_there['id']}")
        await gateways.tools.gate.wait_for_cancelled(1)
        answer = await ended(gateways, runs)
        after = (await gateways.api.get("/calls")).json()["calls"]
    assert (running_there["api"], running_there["worker"], running_there["atRest"]) == ("threads", None, False)
    assert removed.status_code == 204
    assert (answer["status"], answer["error"]["reason"]) == ("error", "cancelled")
    assert after == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_kill_at_any_moment_runs_no_tool_twice_and_each_call_ends(database_url: str, tmp_path: Path) -> None:
    """At 40 moments: each turn has its own process that is killed, and the same other one goes on."""
    chance = random.Random(48)  # noqa: S311  no secret
    async with world(database_url, tmp_path) as gateways:
        gateways.tools.gate.open()
        environ = {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1", "AUDIT_LOG": f"{tmp_path}/other.log"}
        for number in range(40):
            calls, asked = len(gateways.tool_calls), len(gateways.llm.requests)
            with started(["serve"], gateways.served.project.path, command=PATIENT_GATEWAY, environ=environ) as other:
                await asyncio.to_thread(other.wait_for, "Try:")
                thread = await begin(gateways, other)
                moment = calls + asked + chance.randrange(2 * len(ROUNDS) + 2)
                reached = lambda moment=moment: len(gateways.tool_calls) + len(gateways.llm.requests) > moment  # noqa: E731
                await eventually(reached, what="the moment")
                for _ in range(chance.randrange(5)):
                    await tick()
                other.signal(signal.SIGKILL)
                await let_leases_end(database_url)
                answer = await ended(gateways, thread)
            ran = sorted(gateways.tool_calls[calls:])
            assert ran == sorted({*ran}), (number, ran)
            assert answer["status"] == "complete", (number, answer)
            assert len(gateways.llm.requests) - asked <= len(ROUNDS) + 2, number
            lost = answer["content"].count("result is not known")
            assert len(ran) + lost >= len(ROUNDS) + 1, (number, ran, answer)
