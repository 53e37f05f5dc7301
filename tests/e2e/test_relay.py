"""What peers do, as the client at the top sees it: relayed, attributed exactly, enough to rebuild the whole tree."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.call_tree import call_tree
from tests.support.clients import MODERN_VERSION
from tests.support.crowds import crowd
from tests.support.downstreams import Era, stateless_downstream
from tests.support.gateway import Agent, gateway_and_model
from tests.support.listener import reserved_port
from tests.support.scripted_llm import CallTools, LlmRequest, Say, Script, Turn, call_tools, hang, say
from tests.support.waiting import Gate
from tests.support.watching import EACH_VERSION, LOGGER, speaker, stage, watch

Servers = dict[str, dict[str, Any]]


@contextmanager
def peers(agents: Mapping[str, Agent]) -> Generator[tuple[dict[str, Agent], Servers]]:
    """Give each agent a documented address, and the servers by which the others reach them there."""
    with ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in agents}
        addressed = {name: Agent(agent.servers, settings={"port": ports[name]}) for name, agent in agents.items()}
        yield addressed, {name: {"url": f"http://localhost:{port}/mcp"} for name, port in ports.items()}


def calls_and_tells(calls: Mapping[str, list[tuple[str, str]]]) -> Script:
    """Each agent passes its message on to those peers, marked on the way, and then tells what it heard."""

    def script(request: LlmRequest) -> Say | CallTools:
        message = request.last_user_text
        if request.tool_results:
            return say(f"{speaker(request)} told {message}")
        if not (wanted := calls.get(speaker(request))):
            return say(f"{speaker(request)} heard {message}")
        return call_tools([(f"{peer}__send_message", {"message": message + mark}) for peer, mark in wanted])

    return script


# --- the tree --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_client_can_rebuild_a_tree_of_calls_with_parallel_branches(version: str, tmp_path: Path) -> None:
    script = calls_and_tells(
        {
            "root": [("left", ".l"), ("right", ".r1"), ("right", ".r2")],
            "left": [("leaf", ".x")],
            "right": [("leaf", ".y"), ("leaf", ".z")],
        }
    )
    agents = {"root": Agent(["left", "right"]), "left": Agent(["leaf"]), "right": Agent(["leaf"]), "leaf": Agent()}
    with peers(agents) as (addressed, servers):
        async with stage(tmp_path, script, addressed, peers=servers) as staged:
            watched = await watch(staged.url("root"), version=version, conversation_id="c-1")

    assert call_tree(watched.payloads).outline() == [
        "root says root told go",
        '  left/send_message {"message": "go.l"}: left says left told go.l',
        '    leaf/send_message {"message": "go.l.x"}: leaf says leaf heard go.l.x',
        '  right/send_message {"message": "go.r1"}: right says right told go.r1',
        '    leaf/send_message {"message": "go.r1.y"}: leaf says leaf heard go.r1.y',
        '    leaf/send_message {"message": "go.r1.z"}: leaf says leaf heard go.r1.z',
        '  right/send_message {"message": "go.r2"}: right says right told go.r2',
        '    leaf/send_message {"message": "go.r2.y"}: leaf says leaf heard go.r2.y',
        '    leaf/send_message {"message": "go.r2.z"}: leaf says leaf heard go.r2.z',
    ]
    assert {one["schema_version"] for one in watched.payloads if "via_agent" in one} == {3}
    assert all(one["parent_call_id"] == one["call_path"][-1] for one in watched.payloads if "via_agent" in one)
    # Identity stays the emitter's: the peers were called without a conversation.
    assert {one["conversation_id"] for one in watched.payloads if "via_agent" in one} == {None}


async def test_progress_of_peers_is_nested_under_the_tools_that_called_them(tmp_path: Path) -> None:
    script = calls_and_tells({"root": [("left", ".l")], "left": [("leaf", ".x")]})
    with peers({"root": Agent(["left"]), "left": Agent(["leaf"]), "leaf": Agent()}) as (addressed, servers):
        async with stage(tmp_path, script, addressed, peers=servers) as staged:
            watched = await watch(staged.url("root"))

    assert watched.progress == [
        "root step 1 (llm)",
        "root step 2 (tool)",
        "left/send_message: started",
        "left/send_message: left step 1 (llm)",
        "left/send_message: left step 2 (tool)",
        "left/send_message: leaf/send_message: started",
        "left/send_message: leaf/send_message: leaf step 1 (llm)",
        "left/send_message: leaf/send_message: completed",
        "left/send_message: left step 3 (llm)",
        "left/send_message: completed",
        "root step 3 (llm)",
    ]


@pytest.mark.crowd
@crowd(10, 50)
async def test_every_chunk_is_attributed_to_its_call_among_parallel_calls_with_two_parallel_calls_each(
    size: int, tmp_path: Path
) -> None:
    asked, answered = Gate(), Gate()

    def script(request: LlmRequest) -> Turn:
        message = request.last_user_text
        if speaker(request) == "child":
            return hang(answered, say(f"heard {message}"))
        if request.tool_results:
            return say("done")
        return hang(asked, call_tools([("child__send_message", {"message": f"{message}.{mark}"}) for mark in "ab"]))

    agents = {"parent": Agent(["child"]), "child": Agent()}
    with peers(agents) as (addressed, servers):
        async with stage(tmp_path, script, addressed, peers=servers) as staged:
            url = staged.url("parent")
            calls = [asyncio.create_task(watch(url, f"p{n}", version=EACH_VERSION[n % 2])) for n in range(size)]
            await asked.wait_for_entered(size, timeout_seconds=60)
            asked.open()
            await answered.wait_for_entered(2 * size, timeout_seconds=60)  # all of them at once
            answered.open()
            seen = await asyncio.gather(*calls)

    for n, watched in enumerate(seen):
        sent = {call["id"]: call["arguments"]["message"] for call in watched.payloads[0]["tool_calls"]}
        told = [(one["parent_call_id"], one["text"]) for one in watched.payloads if one["agent"] == "child"]
        assert set(sent.values()) == {f"p{n}.a", f"p{n}.b"}
        assert sorted(told) == sorted((id_, f"heard {message}") for id_, message in sent.items())


# --- what is relayed, and how far ------------------------------------------------------------------------------------

CHUNK = {"kind": "assistant_chunk", "schema_version": 2, "agent": "far", "conversation_id": "c-9", "iteration": 1}
FAR = {**CHUNK, "schema_version": 3, "via_agent": ["x", "y"], "call_path": ["1", "2"], "parent_call_id": "2"}
TOO_FAR = {**FAR, "via_agent": ["x", "y", "z"], "call_path": ["1", "2", "3"]}


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_only_chunks_of_version_2_or_later_come_through(era: Era, tmp_path: Path) -> None:
    logs = [
        {"logger": LOGGER, "data": {**CHUNK, "schema_version": 1, "text": "old"}},
        {"logger": LOGGER, "data": {**CHUNK, "text": "passes"}},
        {"logger": "pallas.other", "data": {**CHUNK, "text": "of another logger"}},
        {"logger": None, "data": {**CHUNK, "text": "of no logger"}},
        {"logger": LOGGER, "data": {**CHUNK, "kind": "assistant_delta", "text": "live"}},
        {"logger": LOGGER, "data": "just a line"},
        {"logger": LOGGER, "data": {**FAR, "kind": "assistant_chunk_results", "results": []}},
        {"logger": LOGGER, "data": {**TOO_FAR, "text": "too deep"}},
    ]

    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools([("far__emit", {"logs": logs})])

    async with stateless_downstream("far", era=era) as far:
        servers = {"far": {"transport": "http", "url": far.url}}
        async with stage(tmp_path, script, {"root": Agent(["far"])}, peers=servers) as staged:
            watched = await watch(staged.url("root"))

    hop = {"schema_version": 3, "parent_call_id": "call_1_1"}
    assert [one for one in watched.payloads if one["agent"] == "far"] == [
        {**CHUNK, **hop, "text": "passes", "via_agent": ["far"], "call_path": ["call_1_1"]},
        {
            **FAR,
            **hop,
            "kind": "assistant_chunk_results",
            "results": [],
            "via_agent": ["x", "y", "far"],
            "call_path": ["1", "2", "call_1_1"],
        },
    ]
    assert watched.text == "done"


@pytest.mark.parametrize(("depth", "seen"), [(0, ""), (1, "b"), (2, "bc"), (3, "bcd"), (9, "bcde")])
async def test_chunks_come_from_at_most_the_configured_depth(depth: int, seen: str, tmp_path: Path) -> None:
    line = ["a", "b", "c", "d", "e"]
    script = calls_and_tells({caller: [(peer, "")] for caller, peer in pairwise(line)})
    agents = {name: Agent(line[number + 1 : number + 2]) for number, name in enumerate(line)}
    with peers(agents) as (addressed, servers):
        async with stage(tmp_path, script, addressed, peers=servers, gateway={"max_relay_depth": depth}) as staged:
            watched = await watch(staged.url("a"))

    assert {one["agent"] for one in watched.payloads} == {"a", *seen}
    assert watched.text == "a told go"


@pytest.mark.parametrize("mode", [{}, {"protocol_mode": "legacy"}], ids=["default", "legacy"])
@pytest.mark.parametrize("version", EACH_VERSION)
async def test_agents_of_another_gateway_are_relayed_likewise(
    version: str, mode: Mapping[str, str], tmp_path: Path
) -> None:
    script = calls_and_tells({"root": [("research", ".1"), ("research", ".2")]})
    async with gateway_and_model(tmp_path / "far", {"research": Agent()}, script) as (elsewhere, _):
        servers = {"research": {"transport": "http", "url": elsewhere.url("research"), **mode}}
        async with stage(tmp_path / "near", script, {"root": Agent(["research"])}, peers=servers) as staged:
            watched = await watch(staged.url("root"), version=version)

    assert call_tree(watched.payloads).outline() == [
        "root says root told go",
        '  research/send_message {"message": "go.1"}: research says research heard go.1',
        '  research/send_message {"message": "go.2"}: research says research heard go.2',
    ]
    assert "research/send_message: research step 1 (llm)" in watched.progress


async def test_a_client_that_wants_no_messages_is_spared_those_of_peers_too(tmp_path: Path) -> None:
    script = calls_and_tells({"root": [("leaf", ".x")]})
    with peers({"root": Agent(["leaf"]), "leaf": Agent()}) as (addressed, servers):
        async with stage(tmp_path, script, addressed, peers=servers) as staged:
            watched = await watch(staged.url("root"), version=MODERN_VERSION, meta={})

    assert watched.story == []
    assert watched.text == "root told go"
