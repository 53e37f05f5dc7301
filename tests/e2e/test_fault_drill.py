"""The drill: model, downstream and an agent's module broken at once. The gateway serves on, says so, and mends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from pallas_gateway.core.agent_state import State
from tests.support.calling import EACH_VERSION, Answer, ask, health
from tests.support.clients import RawCall, raw_client, tool_params
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Limits, Project, Running, module_source, running, until_idle, write_project
from tests.support.listener import black_hole, reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.waiting import eventually, stopwatch

BROKEN = Agent(source="raise ValueError('no key for the archive')\n")


@pytest.fixture(autouse=True)
def quick(limits: Limits) -> None:
    """Every question about health is a new round, also of the provider; a failed agent is tried again soon."""
    limits.gateway.health.fresh_seconds = 0
    limits.gateway.health.stale_seconds = 0
    limits.gateway.lives.first_retry_seconds = 0.01
    limits.gateway.lives.last_retry_seconds = 0.05


def use_what_there_is(request: LlmRequest) -> Turn:
    """Whoever has a tool calls it and says what it brought."""
    if request.tool_results:
        return say("told: " + " | ".join(request.tool_results.values()))
    if "peer__send_message" in request.tools:
        return call_tools([("peer__send_message", {"message": "and you?"})])
    if "tools__echo" in request.tools:
        return call_tools([("tools__echo", {"text": "tools work"})])
    return say("no tools")


def project_of(
    path: Path, llm_url: str, tools_url: str, port: int, timeouts: Mapping[str, int] = MappingProxyType({})
) -> Project:
    """`worker` uses the model and `tools`, `boss` calls `worker`, `archive` is broken, `fine` needs nobody.

    `timeouts` are the `call_timeout_seconds` of agents.
    """
    limits = {name: {"call_timeout_seconds": seconds} for name, seconds in timeouts.items()}
    agents = {
        "worker": Agent(servers=["tools"], settings={"port": port, **limits.get("worker", {})}),
        "boss": Agent(servers=["peer"], settings={"depends_on": ["worker", "archive"], **limits.get("boss", {})}),
        "archive": BROKEN,
        "fine": Agent(model="passthrough"),
    }
    servers = {
        "tools": {"transport": "http", "url": tools_url},
        "peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"},
    }
    return write_project(path, agents, llm_url=llm_url, servers=servers)


@dataclass(frozen=True)
class Drill:
    """The gateway under test, asked as its clients and its operator ask it."""

    served: Running

    async def answers(self) -> dict[str, Answer]:
        """What every agent says, asked in both eras at once; that must not differ."""
        older, newer = await asyncio.gather(*(self._answers(version) for version in EACH_VERSION))
        assert {name: it.text for name, it in older.items()} == {name: it.text for name, it in newer.items()}
        return newer

    async def _answers(self, version: str) -> dict[str, Answer]:
        names = list(self.served.gateway.agents)
        asked = (ask(self.served.url(name), f"to {name}", version=version) for name in names)
        return dict(zip(names, await asyncio.gather(*asked), strict=True))

    async def healths(self) -> dict[str, Mapping[str, Any]]:
        """Every agent's health document."""
        names = list(self.served.gateway.agents)
        documents = await asyncio.gather(*(health(self.served.url(name)) for name in names))
        return dict(zip(names, documents, strict=True))

    async def fetched(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.served.base_url) as http:
            return await http.get(path)

    async def assert_serving(self, *, not_up: set[str]) -> None:
        """Everything around the agents answers as ever."""
        assert (await self.fetched("/livez")).status_code == 200
        readiness = await self.fetched("/readyz")
        assert readiness.status_code == 200
        assert readiness.json().get("not_up", {}).keys() == not_up
        assert (await self.fetched("/readyz?strict=1")).status_code == (503 if not_up else 200)
        listed = (await self.fetched("/.well-known/mcp/server.json")).json()["servers"]
        assert len(listed) == len(self.served.gateway.agents)
        assert "pallas_agent_state" in (await self.fetched("/metrics")).text


async def test_everything_broken_at_once_is_said_and_mends_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pallas")
    with reserved_port() as port, reserved_port() as llm_port:
        async with stateless_downstream(start=False) as tools:
            project = project_of(tmp_path, f"http://127.0.0.1:{llm_port}/v1", tools.url, port)
            async with running(project) as served:
                drill = Drill(served)
                await assert_all_of_it_is_said(drill)
                assert said_once(caplog) == {
                    "agent failed": "archive",
                    "downstream unreachable": "worker",
                }

                async with scripted_llm(use_what_there_is, port=llm_port):
                    await assert_works_without_tools(drill)
                    await tools.start()
                    await assert_works(drill, archive="archive' cannot take calls")
                    project.write_module("archive", module_source("archive", Agent()))
                    await until_ready(served, "archive")
                    await drill.assert_serving(not_up=set())
                    await assert_works(drill, archive="no tools")

                # And once more, while it serves: what has worked breaks and comes back.
                await tools.stop()
                assert (await drill.answers())["worker"].is_error
                assert (await drill.healths())["worker"]["status"] == "degraded"
                await tools.start()
                async with scripted_llm(use_what_there_is, port=llm_port):
                    await assert_works(drill, archive="no tools")
                await until_idle(served)


async def assert_all_of_it_is_said(drill: Drill) -> None:
    await drill.assert_serving(not_up={"archive"})
    answers, healths = await drill.answers(), await drill.healths()
    assert (answers["fine"].text, answers["fine"].is_error) == ("to fine", False)
    for name in ("worker", "boss"):
        assert answers[name].is_error
        assert answers[name].text.startswith("The model could not answer: ")
        assert answers[name].meta["stop_reason"] == "llm_error"
    assert answers["archive"].is_error
    assert "no key for the archive" in answers["archive"].text
    assert statuses(healths) == {"worker": "degraded", "boss": "degraded", "archive": "error", "fine": "ok"}
    assert healths["worker"]["message"] == "Unreachable: tools; LLM: generic: connection refused"
    assert "message" not in healths["fine"]  # it uses another provider
    assert "no key for the archive" in healths["archive"]["message"]
    metric = drill.served.metric
    for name, outcome in (("worker", "error"), ("boss", "error"), ("archive", "error"), ("fine", "ok")):
        assert metric("pallas_send_message_total", agent=name, outcome=outcome) == len(EACH_VERSION)
    assert metric("pallas_agent_state", agent="archive", state="failed") == 1


async def assert_works_without_tools(drill: Drill) -> None:
    answers = await drill.answers()
    assert (answers["worker"].text, answers["worker"].is_error) == ("no tools", False)
    assert (answers["boss"].text, answers["boss"].is_error) == ("told: no tools", False)
    assert (await drill.healths())["worker"]["status"] == "degraded"


async def assert_works(drill: Drill, *, archive: str) -> None:
    answers = await drill.answers()
    assert "tools work" in answers["worker"].text
    assert "tools work" in answers["boss"].text
    assert archive in answers["archive"].text
    assert (answers["fine"].text, answers["fine"].is_error) == ("to fine", False)

    async def all_well() -> bool:  # the provider is asked in the background, health answers with what is known
        found = statuses(await drill.healths())
        return {found[name] for name in ("worker", "boss", "fine")} == {"ok"}

    await eventually(all_well, what="the health of all that works")


def statuses(healths: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: it["status"] for name, it in healths.items()}


def said_once(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Troubles of state in the log and whose they are; each said once however many calls met it."""
    records = [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name in {"pallas.agents", "pallas.runtime"}
    ]
    of_state = [record for record in records if record.getMessage().startswith(("agent failed", "downstream"))]
    said = {record.getMessage(): vars(record)["agent"] for record in of_state}
    assert len(said) == len(of_state)
    return said


async def test_what_hangs_ends_in_time_and_holds_up_nobody(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.attach_seconds = 0.5
    limits.gateway.health.probe_seconds = limits.gateway.health.preflight_seconds = 0.5
    timeouts = {"worker": 3600, "boss": 1}
    with reserved_port() as port, black_hole() as llm, black_hole() as tools:
        project = project_of(tmp_path, f"{llm}/v1", f"{tools}/mcp", port, timeouts)
        async with running(project) as served:
            drill = Drill(served)
            async with a_stuck_call(served) as stuck, stopwatch() as watch:
                for version in EACH_VERSION:
                    assert (await ask(served.url("fine"), "not me", version=version)).text == "not me"
                began = watch.seconds
                healths = await drill.healths()
                assert watch.seconds - began < 3.5
                expected = {"worker": "degraded", "boss": "degraded", "archive": "error", "fine": "ok"}
                assert statuses(healths) == expected
                assert "LLM: generic: no answer within 0.5 s" in healths["boss"]["message"]
                await drill.assert_serving(not_up={"archive"})
                in_time = await ask(served.url("boss"))
                assert not in_time.is_error
                assert "did not finish within its 1 s" in in_time.text
                assert served.metric("pallas_calls_in_flight", agent="worker") == 1
                assert stuck.messages == []
            await until_idle(served)


@asynccontextmanager
async def a_stuck_call(served: Running) -> AsyncIterator[RawCall]:
    """A call of `worker`, which waits for its model until the caller leaves."""
    params = tool_params("send_message", {"message": "hello"})
    async with (
        raw_client(served.url("worker"), protocol_version=EACH_VERSION[0]) as client,
        client.in_flight("tools/call", params) as call,
    ):
        await eventually(lambda: served.metric("pallas_calls_in_flight", agent="worker") == 1, what="a stuck call")
        yield call


async def until_ready(served: Running, name: str) -> None:
    agent = served.gateway.agents[name]
    await eventually(lambda: agent.status.state is State.READY, what=f"{name} ready")
