"""Downstreams of every temper: of either era, down and back, silent, refusing, babbling; and who sees whose token."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.core.agent_state import State
from tests.support.asgi import Receive, Scope, Send, http_only, respond
from tests.support.calling import EACH_VERSION, answer_of, ask, health
from tests.support.changing import ChangingTool, changing_downstream
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.downstreams import refusing, stateless_downstream
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, Limits, Running, running, until_idle, write_project
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listener import black_hole, serve_app
from tests.support.one_user import ADD, named_tools, use, world
from tests.support.pairs import pairs
from tests.support.scripted_llm import say
from tests.support.stdio_processes import Processes
from tests.support.waiting import Gate, eventually


@pytest.fixture(autouse=True)
def every_question_about_health_is_a_new_round(limits: Limits) -> None:
    limits.gateway.health.fresh_seconds = 0


async def test_downstream_that_flaps_is_one_pair_of_lines_and_no_change_of_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: Limits
) -> None:
    limits.runtime.listings.certain_seconds = -1  # else a call that uses no tool does not notice
    caplog.set_level("INFO", logger="pallas")
    async with stateless_downstream() as tools, world(tmp_path, named_tools, tools=tools.url) as it:
        caplog.clear()
        for _ in range(4):
            await tools.stop()
            assert (await ask(it.url)).text == "no tools"
            await tools.start()
            assert (await ask(it.url)).text == "tools"
            assert it.served.gateway.agents["user"].status.state is State.READY
        records = list(caplog.records)  # before the stop, which has lines of its own

    said = [record.getMessage() for record in records if getattr(record, "server", None) == "tools"]
    assert said == ["downstream unreachable", "downstream available again"]
    assert not [record for record in records if record.name == "pallas.agents" and "agent " in record.message]


async def test_downstreams_that_are_listed_ahead_and_down_are_logged_then_and_not_again_by_a_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pallas.runtime")

    def said() -> dict[str, str]:
        of_servers = [vars(record) for record in caplog.records if hasattr(record, "server")]
        found: dict[str, str] = {record["server"]: record["error"] for record in of_servers}
        assert len(of_servers) == len(found)
        return found

    async with (
        stateless_downstream(start=False) as gone,
        stateless_downstream() as there,
        world(
            tmp_path,
            named_tools,
            plain=gone.url,
            program={"transport": "stdio", "command": "no-such-program"},
            there=there.url,
            there_forwarded={"url": there.url, "forward_inbound_auth": True},
        ) as it,
    ):
        await eventually(lambda: len(said()) == 2, what="a record of each downstream that is down")
        before = said()
        assert before.keys() == {"plain", "program"}
        assert before["program"] == "command 'no-such-program' not found"
        assert (await ask(it.url)).text == "there there_forwarded"
        assert said() == before


async def test_tool_filters_that_match_nothing_are_a_warning_at_start_and_degraded_health(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pallas.runtime")
    async with changing_downstream("weather", "news", tells=True) as one, stateless_downstream() as forwarding:
        servers: dict[str, Any] = {
            "n": {"url": one.url},
            "own": {"url": forwarding.url, "forward_inbound_auth": True},  # may offer each caller something else
        }
        agents = {"coded": Agent(["n", "own"], decorator="tools={'n': ['wether', 'ne*'], 'own': ['wether']}")}
        project = write_project(tmp_path, agents, servers=servers)
        declared = {
            "instruction": "You tell.",
            "model": "passthrough",
            "servers": ["n"],
            "tools": ["n__wether", "n__*"],
            "approve": ["n/wether", "n/ne*", "*/delete_*"],
            "tool_limits": {"n/nws": 1},
        }
        project.edit(lambda document: document["agents"].update(declared=declared))
        async with running(project) as served:
            for name in ("coded", "declared"):
                await until_judged(served, name)
                found = await health(served.url(name))
                assert found["status"] == "degraded"
                policies = (
                    ", approve: 'n/wether' matches no tool (did you mean 'n/weather'?)"
                    ", tool_limits: 'n/nws' matches no tool (did you mean 'n/news'?)"
                )
                filtered = "Tools: 'n__wether' matches no tool (did you mean 'n__weather'?)"
                assert found["message"] == filtered + (policies if name == "declared" else "")
                assert served.metric("pallas_agent_health_status", agent=name) == 0.5
            await ask(served.url("coded"))
            said = [vars(record) for record in caplog.records if record.getMessage() == "tool filter matches no tool"]
            assert sorted((record["agent"], record["filter"], record["levelname"]) for record in said) == [
                ("coded", "n__wether", "WARNING"),
                ("declared", "approve: n/wether", "WARNING"),
                ("declared", "n__wether", "WARNING"),
                ("declared", "tool_limits: n/nws", "WARNING"),
            ]

            await one.change(wether=ChangingTool(), nws=ChangingTool(), news=ChangingTool())
            await until_judged(served, "coded", well=True)
            assert (await health(served.url("coded")))["status"] == "ok"


async def test_tool_filters_of_a_program_are_judged_with_its_first_call(tmp_path: Path) -> None:
    servers = {"n": Processes(tmp_path).settings()}
    agents = {"user": Agent(["n"], decorator="tools={'n': ['wether']}")}
    async with running(write_project(tmp_path, agents, servers=servers)) as served:
        await ask(served.url("user"))
        await until_judged(served, "user")


async def until_judged(served: Running, agent: str, *, well: bool = False) -> None:
    """Wait until it is known whether the agent's filters match something."""
    runtime = served.gateway.agents[agent].runtime
    assert runtime is not None
    await eventually(lambda: well is not bool(runtime.problems), what="a listing")


async def test_tool_error_and_unknown_tool_reach_the_model_as_error_results(tmp_path: Path) -> None:
    script = use(("tools__fail", {"message": "no such record"}), ("tools__nothing", {}), ADD)
    async with stateless_downstream() as tools, world(tmp_path, script, tools=tools.url) as it:
        answer = await ask(it.url)
        assert (answer.text, answer.is_error) == ("done", False)
        failed, unknown, fine = it.tool_results()
        assert "no such record" in failed
        assert "nothing" in unknown
        assert "3" in fine


@pytest.mark.usefixtures("brief_sockets")
async def test_silent_downstream_costs_its_tools_and_a_bounded_time(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    limits.runtime.attach_seconds = 20
    limits.runtime.attach_seconds_after_timeout = 0.2
    limits.gateway.health.probe_seconds = 0.2
    with black_hole() as nowhere:
        async with (
            stateless_downstream() as tools,
            world(tmp_path, named_tools, silent=f"{nowhere}/mcp", tools=tools.url) as it,
        ):
            assert (await hastened(ask(it.url))).text == "tools"
            await until_idle(it.served)
            before = snapshot()
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(ask(it.url, version=EACH_VERSION[n % 2]) for n in range(10)))
            await until_idle(it.served)
            await assert_nothing_left(before)
            sick = await health(it.url)

    assert {answer.text for answer in answers} == {"tools"}
    assert (sick["status"], sick["message"]) == ("degraded", "Unreachable: silent")
    assert len([record for record in caplog.records if getattr(record, "server", None) == "silent"]) == 1


async def test_silent_downstream_is_waited_for_by_all_calls_at_once(tmp_path: Path) -> None:
    gate = Gate()

    @http_only
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.enter()
        await respond(send, 500, "")

    async with serve_app(silent) as listener, world(tmp_path, named_tools, silent=f"{listener.base_url}/mcp") as it:
        calls = [asyncio.create_task(ask(it.url, version=EACH_VERSION[n % 2])) for n in range(10)]
        await gate.wait_for_entered(10)  # before any of them gave up
        assert not any(call.done() for call in calls)
        assert (await asyncio.wait_for(ask(it.served.url("loner")), 5)).text == "no tools"
        gate.open()
        assert {answer.text for answer in await asyncio.gather(*calls)} == {"no tools"}


@pairs({"status": [401, 403, 404, 500, 503], "forwards": [True, False]})
async def test_refusing_downstream_costs_its_tools_only(status: int, forwards: bool, tmp_path: Path) -> None:
    async with refusing(status, {"www-authenticate": 'Bearer realm="tests"'} if status == 401 else None) as server:
        settings = {"url": server.url, "forward_inbound_auth": forwards}
        async with world(tmp_path, named_tools, refusing=settings) as it:
            for bearer in (None, "caller-token"):
                answer = await ask(it.url, bearer=bearer)
                assert (answer.text, answer.is_error) == ("no tools", False)
            found = await health(it.url)

    if forwards and status in (401, 403):  # it answered, and a probe brings no token
        assert found["status"] == "ok"
    else:
        assert (found["status"], found["message"]) == ("degraded", "Unreachable: refusing")
        assert found["downstream"][0]["error"] == f"HTTP {status} {HTTPStatus(status).phrase}"
    assert {request.path for request in server.recorder.requests} == {"/mcp"}  # nobody began an OAuth registration


@pytest.mark.parametrize(
    ("bearer", "why"),
    [
        ("caller-token", "refuses the caller's token"),
        (None, "requires the token of a caller, and this call has none"),
    ],
)
async def test_the_model_and_the_progress_name_a_server_that_refuses_the_callers_token(
    bearer: str | None, why: str, tmp_path: Path
) -> None:
    sentence = f"The server 'strict' {why} (HTTP 401 Unauthorized). Its tools are missing in this call."
    async with refusing(401) as server:
        settings = {"url": server.url, "forward_inbound_auth": True}
        async with (
            world(tmp_path, lambda request: say(request.last_user_text), strict=settings) as it,
            raw_client(it.url, protocol_version=MODERN_VERSION, bearer=bearer) as client,
        ):
            reply = await client.call_tool("send_message", {"message": "hello"}, meta={"progressToken": 1})

    assert answer_of(reply).text == f"hello[{sentence}]"
    told = [one["params"] for one in reply.notifications if one["method"] == "notifications/progress"]
    assert sentence in [one["message"] for one in told]


async def test_downstreams_that_talk_nonsense_cost_their_tools_only(tmp_path: Path, limits: Limits) -> None:
    answers = [
        ("<html>Please log in</html>", "text/html"),
        ("{not json", "application/json"),
        ("[]", "application/json"),
        ('{"jsonrpc": "2.0", "id": 1, "result": {}}', "application/json"),
        ('{"jsonrpc": "2.0", "id": 999, "result": "?"}', "application/json"),
        ("data: {not json\n\n", "text/event-stream"),
        ("", "text/event-stream"),
        ("\x00\xff\x00", "application/octet-stream"),
    ]
    limits.runtime.attach_seconds = limits.runtime.attach_seconds_after_timeout = 1

    @http_only
    async def babbling(scope: Scope, receive: Receive, send: Send) -> None:
        body, content_type = answers[int(scope["path"].strip("/"))]
        await respond(send, 200, body, content_type=content_type)

    async with serve_app(babbling) as listener, stateless_downstream() as tools:
        servers = {f"babbling{n}": f"{listener.base_url}/{n}" for n in range(len(answers))} | {"tools": tools.url}
        async with world(tmp_path, named_tools, **servers) as it:
            answer = await ask(it.url)
            assert (answer.text, answer.is_error) == ("tools", False)
            await health(it.url)
            assert (await ask(it.url)).text == "tools"
            await until_idle(it.served)
