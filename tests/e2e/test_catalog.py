"""Calls that know beforehand what their downstreams offer: what they share of it, and what is each one's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import one_user
from tests.support.calling import ask, health
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.downstreams import Recorder, stateful_downstream, stateless_downstream
from tests.support.gateway import Agent, Limits, Project, module_of, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.waiting import Gate, eventually, stopwatch

ALICE: dict[str, Any] = {"bearer": "alice-token", "headers": {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}}
NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
TEXT = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}
FLOW = module_of(
    'agent(name="first", instruction="You are first.", servers=["b", "a"])',
    'agent(name="second", instruction="You are second. {{serverInstructions}}", servers=["a"])',
    'agent(name="head", instruction="You are head.", servers=["a"], agents=["second"])',
    'chain(name="flow", sequence=["first", "head"], default=True)',
)


class World(one_user.World):
    async def ask(self, message: str = "hello", **more: Any) -> str:
        answer = await ask(self.url, message, **more)
        assert not answer.is_error
        return answer.text


@asynccontextmanager
async def world(path: Path, /, **servers: str | Mapping[str, Any]) -> AsyncIterator[World]:
    async with one_user.world(path, obedient, **servers) as it:
        yield World(it.served, it.llm)


def obedient(request: LlmRequest) -> Turn:
    """A model that is told in words which tools to use at once, and says what they gave, or what tools there are."""
    if request.tool_results:
        return say(" | ".join(result for _, result in sorted(request.tool_results.items())))
    if request.last_user_text.startswith("use "):
        return call_tools([(name, {}) for name in request.last_user_text.split()[1:]])
    return say(" ".join(request.tools) or "no tools")


def asked_ahead(recorder: Recorder) -> set[str]:
    return set(recorder.rpc_methods) - {"tools/call"}


async def until_known(it: World, *recorders: Recorder) -> None:
    """Wait until calls ask nothing by themselves any more."""

    async def asks_nothing() -> bool:
        for recorder in recorders:
            recorder.clear()
        await it.ask("leave it")
        await until_idle(it.served)
        return not any(recorder.requests for recorder in recorders)

    await eventually(asks_nothing, what="a call that asks nothing")


async def test_what_is_asked_ahead_is_asked_in_nobodys_name_and_remembered_for_nobody(
    tmp_path: Path, limits: Limits
) -> None:
    limits.runtime.listings.again_seconds = 0
    async with (
        changing_downstream("one", tells=True, start=False) as late,
        changing_downstream("one", era="initialize", stateless=False, start=False) as older,
        world(
            tmp_path,
            late={"url": late.url, "headers": {"x-team": "blue"}},
            older={"url": older.url, "headers": {"x-team": "blue"}},
        ) as it,
    ):
        await late.start()
        await older.start()
        await it.ask(**ALICE)  # whose call has them asked
        await late.recorder.until(lambda seen: "subscriptions/listen" in seen.rpc_methods)
        ahead = [r for r in (*late.recorder.requests, *older.recorder.requests) if "traceparent" not in r.headers]
        assert {r.rpc_method for r in ahead} >= {"server/discover", "tools/list", "subscriptions/listen", "initialize"}
        await until_known(it, late.recorder, older.recorder)
        for _ in range(2):
            await it.ask("use late__one older__one late__one", **ALICE)
            await until_idle(it.served)
        calls = [r for server in (late, older) for r in server.recorder.requests if r.method != "GET"]
        assert len(calls) == 2 * (2 + 4)  # of the older era: a session is begun, used and ended
        everything = [*ahead, *calls]
        assert {r.headers.get("x-team") for r in everything} == {"blue"}
        assert not [r for r in everything if r.bearer]
        assert {r.rpc_method or r.method for r in calls if "cookie" in r.headers} == {
            "notifications/initialized",  # within a session of the older era, which may hang on it
            "tools/call",
            "DELETE",
        }
        assert not [r for r in late.recorder.calls() if "cookie" in r.headers]
        assert {r.headers.get("traceparent", "")[3:35] for r in calls} == {"a" * 32}


async def test_downstream_dies_comes_back_and_comes_back_in_another_era(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.outage_seconds = 0
    limits.runtime.listings.again_seconds = 0
    caplog.set_level("INFO", logger="pallas.runtime")
    async with stateless_downstream() as tools, world(tmp_path, tools=tools.url) as it:
        use = "use tools__add"
        for era in ("initialize", "modern", "both"):
            await until_known(it, tools.recorder)
            await tools.stop()
            failed = await it.ask(use)
            assert "Traceback" not in failed
            assert failed.startswith("Failed to call_tool 'add' on server 'tools': ")
            assert "127.0.0.1" not in failed
            assert await it.ask() == "no tools"
            assert await it.ask() == "no tools"
            tools.era = era
            await tools.start()
            await eventually(lambda: it.ask(use), what="its tools")
            assert (await it.ask()).startswith("tools__add")
        said = [r.getMessage().partition(",")[0] for r in caplog.records if r.name == "pallas.runtime"]
        assert said == ["tool call repeated", "downstream unreachable", "downstream available again"] * 3
        await until_known(it, tools.recorder)
        await tools.stop()
        tools.era = "initialize"
        await tools.start()  # and nobody has noticed
        results = [await it.ask("use tools__echo") for _ in range(3)]
        assert ["validation" in result.lower() for result in results[1:]] == [True, True]  # its own words, not of 400


async def test_each_call_has_its_own_session_however_many_tools_it_begins_with(tmp_path: Path) -> None:
    async with stateful_downstream() as counter, world(tmp_path, counter=counter.url) as it:
        await until_known(it, counter.recorder)
        await counter.recorder.until(lambda seen: not seen.sessions)
        many = "use" + 5 * " counter__count"
        answers = await asyncio.gather(*(it.ask(many) for _ in range(4)))
        for answer in answers:
            assert sorted(answer.split(" | ")) == [f'{{"result":{n}}}' for n in range(1, 6)]
        await until_idle(it.served)
        await counter.recorder.until(lambda seen: not seen.sessions)
        assert counter.recorder.rpc_methods.count("initialize") == 4
        assert sorted(counter.counts.values()) == [5, 5, 5, 5]
        assert (await health(it.url))["status"] == "ok"
        await counter.recorder.until(lambda seen: not seen.sessions)


async def test_tools_that_are_gone_and_results_of_another_shape_than_was_known(tmp_path: Path) -> None:
    async with changing_downstream("gone", "kept") as server, world(tmp_path, server=server.url) as it:
        server.tools["kept"] = ChangingTool({"n": 1}, NUMBER)
        await until_known(it, server.recorder)
        server.tools = {"kept": ChangingTool({"n": 1}, NUMBER)}
        assert "gone" in await it.ask("use server__gone")
        await eventually(it.ask, what="an answer")
        assert await it.ask() == "server__kept"
        await until_known(it, server.recorder)
        assert '"n":1' in await it.ask("use server__kept")
        assert asked_ahead(server.recorder) == set()
        server.tools = {"kept": ChangingTool({"t": "text"}, TEXT)}
        assert '"t":"text"' in await it.ask("use server__kept")
        await until_known(it, server.recorder)
        assert '"t":"text"' in await it.ask("use server__kept")
        server.tools = {"kept": ChangingTool({"t": 5}, TEXT)}
        assert "does not fit the schema" in await it.ask("use server__kept")


@pytest.mark.parametrize("unknown_as_result", [True, False])
async def test_a_call_after_one_that_used_a_renamed_tool_has_the_new_one(
    unknown_as_result: bool, tmp_path: Path
) -> None:
    async with changing_downstream("before") as server, world(tmp_path, server=server.url) as it:
        server.unknown_as_result = unknown_as_result
        await until_known(it, server.recorder)
        server.tools = {"after": ChangingTool()}  # redeployed; it tells of no change
        assert await it.ask() == "server__before"
        assert "Unknown tool" in await it.ask("use server__before")
        assert await it.ask() == "server__after"
        assert "done" in await it.ask("use server__after")
        await until_known(it, server.recorder)  # listed in the background as well


@pytest.mark.usefixtures("brief_sockets", "patience")
async def test_crowd_shares_one_downstream_and_leaves_nothing_open(tmp_path: Path) -> None:
    crowd = 40
    async with stateless_downstream() as tools, world(tmp_path, tools=tools.url) as it:
        await until_known(it, tools.recorder)
        before = snapshot().descriptors["socket:"]
        calls = [asyncio.create_task(it.ask("use tools__slow")) for _ in range(crowd)]
        await tools.gate.wait_for_entered(crowd, 60)
        tools.gate.open()
        assert {"done" in answer for answer in await asyncio.gather(*calls)} == {True}
        assert len(tools.recorder.requests) == crowd
        await until_idle(it.served)
        await eventually(lambda: snapshot().descriptors["socket:"] <= before + 10, what="sockets closed")


async def test_workflows_and_clones_know_too_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        system = str(request.messages[0]["content"])
        if request.tool_results:
            return say("|".join(request.tool_results.values()))
        if "You are first" in system:
            return say(" ".join(request.tools))
        if "You are head" in system:
            return call_tools([("agent__second", {"message": "go"}), ("a__one", {})])
        assert "mind the gap" in system
        return call_tools([("a__one", {})])

    async with (
        changing_downstream("one", "two", instructions="mind the gap") as a,
        changing_downstream("three") as b,
        scripted_llm(script) as llm,
    ):
        servers = {name: {"transport": "http", "url": one.url} for name, one in {"a": a, "b": b}.items()}
        project = write_project(tmp_path, {"user": Agent(source=FLOW)}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served:
            it = World(served, llm)
            answers = [await it.ask() for _ in range(2)]
            await eventually(lambda: a.recorder.requests and b.recorder.requests)
            await until_idle(served)
            a.recorder.clear()
            b.recorder.clear()
            answers.append(await it.ask())
    assert {"done" in answer for answer in answers} == {True}
    assert (a.recorder.rpc_methods, b.recorder.rpc_methods) == (["tools/call"] * 2, [])
    assert any(request.last_user_text == "b__three a__one a__two" for request in llm.requests)


async def test_one_that_hangs_when_it_is_asked_delays_no_other_and_reload_closes_what_was_open(tmp_path: Path) -> None:
    async with (
        changing_downstream("one", tells=True) as old,
        changing_downstream("two", tells=True) as new,
        stopwatch() as watch,
    ):
        async with world(tmp_path, server=old.url) as it:
            await it.served.reload()  # what a first one leaves is none of this
            for before, after, tool in (
                (old, new, "server__two"),
                (new, old, "server__one"),
                (old, new, "server__two"),
            ):
                await until_known(it, before.recorder)
                assert [r.rpc_method for r in before.recorder.open] == ["subscriptions/listen"]
                open_before = snapshot()
                move(it.served.project, after.url)
                await it.served.reload()
                await before.recorder.until(lambda seen: not seen.open)
                assert await it.ask() == tool
            await assert_nothing_left(open_before)
            gate = new.gates["tools/list"] = Gate()
            new.recorder.clear()
            await new.change(three=ChangingTool())
            await gate.wait_for_entered()
            assert await it.ask() == "server__two"
            stopping = watch.seconds
        assert watch.seconds - stopping < 5


def move(project: Project, url: str) -> None:
    project.edit(lambda settings: settings["mcp"]["servers"]["server"].update(url=url), "fastagent.config.yaml")
