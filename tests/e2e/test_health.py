"""`get_health` against downstreams of every temper, and the check of the LLM provider before agents start."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.core.agent_state import State
from tests.support.asgi import Receive, Scope, Send, http_only, read_body, respond
from tests.support.calling import ask, health
from tests.support.downstreams import refusing, stateless_downstream
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, Limits, Project, Running, running, write_project
from tests.support.listener import black_hole, reserved_port, serve_app
from tests.support.one_user import named_tools, world
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm
from tests.support.stdio_processes import Processes
from tests.support.waiting import Gate, eventually

UNREACHABLE = {
    "refusing": "connection refused",
    "needs_key": "HTTP 401 Unauthorized",
    "absent": "HTTP 404 Not Found",
    "broken": "HTTP 500 Internal Server Error",
    "babbling": "not an MCP answer: HTTP 200 with application/json",
    "untrusted": "TLS error",
    "uninstalled": "command 'no-such-command' not found",
    "crashing": "its process ended with code 3",
}
REACHABLE = {"both": "initialize", "older": "initialize", "modern": "2026-07-28", "slow": "initialize"}


INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "slow", "version": "1"},
}
NO_METHOD = {"code": -32601, "message": "no such method"}


@asynccontextmanager
async def answering_when(gate: Gate) -> AsyncIterator[str]:
    @http_only
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        asked = json.loads(await read_body(receive) or b"{}")
        await gate.enter()
        if "id" not in asked:
            await respond(send, 202, "")
            return
        results = {"initialize": INITIALIZED, "tools/list": {"tools": []}}
        answer = {"result": results[asked["method"]]} if asked["method"] in results else {"error": NO_METHOD}
        await respond(send, 200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}))

    async with serve_app(app) as listener:
        yield f"{listener.base_url}/mcp"


@asynccontextmanager
async def babbling() -> AsyncIterator[str]:
    @http_only
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await respond(send, 200, "{not json", content_type="application/json")

    async with serve_app(app) as listener:
        yield f"{listener.base_url}/mcp"


def http(url: str) -> dict[str, Any]:
    return {"transport": "http", "url": url}


def python(source: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", "-c", source]}


@asynccontextmanager
async def well_servers(gate: Gate) -> AsyncIterator[dict[str, dict[str, Any]]]:
    async with (
        stateless_downstream(era="both") as both,
        stateless_downstream(era="initialize") as older,
        stateless_downstream(era="modern") as modern,
        answering_when(gate) as slow,
    ):
        urls = {"both": both.url, "older": older.url, "modern": modern.url, "slow": slow}
        yield {name: http(url) for name, url in urls.items()}


@asynccontextmanager
async def sick_servers() -> AsyncIterator[dict[str, dict[str, Any]]]:
    async with AsyncExitStack() as stack:
        statuses = {"needs_key": 401, "absent": 404, "broken": 500}
        urls = {name: (await stack.enter_async_context(refusing(status))).url for name, status in statuses.items()}
        urls["refusing"] = f"http://127.0.0.1:{stack.enter_context(reserved_port())}/mcp"
        urls["babbling"] = await stack.enter_async_context(babbling())
        urls["untrusted"] = urls["babbling"].replace("http://", "https://")
        programs = {"uninstalled": {"command": "no-such-command"}, "crashing": python("raise SystemExit(3)")}
        yield {**{name: http(url) for name, url in urls.items()}, **programs}


@asynccontextmanager
async def serving(
    path: Path, servers: Mapping[str, Mapping[str, Any]], **fastagent: Any
) -> AsyncIterator[tuple[str, Running]]:
    project = write_project(path, {"user": Agent(servers=list(servers))}, servers=servers, fastagent=fastagent)
    async with running(project) as served:
        yield served.url("user"), served


async def test_each_downstream_is_told_with_what_is_wrong_with_it(tmp_path: Path, limits: Limits) -> None:
    """No answer waits for a deadline: that of a probe is longer than the caller waits."""
    limits.gateway.health.fresh_seconds = 0
    gate = Gate()
    async with well_servers(gate) as well, sick_servers() as sick:
        servers = {**well, "program": Processes(tmp_path).settings(), **sick}
        async with serving(tmp_path, servers) as (url, served):
            asking = asyncio.create_task(health(url))
            await gate.wait_for_entered()
            gate.open()
            first, second = await asking, await health(url)

            found = {one["name"]: one for one in first["downstream"]}
            assert set(found) == set(servers)
            reachable = {**REACHABLE, "program": "initialize"}
            assert {name: one["protocol"] for name, one in found.items() if one["status"] == "ok"} == reachable
            assert {name: one["error"] for name, one in found.items() if one["status"] != "ok"} == UNREACHABLE
            assert first["status"] == "degraded"
            assert first["message"] == f"Unreachable: {', '.join(sorted(sick))}"
            assert first["agent"]["state"] == "ready"
            for name in servers:
                assert served.metric("pallas_downstream_up", agent="user", server=name) == (name in reachable)
            assert served.metric("pallas_agent_health_status", agent="user") == 0.5

    dates = [{one["name"]: one["since"] for one in document["downstream"]} for document in (first, second)]
    assert dates[0] == dates[1]


async def test_health_answers_at_the_deadline_of_probes_whatever_its_downstreams_do(
    tmp_path: Path, limits: Limits
) -> None:
    of_health = limits.gateway.health
    of_health.fresh_seconds, of_health.probe_seconds = 0, 20
    of_health.end_seconds = of_health.leave_seconds = 100
    with black_hole() as nowhere:
        servers = {"hanging": http(f"{nowhere}/mcp"), "hanging_program": python("import sys; sys.stdin.read()")}
        async with serving(tmp_path, servers) as (url, _):
            clock = asyncio.get_running_loop().time
            began = clock()
            document = await hastened(health(url))
            took = clock() - began

    assert {one["name"]: (one["status"], one.get("error")) for one in document["downstream"]} == {
        "hanging": ("unreachable", "no answer within 20 s"),
        "hanging_program": ("ok", None),  # it has as long to start
    }
    assert 20 <= took < 40  # nothing else is waited for


async def test_a_model_server_that_does_not_list_the_model_is_named_and_the_agent_is_well(tmp_path: Path) -> None:
    async with scripted_llm(models=["gpt-x"]) as llm:
        openai = {"api_key": "sk-hunter2", "base_url": llm.base_url}
        fastagent = {"default_model": "openai.other-model", "openai": openai}
        async with serving(tmp_path, {}, **fastagent) as (url, served):
            well = await health(url)
            assert (well["status"], well["agent"]["model"]) == ("ok", "other-model")
            assert {**well["llm"], "checked": ""} == {
                "provider": "openai",
                "model": "other-model",
                "status": "ok",
                "warning": "the server at base_url lists no model of this name; a call shows if it accepts it",
                "checked": "",
            }
            assert served.metric("pallas_llm_provider_up", provider="openai") == 1
            assert not (await ask(url)).is_error
    assert llm.model_list_headers[0]["authorization"] == "Bearer sk-hunter2"


async def test_each_agents_health_is_about_the_provider_of_its_own_model(tmp_path: Path) -> None:
    agents = {
        "plain": Agent(),
        "own": Agent(model="generic.local-x"),
        "declared": Agent(settings={"module": None, "instruction": "Answer.", "model": "openai.gpt-y"}),
        "test": Agent(model="passthrough"),
    }
    with reserved_port() as nowhere:
        async with scripted_llm(models=["gpt-x", "gpt-y"]) as llm:
            fastagent = {
                "default_model": "openai.gpt-x",
                "openai": {"api_key": "sk-hunter2", "base_url": llm.base_url},
                "generic": {"base_url": f"http://127.0.0.1:{nowhere}/v1"},
            }
            async with running(write_project(tmp_path, agents, fastagent=fastagent)) as served:
                found = {name: await health(served.url(name)) for name in agents}
                up = [served.metric("pallas_llm_provider_up", provider=name) for name in ("openai", "generic")]
    models = {name: one["agent"]["model"] for name, one in found.items()}
    assert models == {"plain": "gpt-x", "own": "local-x", "declared": "gpt-y", "test": "passthrough"}
    asked = {name: (one["llm"]["provider"], one["llm"]["model"]) for name, one in found.items() if "llm" in one}
    assert asked == {"plain": ("openai", "gpt-x"), "own": ("generic", "local-x"), "declared": ("openai", "gpt-y")}
    assert "downstream" not in found["test"]
    assert {name: one["message"] for name, one in found.items() if one["status"] != "ok"} == {
        "own": "LLM: generic: connection refused"
    }
    assert up == [1, 0]


async def test_a_provider_that_comes_back_is_noticed_without_a_restart(tmp_path: Path, limits: Limits) -> None:
    with reserved_port() as port:
        openai = {"api_key": "sk-hunter2", "base_url": f"http://127.0.0.1:{port}/v1"}
        async with serving(tmp_path, {}, default_model="openai.gpt-x", openai=openai) as (url, served):
            sick = await health(url)
            assert (sick["status"], sick["message"]) == ("degraded", "LLM: openai: connection refused")
            assert served.metric("pallas_llm_provider_up", provider="openai") == 0
            assert (await ask(url)).is_error
            async with scripted_llm(models=["gpt-x"], port=port):
                assert (await health(url))["status"] == "degraded"  # asked less than 5 minutes ago
                limits.gateway.health.stale_seconds = 0

                async def is_well() -> bool:
                    return bool((await health(url))["status"] == "ok")

                await eventually(is_well, what="a renewed result")
                assert served.metric("pallas_llm_provider_up", provider="openai") == 1


async def test_a_provider_that_takes_its_time_holds_up_neither_the_listener_nor_the_stop(tmp_path: Path) -> None:
    gate = Gate()
    with reserved_port() as port:
        async with answering_when(gate) as slow:
            fastagent = {"default_model": "openai.gpt-x", "openai": {"api_key": "sk-hunter2", "base_url": slow}}
            project = write_project(tmp_path, {"user": Agent()}, fastagent=fastagent, gateway={"port": port})
            serving = asyncio.create_task(served_for_ever(project))
            await gate.wait_for_entered()
            found = await asyncio.wait_for(health(f"http://127.0.0.1:{port}/agents/user/mcp"), 20)
            assert (found["status"], found["message"]) == ("error", "the agent is pending")
            serving.cancel()
            await asyncio.wait_for(asyncio.wait({serving}), 20)
            assert gate.waiting + len(gate.cancelled) == 1  # it was not waited for


async def served_for_ever(project: Project) -> None:
    async with running(project):
        await asyncio.Event().wait()


async def test_a_silent_provider_holds_up_agents_for_a_bounded_time(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.health.preflight_seconds = 0.05
    with black_hole() as nowhere:
        fastagent = {"default_model": "openai.gpt-x", "openai": {"api_key": "sk-hunter2", "base_url": nowhere}}
        async with serving(tmp_path, {}, **fastagent) as (url, served):
            sick = await health(url)
            assert sick["message"] == "LLM: openai: no answer within 0.05 s"
            assert served.gateway.agents["user"].status.state is State.READY


async def test_the_gauge_of_a_failed_agent_is_down_before_anybody_asks(tmp_path: Path) -> None:
    agents = {"sick": Agent(source="raise ValueError('no key')"), "well": Agent()}
    async with running(write_project(tmp_path, agents)) as served:
        for name, worth in (("sick", 0), ("well", 1)):
            labels = {"agent": name}
            assert served.gateway.metrics.registry.get_sample_value("pallas_agent_health_status", labels) == worth
        assert (await health(served.url("sick")))["agent"]["state"] == "failed"


# --- The gauges while no client asks for health: by rounds of the gateway's own, and by calls


def up(served: Running, server: str) -> float | None:
    labels = {"agent": "user", "server": server}
    return served.gateway.metrics.registry.get_sample_value("pallas_downstream_up", labels)


async def test_downstreams_are_checked_without_a_client_that_asks(tmp_path: Path) -> None:
    with reserved_port() as port:
        async with stateless_downstream() as tools:
            project = write_project(
                tmp_path,
                {"user": Agent(servers=["tools", "gone"])},
                servers={
                    "tools": {"transport": "http", "url": tools.url},
                    "gone": {"transport": "http", "url": f"http://127.0.0.1:{port}/mcp"},
                },
                gateway={"health_seconds": 0.05},
            )
            async with running(project) as served:
                await eventually(lambda: (up(served, "tools"), up(served, "gone")) == (1, 0))
                await tools.stop()
                await eventually(lambda: up(served, "tools") == 0)
                await tools.start()
                await eventually(lambda: up(served, "tools") == 1)


def adds(request: LlmRequest) -> Turn:
    return say("Done.") if request.tool_results else call_tools([("tools__add", {"a": 1, "b": 2})])


async def test_a_call_that_finds_a_server_gone_sets_the_gauge_and_one_that_finds_it_back(tmp_path: Path) -> None:
    async with stateless_downstream(start=False) as tools, world(tmp_path, adds, tools=tools.url) as it:
        await ask(it.url)
        await eventually(lambda: up(it.served, "tools") == 0)
        await tools.start()
        await ask(it.url)
        await eventually(lambda: up(it.served, "tools") == 1)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_refuses_every_callers_token_is_not_well_and_its_words_stay_with_the_caller(
    status: int, tmp_path: Path, limits: Limits
) -> None:
    limits.gateway.health.fresh_seconds = 0
    async with refusing(status, words="ann.bowles may not read the payroll") as server:
        forwards = {"url": server.url, "forward_inbound_auth": True}
        async with world(tmp_path, named_tools, notes=forwards) as it:
            documents = []
            for _ in range(3):
                await ask(it.url, bearer="callers-token")
                documents.append(await health(it.url))

    assert [document["status"] for document in documents] == ["ok", "ok", "degraded"]
    [found] = documents[-1]["downstream"]
    assert found["status"] == "refuses"
    assert found["error"] == f"the last 3 calls: HTTP {status} {HTTPStatus(status).phrase}"
    assert documents[-1]["message"] == f"Refuses callers: notes ({found['error']})"
    assert "ann.bowles" not in str(documents)
    assert up(it.served, "notes") == 1
