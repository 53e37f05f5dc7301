"""Loops that lead nowhere end before the next LLM request, calls that take too long end too, and the user reads why."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from mcp_types import ImageContent

from tests.support.downstreams import Downstream
from tests.support.gateway import Agent, until_idle
from tests.support.scripted_llm import CallTools, LlmRequest, Say, Script, Turn, call_tools, hang, say, stream, text_of
from tests.support.waiting import Gate
from tests.support.watching import DESK, EACH_VERSION, PIPELINE, Stage, script_of, speaker, stage, turns_so_far, watch

LIMIT = "[Stopped: the agent reached its limit of steps"


def solo(**settings: Any) -> dict[str, Agent]:
    return {"solo": Agent(servers=["tools"], settings=settings)}


def echoing(*texts: str) -> CallTools:
    """One round: those texts, in parallel."""
    return call_tools([("tools__echo", {"text": text}) for text in texts], text="Trying.")


def stubborn(_: LlmRequest) -> Turn:
    """A model that does the same for ever."""
    return echoing("same")


def busy(request: LlmRequest) -> Turn:
    """A model that does something else every time, for ever."""
    return call_tools([("tools__echo", {"text": f"{turns_so_far(request)}"})], text=f"Try {turns_so_far(request)}.")


def tells(request: LlmRequest) -> Say:
    """A model that repeats the last thing it was told, by a user or a tool."""
    return say(f"heard: {text_of(request.messages[-1])}")


def aborted(staged: Stage, agent: str, reason: str) -> float:
    return staged.served.metric("pallas_agent_loop_aborted_total", agent=agent, reason=reason)


def halts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.name == "pallas.loop_guard"]
    assert {record.levelno for record in records} <= {logging.WARNING}
    return [record.__dict__ for record in records]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_three_equal_rounds_end_the_call_without_another_llm_request(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, stubborn, solo()) as staged:
        watched = await watch(staged.url("solo"), version=version, conversation_id="c-1")
        await until_idle(staged.served)

        assert len(staged.llm.requests) == 3
        assert len(staged.tools.recorder.calls("echo")) == 3
        assert aborted(staged, "solo", "repeat") == 1
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="ok") == 1

    assert not watched.is_error
    assert watched.text.startswith("[Stopped: the agent called the same tool with the same result for 3 rounds")
    assert "echo" in watched.text
    assert (watched.call["stop_reason"], watched.call["stopped"]) == ("endTurn", "repeat")
    assert watched.call["iterations"] == 3
    assert watched.call["usage"]["input"] == 30
    assert watched.progress[-2:] == ["tools/echo: started", "tools/echo: completed"]
    [halt] = halts(caplog)
    assert (halt["event"], halt["reason"], halt["agent"], halt["conversation_id"], halt["call_id"]) == (
        "loop_halt",
        "repeat",
        "solo",
        "c-1",
        watched.call["call_id"],
    )
    assert "echo" in halt["tool"]
    assert (halt["arguments"], halt["result"]) == ({"text": "same"}, "same")


async def test_two_alternating_rounds_end_the_call_at_twice_the_threshold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, lambda request: echoing("ab"[turns_so_far(request) % 2]), solo()) as staged:
        watched = await watch(staged.url("solo"))
        await until_idle(staged.served)

        assert len(staged.llm.requests) == 6
        assert (aborted(staged, "solo", "oscillation"), aborted(staged, "solo", "repeat")) == (1, 0)

    assert "back and forth" in watched.text
    assert (watched.call["stop_reason"], watched.call["stopped"]) == ("endTurn", "oscillation")
    assert [halt["reason"] for halt in halts(caplog)] == ["oscillation"]


async def test_the_model_that_called_an_agent_whose_loop_was_halted_reads_not_to_call_it_again(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if "tools__echo" in request.tools:
            return echoing("same")
        heard = [*request.tool_results.values()]
        again = not heard or "Do not send the same message again: it will not help." not in heard[-1]
        return call_tools([("worker__send_message", {"message": "work"})]) if again else say(heard[-1])

    agents = {"boss": Agent(["worker"], settings={"depends_on": ["worker"]}), "worker": Agent(["tools"])}
    async with stage(tmp_path, script, agents) as staged:
        watched = await watch(staged.url("boss"))
        assert len(staged.tools.recorder.calls("echo")) == 3
        assert (aborted(staged, "worker", "repeat"), aborted(staged, "boss", "repeat")) == (1, 0)
    assert watched.text.startswith("[Stopped: the agent called the same tool with the same result for 3 rounds")
    assert "stopped" not in watched.call  # the boss has finished


async def test_a_tool_that_fails_alike_every_time_is_a_loop_too(tmp_path: Path) -> None:
    async with stage(tmp_path, lambda _: call_tools([("tools__fail", {"message": "no"})]), solo()) as staged:
        watched = await watch(staged.url("solo"))

        assert len(staged.llm.requests) == 3
    assert (watched.is_error, watched.call["stop_reason"]) == (False, "endTurn")


@pytest.mark.parametrize("tool", ["count", "look"])
async def test_polling_a_tool_whose_result_or_picture_changes_goes_on(tool: str, tmp_path: Path) -> None:
    world, number = FastMCP("world"), itertools.count()

    @world.tool
    def count() -> int:
        return next(number)

    @world.tool
    def look() -> ImageContent:
        picture = base64.b64encode(f"{next(number)}".encode()).decode()
        return ImageContent(type="image", data=picture, mime_type="image/png")

    script = script_of(solo=[*([call_tools([(f"world__{tool}", {})])] * 8), say("done")])
    server = Downstream(world, stateless=True)
    async with server.serve():
        servers = {"world": {"transport": "http", "url": server.url}}
        async with stage(tmp_path, script, {"solo": Agent(servers=["world"])}, peers=servers) as staged:
            assert (await watch(staged.url("solo"))).text == "done"


@pytest.mark.parametrize(("threshold", "requests"), [(0, 11), (2, 2)])
async def test_the_threshold_is_the_agents_own_and_0_switches_the_guard_off(
    threshold: int, requests: int, tmp_path: Path
) -> None:
    script = script_of(solo=[*([echoing("same")] * 10), say("done")])
    async with stage(tmp_path, script, solo(loop_repeat_threshold=threshold)) as staged:
        watched = await watch(staged.url("solo"))

        assert len(staged.llm.requests) == requests
    assert watched.text.startswith("done" if threshold == 0 else "[Stopped")


async def test_the_next_call_begins_with_a_clean_slate(tmp_path: Path) -> None:
    script = script_of(solo=[echoing("same"), echoing("same"), say("done")])
    async with stage(tmp_path, script, solo()) as staged:
        texts = [(await watch(staged.url("solo"))).text for _ in range(2)]

    assert texts == ["done", "done"]


async def test_the_last_agent_of_a_chain_is_stopped_and_the_user_reads_why(tmp_path: Path) -> None:
    source = PIPELINE.replace('["drafter", "editor"]', '["editor", "drafter"]')
    script = script_of(editor=[say("edited")], drafter=stubborn)
    async with stage(tmp_path, script, {"pipeline": Agent(source=source)}) as staged:
        watched = await watch(staged.url("pipeline"))

        assert len(staged.llm.requests) == 4
    assert watched.text.startswith("[Stopped: the agent called the same tool")
    assert watched.call["stop_reason"] == "endTurn"


ENDS: dict[str, tuple[Script, int, str]] = {
    "repeat": (stubborn, 3, "[Stopped: the agent called the same tool"),
    "max_iterations": (busy, 4, "Try 3."),
}
"""By the reason: a model that ends so, after how many turns, and what its reader reads first."""


@pytest.mark.parametrize(("source", "order"), [(PIPELINE, "d{} e1"), (DESK, "k1 s{} k1")], ids=["chain", "tool"])
@pytest.mark.parametrize("reason", ENDS)
async def test_an_inner_agent_is_stopped_and_whoever_reads_it_learns_why(
    reason: str, source: str, order: str, tmp_path: Path
) -> None:
    def desk(request: LlmRequest) -> Turn:
        return tells(request) if request.tool_results else call_tools([("agent__scout", {"message": "find it"})])

    model, turns, read = ENDS[reason]
    script = script_of(drafter=model, editor=tells, desk=desk, scout=model)
    async with stage(tmp_path, script, {"team": Agent(source=source, settings={"max_iterations": 4})}) as staged:
        watched = await watch(staged.url("team"))
        await until_idle(staged.served)

        spoke = itertools.groupby(speaker(request) for request in staged.llm.requests)
        short = {"drafter": "d", "editor": "e", "desk": "k", "scout": "s"}
        assert " ".join(f"{short[name]}{len(list(each))}" for name, each in spoke) == order.format(turns)
        assert aborted(staged, "team", "repeat") == (reason == "repeat")
    assert watched.text.startswith(f"heard: {read}")
    assert (LIMIT in watched.text) == (reason == "max_iterations")


async def test_parallel_agents_used_as_tools_are_watched_each_for_itself(tmp_path: Path) -> None:
    def scout(request: LlmRequest) -> Turn:
        rounds = turns_so_far(request)
        return say("found") if rounds == 2 else echoing("same")  # twice each, four times in all

    desk: list[Turn] = [
        call_tools([("agent__scout", {"message": "a"}), ("agent__scout", {"message": "b"})]),
        say("done"),
    ]
    async with stage(tmp_path, script_of(desk=desk, scout=scout), {"desk": Agent(source=DESK)}) as staged:
        watched = await watch(staged.url("desk"))

    assert watched.text == "done"


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_the_limit_of_steps_gives_a_partial_answer_that_says_so(version: str, tmp_path: Path) -> None:
    async with stage(tmp_path, busy, solo(max_iterations=2)) as staged:
        watched = await watch(staged.url("solo"), version=version)

        assert len(staged.llm.requests) == 2
    assert not watched.is_error
    assert watched.text.startswith("Try 1.[Stopped: the agent reached its limit of steps")
    assert (watched.call["stop_reason"], watched.call["stopped"]) == ("maxIterations", "max_iterations")
    assert watched.call["iterations"] == 2


async def test_programs_read_in_other_apis_too_why_an_answer_is_partial(tmp_path: Path) -> None:
    gateway = {"openai_api": True, "database": "sqlite:///threads.db"}
    async with stage(tmp_path, stubborn, solo(), gateway=gateway) as staged, httpx.AsyncClient(timeout=60) as http:
        base = staged.served.base_url
        request = {"model": "solo", "messages": [{"role": "user", "content": "go"}]}
        completion = (await http.post(f"{base}/v1/chat/completions", json=request)).json()
        answer = (await http.post(f"{base}/api/v1/agents/solo/chat", json={"message": "go"})).json()
    assert (completion["pallas"], completion["choices"][0]["finish_reason"]) == ({"stopped": "repeat"}, "stop")
    assert (answer["stopped"], answer["stopReason"]) == ("repeat", "endTurn")


@pytest.mark.parametrize(("limit", "requests"), [(1, 1), (2, 2)])
async def test_an_answer_that_is_put_into_a_schema_takes_no_turn_beyond_the_limit(
    limit: int, requests: int, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    decorator = f'request_params=RequestParams(structured_schema={schema}, structured_tool_policy="defer")'
    agents = {"solo": Agent(["tools"], decorator=decorator, settings={"max_iterations": limit})}
    async with stage(tmp_path, lambda _: say('{"a": "b"}'), agents) as staged:
        watched = await watch(staged.url("solo"))

        assert len(staged.llm.requests) == requests
    assert watched.text == '{"a": "b"}'


async def test_the_limit_is_15_steps_by_default(tmp_path: Path) -> None:
    async with stage(tmp_path, busy) as staged:
        watched = await watch(staged.url("solo"))

        assert len(staged.llm.requests) == 15
    assert LIMIT in watched.text


async def test_a_loop_found_in_the_very_last_step_is_still_told_as_a_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, stubborn, solo(max_iterations=3)) as staged:
        watched = await watch(staged.url("solo"))

        assert len(staged.llm.requests) == 3
    assert watched.text.startswith("[Stopped: the agent called the same tool")
    assert watched.call["stop_reason"] == "endTurn"
    assert len(halts(caplog)) == 1


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_that_takes_too_long_with_nothing_to_show_says_so(
    version: str, tmp_path: Path, deadline: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate), solo(call_timeout_seconds=450.5)) as staged:
        watching = asyncio.create_task(watch(staged.url("solo"), version=version))
        await gate.wait_for_entered()
        deadline.set()
        watched = await watching
        await staged.llm.wait_for_aborted()
        await until_idle(staged.served)

        assert len(staged.llm.requests) == 1
        assert aborted(staged, "solo", "deadline") == 1
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="ok") == 1
    assert not watched.is_error
    assert watched.text.startswith("[Stopped: the agent did not finish within its 450.5 s")
    assert "no answer yet" in watched.text
    assert (watched.call["stop_reason"], watched.call["stopped"]) == ("endTurn", "deadline")
    assert watched.call["iterations"] == 1
    [halt] = halts(caplog)
    assert (halt["event"], halt["reason"], halt["call_id"]) == ("loop_halt", "deadline", watched.call["call_id"])


async def test_a_call_that_takes_too_long_returns_what_the_agent_has_said_and_ends_its_tools(
    tmp_path: Path, deadline: asyncio.Event
) -> None:
    script = script_of(solo=[call_tools([("tools__slow", {})], text="So far: 42.")])
    async with stage(tmp_path, script, solo()) as staged:
        watching = asyncio.create_task(watch(staged.url("solo")))
        await staged.tools.gate.wait_for_entered()
        deadline.set()
        watched = await watching
        await staged.tools.gate.wait_for_cancelled()
        await until_idle(staged.served)

        assert len(staged.llm.requests) == 1
    assert watched.text.startswith("So far: 42.[Stopped: the agent did not finish within its 600 s")
    assert watched.call["usage"]["input"] == 10
    assert watched.progress == [
        "solo step 1 (llm)",
        "solo step 2 (tool)",
        "tools/slow: started",
        "tools/slow: failed",
    ]


async def test_what_inner_agents_had_spent_until_the_deadline_is_counted(
    tmp_path: Path, deadline: asyncio.Event
) -> None:
    script = script_of(
        desk=[call_tools([("agent__scout", {"message": "find it"})])], scout=[call_tools([("tools__slow", {})])]
    )
    async with stage(tmp_path, script, {"desk": Agent(source=DESK)}) as staged:
        watching = asyncio.create_task(watch(staged.url("desk")))
        await staged.tools.gate.wait_for_entered()
        deadline.set()
        watched = await watching
        await until_idle(staged.served)

    assert (watched.call["iterations"], watched.call["usage"]["input"]) == (2, 20)


async def test_the_live_text_of_an_unfinished_turn_is_no_answer(tmp_path: Path, deadline: asyncio.Event) -> None:
    gate = Gate()
    async with stage(tmp_path, script_of(solo=[stream(["Half a", " sentence."], gate)]), solo()) as staged:
        watching = asyncio.create_task(watch(staged.url("solo")))
        await gate.wait_for_entered()
        deadline.set()
        watched = await watching
        await staged.llm.wait_for_aborted()

    assert watched.text.startswith("[Stopped: the agent did not finish within its 600 s")
