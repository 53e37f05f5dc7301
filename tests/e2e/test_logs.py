"""What the log file says of calls, end to end: one line each, the ids on everything, tracebacks of what failed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import raw_client
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.log_file import logged
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually
from tests.support.watching import stage

if TYPE_CHECKING:
    from pathlib import Path

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
USE_ECHO = call_tools([("tools__echo", {"text": "one"}), ("tools__echo", {"text": "two"})])


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_is_one_line_with_what_it_did(version: str, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else USE_ECHO

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            answer = await ask(staged.url("solo"), version=version, headers=TRACED, conversation_id="talk")
            await until_idle(staged.served)
        [line] = log.records("pallas.calls")

    assert line.pop("time")
    assert 0 < line.pop("duration_seconds") <= answer.meta["duration_seconds"]
    assert line == {
        "level": "INFO",
        "logger": "pallas.calls",
        "message": "call ended",
        "agent": "solo",
        "call_id": answer.meta["call_id"],
        "conversation_id": "talk",
        "trace_id": TRACE_ID,
        "caller": "anonymous",
        "outcome": "ok",
        "stop_reason": "endTurn",
        "iterations": 2,
        "tokens": answer.meta["usage"],
        "tools": {"tools/echo": 2},
    }
    assert log.records("pallas.forward") == log.records("pallas.fast_agent") == []


async def test_a_nested_call_names_its_parent_and_every_record_its_own_call(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if "You are parent" not in str(request.messages[0]):
            return say("from the peer")
        return say("done") if request.tool_results else call_tools([("peer__send_message", {"message": "you"})])

    with logged(tmp_path / "log", logging.DEBUG) as log, reserved_port() as port:
        agents = {
            "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
            "peer": Agent(settings={"port": port}),
        }
        servers = {"peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        async with gateway_and_model(tmp_path / "project", agents, script, servers=servers) as (served, _):
            answer = await ask(served.url("parent"), conversation_id="talk")
            await until_idle(served)
        peer, parent = log.records("pallas.calls")

    assert (parent["agent"], parent["call_id"], "nesting" in parent) == ("parent", answer.meta["call_id"], False)
    assert (peer["agent"], peer["nesting"], peer["parent_call_id"]) == ("peer", 1, parent["call_id"])
    # fast-agent's own records are told apart, too; at DEBUG there are many of both calls.
    inner = {(one["call_id"], one["agent"]) for one in log.records("pallas.fast_agent") if "call_id" in one}
    assert inner == {(parent["call_id"], "parent"), (peer["call_id"], "peer")}
    assert {one["conversation_id"] for one in log.records() if one.get("call_id") == parent["call_id"]} == {"talk"}


async def test_what_a_downstream_refuses_is_a_traceback_with_the_calls_ids(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("so be it") if request.tool_results else call_tools([("tools__slow", {"label": "x"})])

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            asking = asyncio.create_task(ask(staged.url("solo")))
            await staged.tools.gate.wait_for_entered()
            await staged.tools.stop()
            answer = await asking
        [record] = log.records("pallas.forward.trace")
        [line] = log.records("pallas.calls")

    assert (record["level"], record["message"]) == ("WARNING", "downstream operation failed")
    assert (record["server"], record["operation"], record["subject"]) == ("tools", "tools/call", "slow")
    assert record["exception"].startswith("Traceback (most recent call last)")
    assert (record["agent"], record["call_id"]) == ("solo", answer.meta["call_id"])
    assert (line["outcome"], line["tools"]) == ("ok", {"tools/slow": 1})


async def test_what_a_model_refuses_is_a_traceback_with_the_calls_ids_and_a_line_that_says_why(tmp_path: Path) -> None:
    with logged(tmp_path / "log") as log:
        async with gateway_and_model(tmp_path / "project", {"solo": Agent()}, lambda _: fail(500)) as (served, _):
            answer = await ask(served.url("solo"))
        [line] = log.records("pallas.calls")
        traced = [record for record in log.records("pallas.fast_agent") if "exception" in record]

    assert answer.is_error
    assert (line["outcome"], line["reason"], line["error"]) == ("error", "llm_error", answer.text)
    assert traced
    for record in traced:
        assert "scripted failure 500" in record["exception"]
        assert (record["agent"], record["call_id"]) == ("solo", answer.meta["call_id"])


async def test_a_refused_call_is_one_line_with_the_trace_it_came_with(tmp_path: Path) -> None:
    with logged(tmp_path / "log") as log:
        project = write_project(tmp_path / "project", {"solo": Agent()})
        async with running(project) as served, raw_client(served.url("solo"), headers=TRACED) as client:
            await client.call_tool("send_message", {"message": 3})
        [line] = log.records("pallas.calls")
    assert (line["message"], line["reason"], line["trace_id"]) == ("call refused", "bad_input", TRACE_ID)
    assert line["error"] == "Argument 'message' is required and must be a string."


async def test_a_cancelled_call_and_one_the_gateway_ends_are_a_line_each_and_the_drain_says_how_many_it_waits_for(
    tmp_path: Path,
) -> None:
    with logged(tmp_path / "log") as log:
        async with scripted_llm(lambda _: hang(Gate())) as llm:
            gateway = {"drain_seconds": 0.1}
            project = write_project(tmp_path / "project", {"solo": Agent()}, llm_url=llm.base_url, gateway=gateway)
            async with running(project) as served:
                leaving = asyncio.create_task(ask(served.url("solo")))
                await llm.wait_for_requests(1)
                leaving.cancel()
                await eventually(lambda: log.records("pallas.calls"), what="the line of the call that was left")
                staying = [asyncio.create_task(ask(served.url("solo"))) for _ in range(2)]
                await llm.wait_for_requests(3)
                served.stop.set()
                await asyncio.gather(*staying)
        assert [line["reason"] for line in log.records("pallas.calls")] == ["cancelled", "stopped", "stopped"]
        [stopping] = [record for record in log.records("pallas.server") if record["message"] == "stopping"]
    assert (stopping["calls"], stopping["drain_seconds"]) == (2, 0.1)


async def test_a_cancelled_call_is_a_line_with_what_it_has_used(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return hang(Gate()) if request.tool_results else USE_ECHO

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            asking = asyncio.create_task(ask(staged.url("solo")))
            await staged.llm.wait_for_requests(2)
            asking.cancel()
            await eventually(lambda: log.records("pallas.calls"), what="the line of the call that was left")
        [line] = log.records("pallas.calls")
    assert (line["reason"], line["iterations"], line["tools"]) == ("cancelled", 2, {"tools/echo": 2})
    assert line["tokens"]["input"] > 0
