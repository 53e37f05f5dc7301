"""Turns in the background that outlive their process, counted at the downstream and at the model."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.tables import task_steps
from tests.support.commands import PATIENT_GATEWAY, Program, started
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, limited, running, write_project
from tests.support.leases import let_leases_end
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually, tick

ROUNDS = (("echo", "one"), ("slow", "two"), ("echo", "three"))
"""The tools that the model asks for, a round after the other; beside the slow one another runs."""


def said(result: str) -> str:
    return str(json.loads(result)["result"]) if result.startswith("{") else result


@dataclass
class World:
    """Two gateways on a database: `other`, a process that a test ends, and one that goes on with its calls."""

    other: Program
    another: Callable[[], AbstractContextManager[Program]]
    here: httpx.AsyncClient
    tools: StatelessDownstream
    llm: ScriptedLlm
    model: Gate
    database: str

    async def begin(self, process: Program | None = None) -> str:
        """Begin a turn in the background at another process; return its thread."""
        there = f"{(process or self.other).url.replace('localhost', '127.0.0.1')}/api/v1"
        body = {"message": "go", "background": True}
        headers = {"Accept": "text/event-stream"}
        async with self.here.stream("POST", f"{there}/agents/solo/chat", json=body, headers=headers) as response:
            async for line in response.aiter_lines():
                if '"threadId"' in line:
                    return str(line.partition('"threadId":"')[2].partition('"')[0])
        raise AssertionError("no thread")

    async def answer(self, thread: str) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            messages: list[dict[str, Any]] = (await self.here.get(f"/threads/{thread}/messages")).json()["messages"]
            return messages[-1] if messages[-1]["status"] != "pending" else None

        found = await eventually(ended, what="the end of the turn")
        return dict(found or {})

    async def stored(self, results: int) -> None:
        """Return once so many results of tools are stored: they are written beside the next step."""
        count = select(func.count()).where(task_steps.c.kind == "result")
        database = Database(Secret(self.database), Path("/"))
        try:

            async def are_stored() -> bool:
                return bool(await database.read(lambda sql: sql.scalar(count)) == results)

            await eventually(are_stored, what="the results in the database")
        finally:
            await database.close()

    @property
    def tool_calls(self) -> list[str]:
        """The tool calls that arrived at the downstream, by their texts."""
        return [next(iter(one.rpc["params"]["arguments"].values())) for one in self.tools.recorder.requests if one.tool]


@asynccontextmanager
async def world(database_url: str, path: Path, *, held_turn: int = 0, **gateway: Any) -> AsyncIterator[World]:
    """Serve both; the model's turn number `held_turn` is held at `model`."""
    environ = {"THREADS_URL": database_url, "PALLAS_LOG_STDERR": "1"}
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        turn = len(request.called) and sum(1 for one in request.messages if one.get("tool_calls"))
        wanted = [(name, text) for name, text in ROUNDS[turn : turn + 1]]
        if wanted and wanted[0][0] == "slow":
            wanted.append(("echo", "beside"))
        calls = [(f"tools__{name}", {"label" if name == "slow" else "text": text}) for name, text in wanted]
        answer = call_tools(calls) if calls else say(" | ".join(map(said, request.tool_results.values())))
        return hang(gate, answer) if turn + 1 == held_turn else answer

    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(stateless_downstream())
        llm = await stack.enter_async_context(scripted_llm(script))
        project = write_project(
            path,
            {"solo": Agent(["tools"])},
            llm_url=llm.base_url,
            servers={"tools": {"url": tools.url}},
            gateway={"database": "${THREADS_URL}", "port": 0, **gateway},
        )
        another = partial(started, ["serve"], project.path, command=PATIENT_GATEWAY, environ=environ)
        other = stack.enter_context(another())
        limits = stack.enter_context(limited())
        limits.gateway.tasks.claim_seconds = 0.05
        served = await stack.enter_async_context(running(project, environ={**os.environ, **environ}))
        api = httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False, timeout=60)
        here = await stack.enter_async_context(api)
        await asyncio.to_thread(other.wait_for, "Try:")
        yield World(other, another, here, tools, llm, gate, database_url)


async def test_another_process_goes_on_after_a_kill_in_a_tool_and_runs_nothing_twice(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path / "project") as gateways:
        thread = await gateways.begin()
        await gateways.tools.gate.wait_for_entered(1)
        await gateways.stored(2)
        gateways.other.signal(signal.SIGKILL)
        gateways.tools.gate.open()
        await let_leases_end(database_url)
        answer = await gateways.answer(thread)
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
    async with world(database_url, tmp_path / "project", held_turn=turn) as gateways:
        gateways.tools.gate.open()
        thread = await gateways.begin()
        await gateways.model.wait_for_entered(1)
        await gateways.stored([0, 1, 3, 4][turn - 1])
        gateways.other.signal(signal.SIGKILL)
        gateways.model.open()
        await let_leases_end(database_url)
        answer = await gateways.answer(thread)
        asked = len(gateways.llm.requests)
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"
    assert asked == len(ROUNDS) + 2


async def test_a_process_that_was_paused_and_replaced_writes_nothing_and_begins_no_tool(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path / "project", held_turn=2) as gateways:
        gateways.tools.gate.open()
        thread = await gateways.begin()
        await gateways.model.wait_for_entered(1)
        await gateways.stored(1)
        gateways.other.signal(signal.SIGSTOP)
        gateways.model.let_through(1)  # its answer waits for the paused process
        await let_leases_end(database_url)
        await gateways.model.wait_for_entered(2)
        gateways.other.signal(signal.SIGCONT)
        await asyncio.to_thread(gateways.other.wait_for, "call ended")
        gateways.model.open()
        answer = await gateways.answer(thread)
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"


async def test_a_drain_leaves_a_turn_after_its_tool_and_loses_nothing(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path / "project") as gateways:
        thread = await gateways.begin()
        await gateways.tools.gate.wait_for_entered(1)
        gateways.other.signal(signal.SIGTERM)
        await asyncio.to_thread(gateways.other.wait_for, "stopping")
        gateways.tools.gate.open()
        answer = await gateways.answer(thread)
        ended = await asyncio.to_thread(gateways.other.end)
    assert ended.code == 0
    assert sorted(gateways.tool_calls) == ["beside", "one", "three", "two"]
    assert answer["content"] == "one | done two | beside | three"
    assert len(gateways.llm.requests) == len(ROUNDS) + 1


async def test_a_client_that_attaches_and_leaves_does_not_end_a_turn_that_went_on(
    database_url: str, tmp_path: Path
) -> None:
    async with world(database_url, tmp_path / "project", held_turn=2) as gateways:
        gateways.tools.gate.open()
        thread = await gateways.begin()
        await gateways.model.wait_for_entered(1)
        await gateways.stored(1)
        gateways.other.signal(signal.SIGKILL)
        await let_leases_end(database_url)
        headers = {"Accept": "text/event-stream"}
        request = ("POST", f"/threads/{thread}/answers")
        async with gateways.here.stream(*request, json={"answers": {}}, headers=headers) as attached:
            await anext(attached.aiter_lines())
            await gateways.model.wait_for_entered(2)
        gateways.model.open()
        answer = await gateways.answer(thread)
    assert answer["content"] == "one | done two | beside | three"


async def test_a_turn_of_the_model_that_a_drain_cuts_off_is_asked_for_again(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path / "project", held_turn=2, drain_seconds=0.1) as gateways:
        gateways.tools.gate.open()
        thread = await gateways.begin()
        await gateways.model.wait_for_entered(1)
        gateways.other.signal(signal.SIGTERM)
        await gateways.model.wait_for_entered(2)
        gateways.model.open()
        answer = await gateways.answer(thread)
        ended = await asyncio.to_thread(gateways.other.end)
    assert ended.code == 0
    assert answer["content"] == "one | done two | beside | three"


async def test_a_turn_that_another_gateway_runs_is_listed_and_ended_here(database_url: str, tmp_path: Path) -> None:
    async with world(database_url, tmp_path / "project") as gateways:
        runs = await gateways.begin()
        await gateways.tools.gate.wait_for_entered(1)
        [running_there] = (await gateways.here.get("/calls")).json()["calls"]
        ended = await gateways.here.delete(f"/calls/{running_there['id']}")
        await gateways.tools.gate.wait_for_cancelled(1)
        answer = await gateways.answer(runs)
        after = (await gateways.here.get("/calls")).json()["calls"]
    assert (running_there["api"], running_there["worker"], running_there["atRest"]) == ("threads", None, False)
    assert ended.status_code == 204
    assert (answer["status"], answer["error"]["reason"]) == ("error", "cancelled")
    assert after == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_kill_at_any_moment_runs_no_tool_twice_and_each_call_ends(database_url: str, tmp_path: Path) -> None:
    """At 40 moments: each turn has its own process that is killed, and the same other one goes on."""
    chance = random.Random(48)  # noqa: S311  no secret
    async with world(database_url, tmp_path / "project") as gateways:
        gateways.tools.gate.open()
        for number in range(40):
            calls, asked = len(gateways.tool_calls), len(gateways.llm.requests)
            with gateways.another() as other:
                await asyncio.to_thread(other.wait_for, "Try:")
                thread = await gateways.begin(other)
                moment = calls + asked + chance.randrange(2 * len(ROUNDS) + 2)
                reached = lambda moment=moment: len(gateways.tool_calls) + len(gateways.llm.requests) > moment  # noqa: E731
                await eventually(reached, what="the moment")
                for _ in range(chance.randrange(5)):
                    await tick()
                other.signal(signal.SIGKILL)
                await let_leases_end(database_url)
                answer = await gateways.answer(thread)
            ran = sorted(gateways.tool_calls[calls:])
            assert ran == sorted({*ran}), (number, ran)
            assert answer["status"] == "complete", (number, answer)
            assert len(gateways.llm.requests) - asked <= len(ROUNDS) + 2, number
            lost = answer["content"].count("result is not known")
            assert len(ran) + lost >= len(ROUNDS) + 1, (number, ran, answer)
