"""Servers whose lists are long, odd or broken: what models are offered, what runs, and what log and health say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.calls.tool_names import name_at_model
from pallas_gateway.runtime.protocols import CANNOT_LIST
from tests.support.calling import ask, health
from tests.support.gateway import Agent, Limits, Running, running, write_project
from tests.support.imperfect_servers import (
    PAGE,
    PINGS,
    UNLISTABLE,
    Era,
    cursor_of,
    imperfect_servers,
    listing,
    paged,
    settings_of,
    tool,
)
from tests.support.odd_server import HANDSHAKE, Document, Raw
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm

ERAS = ("initialize", "modern")
LONG = "a" * 40
TEMPLATES = [f"create_issue_in_project_with_template{end}" for end in ("", "_and_watchers", "s_delete_all")]
PAGES = """
import json, sys
NAMES = [f"tool_{number:04}" for number in range(120)]
def pages(cursor):
    begin = int(cursor or 0)
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES[begin : begin + 50]]
    return {"tools": tools, **({"nextCursor": str(begin + 50)} if begin < 100 else {})}
for line in sys.stdin:
    request = json.loads(line)
    params = request.get("params") or {}
    info = {"name": "p", "version": "1"}
    server = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    known = {"initialize": server, "tools/list": pages(params.get("cursor"))}.get(request["method"])
    answer = {"error": {"code": -32601, "message": "unknown"}} if known is None else {"result": known}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


def greet(_: LlmRequest) -> Turn:
    return say("hello")


@asynccontextmanager
async def world(
    path: Path, servers: Mapping[str, Any], *, script: Any = None, **settings: Any
) -> AsyncIterator[tuple[Running, ScriptedLlm]]:
    """Serve `user`, who has all `servers` and a model that says `hello`, or what `script` says."""
    async with scripted_llm(script or greet) as llm:
        agents = {"user": Agent(list(servers), settings=settings)}
        async with running(write_project(path, agents, llm_url=llm.base_url, servers=servers)) as served:
            yield served, llm


async def offered(served: Running, llm: ScriptedLlm) -> list[str]:
    await ask(served.url("user"))
    return llm.requests[-1].tools


def left_out(caplog: pytest.LogCaptureFixture) -> dict[str, list[str]]:
    records = [one for one in caplog.records if one.getMessage() == "downstream tools left out"]
    found = {getattr(one, "server", ""): list(getattr(one, "problems", ())) for one in records}
    assert len(found) == len(records)  # each once
    return found


def reasons(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    records = [one for one in caplog.records if one.getMessage() == "downstream unreachable"]
    return {getattr(one, "server", ""): getattr(one, "error", "") for one in records}


@pytest.mark.parametrize("era", ERAS)
async def test_all_pages_of_a_list_are_read_up_to_a_limit(
    era: Era, tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.listings.ask_seconds = limits.runtime.attach_seconds = 20
    many = paged(["1", "2"])

    def without_end(rpc: dict[str, Any]) -> tuple[int, object]:
        number = int(cursor_of(rpc) or 0)
        return 200, listing(tool(f"tool_{number}"), nextCursor=str(number + 1))

    lists: dict[str, Document] = {
        "empty": paged(["", "0"]),
        "many": without_end,
        "again": (200, listing(tool("x"), nextCursor="same")),
        "failing": lambda rpc: (502, "") if cursor_of(rpc) else many(rpc),
    }
    with imperfect_servers(lists, era) as answers:
        async with world(tmp_path, settings_of(answers, {name: name for name in lists})) as (served, llm):
            tools = await offered(served, llm)
            counts = {name: sum(one.startswith(f"{name}__") for one in tools) for name in lists}

    assert counts == {"empty": 3 * PAGE, "many": 100, "again": 1, "failing": PAGE}
    assert left_out(caplog) == {
        "many": ["page 101 is not read; the list ends after 100 tools"],
        "again": ["page 3 would be one of those before; the list ends after 2 tools"],
        "failing": [f"page 2 cannot be read: HTTP 502 Bad Gateway; the list ends after {PAGE} tools"],
    }


async def test_the_pages_that_came_in_the_time_of_the_listing_are_kept(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.listings.ask_seconds = limits.runtime.attach_seconds = 4
    first = paged(["1"])
    with imperfect_servers({"slow": lambda rpc: (200, PINGS) if cursor_of(rpc) else first(rpc)}) as answers:
        async with world(tmp_path, settings_of(answers, {"slow": "slow"})) as (served, llm):
            tools = await offered(served, llm)

    assert (len(tools), reasons(caplog)) == (PAGE, {})
    assert left_out(caplog) == {"slow": [f"page 2 has not come in time; the list ends after {PAGE} tools"]}


async def test_all_pages_of_a_program_are_read_and_a_filter_may_name_the_last_tool(tmp_path: Path) -> None:
    program = {"command": sys.executable, "args": ["-I", "-S", "-c", PAGES]}
    async with scripted_llm(greet) as llm:
        agents = {
            "user": Agent(["pages"]),
            "last": Agent(["pages"], decorator="tools={'pages': ['tool_011*']}"),
        }
        project = write_project(tmp_path, agents, llm_url=llm.base_url, servers={"pages": program})
        async with running(project) as served:
            assert len(await offered(served, llm)) == 120
            await ask(served.url("last"))
            assert llm.requests[-1].tools == [f"pages__tool_{number:04}" for number in range(110, 120)]


async def test_each_tool_has_a_name_that_models_accept_and_runs_by_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = ["a.b", "a/b", "a b", "a_b", "größe", "日本", "", "search", "search"]
    lists = {
        "long": (200, listing(*map(tool, TEMPLATES))),
        "odd": (200, listing(*map(tool, odd), tool("search", description="another"))),
        "a": (200, listing(tool("b__c"))),
        "a__b": (200, listing(tool("c"))),
    }
    servers = {LONG: "long", "Größe v.2": "odd", "a": "a", "a__b": "a__b"}

    def use_all(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(json.dumps(list(request.tool_results.values())))
        return call_tools([(name, {}) for name in request.tools])

    with imperfect_servers(lists) as answers:
        async with world(tmp_path, settings_of(answers, servers), script=use_all) as (served, llm):
            answer = await ask(served.url("user"))
            tools = llm.requests[0].tools

    real = [*TEMPLATES, "a.b", "a/b", "a b", "a_b", "größe", "日本", "search", "b__c", "c"]
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", one) for one in tools)
    assert len(set(tools)) == len(tools) == len(real)
    assert sorted(json.loads(answer.text)) == sorted(real)
    assert "a__b__c" in tools
    assert left_out(caplog) == {
        "Größe v.2": ["tools[6] '': its name is empty", "tools[9] 'search': another tool has this name"]
    }


async def test_filters_and_approvals_go_by_the_real_name(tmp_path: Path) -> None:
    listed = (200, listing(*map(tool, TEMPLATES), tool("größe")))
    create, _, delete_all = TEMPLATES
    use = call_tools([(name_at_model(LONG, one), {}) for one in (create, delete_all)])
    async with scripted_llm([use, say("done")]) as llm:
        filters = f"tools={{'{LONG}': ['{create}', 'größe']}}"
        agent = Agent([LONG], decorator=filters, settings={"approve": [f"{LONG}/{create}"]})
        with imperfect_servers({"long": listed}) as answers:
            project = write_project(
                tmp_path, {"user": agent}, llm_url=llm.base_url, servers=settings_of(answers, {LONG: "long"})
            )
            async with running(project) as served:
                await ask(served.url("user"))
            methods = [rpc.get("method") for _, _, rpc in answers.seen if rpc]

    first, second = llm.requests
    assert first.tools == [name_at_model(LONG, create), name_at_model(LONG, "größe")]
    results = " ".join(second.tool_results.values())
    assert f"The tool '{LONG}/{create}' was not run: it requires approval" in results
    assert "is not available" in results
    assert "tools/call" not in methods


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_whose_schema_cannot_be_used_is_left_out_alone(
    era: Era, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nested: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "strnig"}}}
    wrong: dict[str, tuple[Any, str]] = {
        "empty": ({"name": "empty", "inputSchema": {}}, "tools[1] 'empty': inputSchema has no type"),
        "none": ({"name": "none"}, "tools[2] 'none': it has no inputSchema"),
        "nested": (
            {"name": "nested", "inputSchema": nested},
            "tools[3] 'nested': inputSchema.properties.city.type: 'strnig' is not valid under any of the given schemas",
        ),
        "output": (
            tool("output", outputSchema={"type": "object", "minProperties": -1}),
            "tools[4] 'output': outputSchema.minProperties: -1 is less than the minimum of 0",
        ),
        "nameless": ({"inputSchema": {"type": "object"}}, "tools[5]: it has no name"),
        "number": (3, "tools[6]: Input should be a valid dictionary or instance of Tool"),
        "array": (
            tool("array", outputSchema={"type": "array"}),
            "tools[7] 'array': outputSchema.type: Input should be 'object'",
        ),
    }
    usual = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [True, {"type": ["string", "null"]}], "x-own": 1}}}
    shapes = listing(
        tool("first"), *(one for one, _ in wrong.values()), tool("last", outputSchema={"type": "object", **usual})
    )
    with imperfect_servers({"shapes": (200, shapes)}, era) as answers:
        async with world(tmp_path, settings_of(answers, {"shapes": "shapes"})) as (served, llm):
            tools = await offered(served, llm)
            status = (await health(served.url("user")))["status"]

    only_initialize = ["array"] if era == "modern" else []  # newer servers may declare any type
    assert tools == ["shapes__first", *(f"shapes__{name}" for name in only_initialize), "shapes__last"]
    assert left_out(caplog)["shapes"] == [why for name, (_, why) in wrong.items() if name not in only_initialize]
    assert status == "ok"


async def test_health_says_why_a_list_cannot_be_read_until_one_is(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.listings.again_seconds = limits.gateway.health.fresh_seconds = 0
    with imperfect_servers({name: form for name, (form, _) in UNLISTABLE.items()}) as answers:
        async with world(tmp_path, settings_of(answers, {name: name for name in UNLISTABLE})) as (served, llm):
            await ask(served.url("user"))
            broken = await health(served.url("user"))
            up = {served.metric("pallas_downstream_up", agent="user", server=name) for name in UNLISTABLE}
            mended = {f"/{name}/mcp tools/list": (200, listing(tool(name))) for name in UNLISTABLE}
            answers.documents = {**answers.documents, **mended}
            well = await health(served.url("user"))
            tools = await offered(served, llm)

    assert (broken["status"], well["status"], up) == ("degraded", "ok", {0.0})
    assert broken["message"].startswith("Without tools: ")
    assert {one["status"] for one in broken["downstream"]} == {"unlisted"}
    told = {one["name"]: one["error"] for one in broken["downstream"]}
    assert [name for name, why in told.items() if not why.startswith(f"{CANNOT_LIST}{UNLISTABLE[name][1]}")] == []
    assert sorted(tools) == sorted(f"{name}__{name}" for name in UNLISTABLE)
    assert reasons(caplog) == told


async def test_health_says_that_a_list_does_not_end(tmp_path: Path, limits: Limits) -> None:
    limits.runtime.listings.ask_seconds = limits.runtime.attach_seconds = 4
    limits.runtime.listings.again_seconds = 100  # no further listing
    with imperfect_servers({"pings": (200, PINGS)}) as answers:
        async with world(tmp_path, settings_of(answers, {"pings": "pings"})) as (served, _):
            await ask(served.url("user"))
            [found] = (await health(served.url("user")))["downstream"]

    assert found["error"] == f"{CANNOT_LIST}no answer within 4 s"


HANDSHAKES: dict[str, tuple[tuple[int, object], str, str | None]] = {
    "login": ((200, Raw("<html>", "text/html")), "not an MCP answer: HTTP 200 with text/html", None),
    "empty": (
        (200, Raw()),
        "not an MCP answer: HTTP 200 with application/json",
        "its answer is no JSON-RPC message (EOF while parsing a value at line 1 column 0)",
    ),
    "accepted": (
        (202, Raw()),
        "not an MCP answer: HTTP 202 with application/json",
        "server answered a request with 202 Accepted",
    ),
    "refused": ((502, Raw("down", "text/plain")), "HTTP 502 Bad Gateway", "HTTP 502 Bad Gateway: down"),
    "of 2099": (
        (200, {"result": {**HANDSHAKE, "protocolVersion": "2099-01-01"}}),
        "its handshake cannot be used: protocolVersion is '2099-01-01'",
        "Unsupported protocol version from the server: 2099-01-01",
    ),
    "without version": (
        (200, {"result": {**HANDSHAKE, "protocolVersion": None}}),
        "its handshake cannot be used: protocolVersion: Input should be a valid string",
        "InitializeResult: in protocolVersion, Input should be a valid string",
    ),
    "nameless": (
        (200, {"result": {"protocolVersion": "2025-06-18", "capabilities": {}}}),
        "its handshake cannot be used: serverInfo: Field required",
        "InitializeResult: in serverInfo, Field required",
    ),
    "without capabilities": (
        (200, {"result": {**HANDSHAKE, "capabilities": None}}),
        "its handshake cannot be used: capabilities: "
        "Input should be a valid dictionary or instance of ServerCapabilities",
        "InitializeResult: in capabilities, Input should be a valid dictionary or instance of ServerCapabilities",
    ),
}


async def test_a_handshake_that_no_call_can_use_is_told_with_the_real_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {name: name.replace(" ", "-") for name in HANDSHAKES}
    with imperfect_servers({}) as answers:
        forms = {f"/{servers[name]}/mcp initialize": handshake for name, (handshake, *_) in HANDSHAKES.items()}
        answers.documents = {**answers.documents, **forms}
        async with world(tmp_path, settings_of(answers, servers)) as (served, _):
            await ask(served.url("user"))
            found = (await health(served.url("user")))["downstream"]

    assert {one["name"]: (one["status"], one["error"]) for one in found} == {
        name: ("unreachable", error) for name, (_, error, _) in HANDSHAKES.items()
    }
    assert reasons(caplog) == {name: logged or error for name, (_, error, logged) in HANDSHAKES.items()}
