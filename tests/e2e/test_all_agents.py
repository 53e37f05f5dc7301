"""`/mcp`: every agent as a tool of one endpoint, answering there as it does at its own."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError

from tests.support.calling import EACH_VERSION, answer_of, ask, health
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import EACH_ERA, Connect, ProgressLog, raw_client, text_of, tool_params
from tests.support.gateway import Agent, Running, declare_project, gateway_and_model, running, until_idle, write_project
from tests.support.guarded import METADATA, OK, Guarded, Refusal, attempt, bearer, guarded, static_key
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, echo, hang, say, scripted_llm
from tests.support.waiting import Gate
from tests.support.watching import Stage, calling, script_of, stage, watch

each_version = pytest.mark.parametrize("version", EACH_VERSION)
INITIALIZE = "2025-06-18"
BROKEN = Agent(source="raise ValueError('no key')\n", settings={"description": "Would help."})


def endpoint(served: Running, slash: str = "") -> str:
    return f"{served.base_url}/mcp{slash}"


@asynccontextmanager
async def talking(path: Path, **gateway: Any) -> AsyncGenerator[tuple[Running, Any]]:
    """`echo`, `other` and `broken`; the model of those that run repeats what it was told."""
    agents = {
        "echo": Agent(settings={"title": "Echo", "description": "Repeats what it is told."}),
        "other": Agent(),
        "broken": BROKEN,
    }
    async with gateway_and_model(path, agents, echo, gateway=gateway, deployment={"version": "7.1"}) as (served, llm):
        yield served, llm


async def test_each_agent_has_a_tool_whose_name_models_accept(tmp_path: Path) -> None:
    agents = {name: {"instruction": "You repeat."} for name in ("echo", "of.two", "x" * 60)}
    async with (
        scripted_llm(echo) as llm,
        running(declare_project(tmp_path, agents, llm_url=llm.base_url)) as served,
        raw_client(endpoint(served)) as client,
    ):
        *tools, _ = [tool["name"] for tool in await client.list_tools()]
        called = [*tools, "agent-of.two"]
        answers = [answer_of(await client.call_tool(tool, {"message": tool})).text for tool in called]

    assert [re.sub("-[0-9a-f]{8}$", "-HASH", tool) for tool in tools] == [
        "agent-echo",
        "agent-of_two-HASH",
        f"agent-{'x' * 49}-HASH",
    ]
    assert answers == [f"heard: {tool}" for tool in (*tools, "agent-of.two")]


@pytest.mark.parametrize("connect", EACH_ERA)
async def test_a_client_of_either_era_finds_every_agent_behind_one_url(connect: Connect, tmp_path: Path) -> None:
    async with talking(tmp_path) as (served, llm):
        async with connect(served.url("echo")) as own:
            [expected, *_] = await own.list_tools()
        async with connect(endpoint(served)) as client:
            tools = {tool.name: tool for tool in await client.list_tools()}
            log = ProgressLog()
            history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
            arguments = {"message": "three", "history": history, "conversation_id": "talk"}
            answer = await client.call_tool("agent-echo", arguments, progress_callback=log)
            itself = client.sdk.server_info
            with pytest.raises(
                MCPError, match=r"Unknown tool 'echo'\. Tools are: agent-echo, agent-other, agent-broken"
            ):
                await client.call_tool("echo", {"message": "hello"})

        assert list(tools) == ["agent-echo", "agent-other", "agent-broken", "get_health"]
        listed = tools["agent-echo"]
        assert (listed.title, listed.description) == (expected.title, expected.description)
        assert listed.input_schema["properties"].keys() == expected.input_schema["properties"].keys()
        assert tools["agent-broken"].description == "Would help."
        assert itself is not None
        assert (itself.name, itself.version) == ("test", "7.1")
        assert text_of(answer) == "heard: one | three"
        assert (answer.meta or {})["pallas/call"]["conversation_id"] == "talk"
        assert log.messages == ["echo step 1 (llm)"]
        assert [message["content"] for message in llm.requests[-1].messages[1:]] == ["one", "two", "three"]
        assert served.metric("pallas_send_message_total", agent="echo", outcome="ok") == 1


@each_version
async def test_a_call_tells_the_same_story_as_at_the_agents_own_endpoint(version: str, tmp_path: Path) -> None:
    turns: list[Turn] = [call_tools([("tools__add", {"a": 1, "b": 2})]), say("three")]
    async with stage(tmp_path, script_of(solo=turns)) as staged:
        own = await watch(staged.url("solo"), version=version)
        here = await watch(endpoint(staged.served, "/"), tool="agent-solo", version=version)

    assert _without_ids(here.story) == _without_ids(own.story)
    assert len(here.payloads) == 3
    assert (here.text, here.is_error, here.call.keys()) == (own.text, own.is_error, own.call.keys())
    assert {key: here.call[key] for key in ("agent", "iterations", "stop_reason")} == {
        "agent": "solo", "iterations": 2, "stop_reason": "endTurn",
    }  # fmt: skip


def _without_ids(story: object) -> str:
    return re.sub(r"call_\d+_", "call_", json.dumps(story))


@each_version
async def test_an_agent_that_cannot_answer_says_so_as_at_its_own_endpoint(version: str, tmp_path: Path) -> None:
    async with talking(tmp_path, max_body_bytes=2000) as (served, _):
        for arguments in ({"message": 3}, {"message": "hi", "color": "red"}, {"message": "hi", "images": [{}]}):
            own = await ask(served.url("echo"), version=version, **arguments)
            here = await ask(endpoint(served), tool="agent-echo", version=version, **arguments)
            assert (here.text, here.is_error) == (own.text, True)
            assert here.meta["stop_reason"] == own.meta["stop_reason"]
        own = await ask(served.url("broken"), version=version)
        here = await ask(endpoint(served), tool="agent-broken", version=version)
        assert (here.text, here.is_error) == (own.text, True)
        assert "no key" in here.text
        assert served.metric("pallas_calls_refused_total", agent="broken", reason="agent_unavailable") == 2

        async with raw_client(endpoint(served), protocol_version=version) as client:
            params = tool_params("agent-echo", {"message": "x" * 2000})
            assert (await client.request("tools/call", params)).status == 413
            foreign = {"host": "evil.example"}
            assert (await client.request("tools/list", headers=foreign)).status == 421
            assert (await client.request("tools/list", headers={"origin": "http://evil.example"})).status == 403
            assert (await client.http.get(endpoint(served))).status_code == 405


@each_version
async def test_the_health_of_the_whole_tells_of_each(version: str, tmp_path: Path) -> None:
    async with talking(tmp_path) as (served, _):
        one = await health(endpoint(served), version=version)
        served.project.edit(lambda document: document["agents"].pop("broken"))
        await served.reload()
        other = await health(endpoint(served), version=version)

    assert one["status"] == "degraded"
    assert one["message"].startswith("broken: ")
    assert {name: each["status"] for name, each in one["agents"].items()} == {
        "echo": "ok", "other": "ok", "broken": "error",
    }  # fmt: skip
    assert (other["status"], "message" in other, list(other["agents"])) == ("ok", False, ["echo", "other"])


@pytest.mark.parametrize(("version", "how"), [(INITIALIZE, "cancel"), *((one, "vanish") for one in EACH_VERSION)])
async def test_a_client_that_leaves_or_cancels_ends_its_call(version: str, how: str, tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, lambda _: hang(gate)) as staged:
        before, url = snapshot(), endpoint(staged.served)
        async with calling(url, tool="agent-solo", version=version) as (client, call):
            await gate.wait_for_entered()
            if how == "vanish":
                await call.vanish()
            else:
                params = {"requestId": call.request_id}
                async with raw_client(staged.url("solo"), protocol_version=version) as elsewhere:
                    elsewhere.session_id = client.session_id
                    await elsewhere.notify("notifications/cancelled", params)  # there it is no call
                assert staged.served.gateway.calls.started == 1
                await client.notify("notifications/cancelled", params)
                assert (await call.reply()).result["_meta"]["pallas/call"]["stop_reason"] == "cancelled"
            await staged.llm.wait_for_aborted(1)
            await until_idle(staged.served)
        await assert_nothing_left(before)

        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="error") == 1


def _delegates(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    told = request.last_user_text
    if told.startswith("ask "):
        _, agent, rest = told.split(" ", 2)
        return call_tools([(f"everyone__agent-{agent}", {"message": rest})])
    return say(f"heard {told}")


@asynccontextmanager
async def family(path: Path, scheme: str = "http", **gateway: Any) -> AsyncGenerator[Stage]:
    """`root` has all agents of its own gateway as one downstream."""
    agents = {"root": Agent(["everyone"]), "leaf": Agent()}
    with reserved_port() as port:
        peers = {"everyone": {"transport": "http", "url": f"{scheme}://localhost:{port}/mcp"}}
        async with stage(path, _delegates, agents, peers=peers, gateway={"port": port, **gateway}) as staged:
            yield staged


@each_version
async def test_agents_may_have_it_as_a_downstream_and_their_calls_are_nested(version: str, tmp_path: Path) -> None:
    async with family(tmp_path, max_in_flight=1, queue_seconds=0, max_nesting=2) as staged:
        watched = await watch(staged.url("root"), "ask leaf hello", version=version)
        circle = await watch(endpoint(staged.served), "ask root " * 3 + "x", tool="agent-root", version=version)
        found = await health(endpoint(staged.served), version=version)

    offered = {
        tool["function"]["name"]: tool["function"]["parameters"] for tool in staged.llm.requests[0].body["tools"]
    }
    assert list(offered) == ["everyone__agent-root", "everyone__agent-leaf", "everyone__get_health"]
    assert "params" not in offered["everyone__agent-leaf"]["properties"]  # as for peers
    assert watched.text == "heard hello"
    assert "everyone/agent-leaf: leaf step 1 (llm)" in watched.progress
    assert [one["via_agent"] for one in watched.payloads if one["agent"] == "leaf"] == [["everyone"]]
    assert "calls deep; the limit is 2" in circle.text
    assert found["agents"]["root"]["downstream"][0]["status"] == "ok"


async def test_agents_may_have_it_as_a_downstream_behind_tls(tmp_path: Path) -> None:
    tls = write_certificate(tmp_path)
    async with family(tmp_path, "https", tls=TLS_FILES) as staged:
        url = f"https://localhost:{staged.served.gateway.addresses.registry_port}/mcp"
        answer = await watch(url, "ask leaf hello", tool="agent-root", tls=tls)
    assert "everyone/agent-leaf: leaf step 1 (llm)" in answer.progress


@each_version
async def test_agents_come_and_go_while_calls_end_on_what_they_began_with(version: str, tmp_path: Path) -> None:
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate, say("just in time"))) as llm:
        project = write_project(tmp_path, {"goes": Agent(), "stays": Agent()}, llm_url=llm.base_url)
        project.write_module("comes", (tmp_path / project.package / "stays.py").read_text())
        module = {"module": f"{project.package}.comes"}
        async with (
            running(project) as served,
            calling(endpoint(served), tool="agent-goes", version=version) as (_, call),
        ):
            await gate.wait_for_entered()
            project.edit(lambda one: one.update({"version": "8", "agents": {"comes": module, **_without_goes(one)}}))
            await served.reload()
            async with raw_client(endpoint(served), protocol_version=version) as client:
                listed = [tool["name"] for tool in await client.list_tools()]
                gone = await client.call_tool("agent-goes", {"message": "hello"})
            gate.open()
            answer = await call.reply()

    assert listed == ["agent-comes", "agent-stays", "get_health"]
    assert "Unknown tool 'agent-goes'" in gone.error["message"]
    assert answer.result["content"][0]["text"] == "just in time"


def _without_goes(document: dict[str, Any]) -> dict[str, Any]:
    return {name: agent for name, agent in document["agents"].items() if name != "goes"}


@each_version
async def test_while_the_gateway_drains_all_but_calls_is_answered(version: str, tmp_path: Path) -> None:
    async with talking(tmp_path) as (served, _), raw_client(endpoint(served), protocol_version=version) as client:
        served.gateway.calls.draining = True
        listed, called = await client.list_tools(), await client.call_tool("agent-echo", {"message": "hello"})
        asked = await client.call_tool("get_health")

    assert len(listed) == 4
    assert (called.status, asked.status, "retry-after" in called.headers) == (503, 200, True)


METADATA_OF_ALL = f"{METADATA}/mcp"
GRANTS: dict[str, tuple[str, str, str]] = {
    # scope → the tools that are listed, and what comes of calling research and other
    "run:agents": ("agent-research agent-other get_health", "ok", "ok"),
    "run:agents:research": ("agent-research get_health", "ok", "unknown"),
    "run:agents:research view:agents:other": ("agent-research get_health", "ok", "run:agents:other"),
    "view:agents": ("get_health", "run:agents:research", "run:agents:other"),
    "view:metrics": ("run:agents", "run:agents", "run:agents"),
    "": ("run:agents", "run:agents", "run:agents"),
}


@each_version
async def test_callers_see_and_call_the_agents_they_may_run(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as g:
        seen = {scope: await _outcomes(g, scope, version) for scope in GRANTS}
        absent = await _called(g, "run:agents:research", "nobody", version)
        hidden = await _called(g, "run:agents:research", "other", version)
        refused = g.served.metric("pallas_calls_refused_total", agent="other", reason="insufficient_scope")
        shown = await health(f"{g.public}/mcp", version=version, bearer=_token(g, "run:agents:other"))

    assert seen == GRANTS
    assert hidden == absent == "unknown"
    assert refused == 2
    assert list(shown["agents"]) == ["other"]


async def _outcomes(g: Guarded, scope: str, version: str) -> tuple[str, str, str]:
    async with raw_client(f"{g.public}/mcp", protocol_version=version, bearer=_token(g, scope)) as client:
        listed = await client.request("tools/list")
    seen = _scope_wanted(g, listed) or " ".join(tool["name"] for tool in listed.result["tools"])
    return seen, await _called(g, scope, "research", version), await _called(g, scope, "other", version)


async def _called(g: Guarded, scope: str, agent: str, version: str) -> str:
    async with raw_client(f"{g.public}/mcp", protocol_version=version, bearer=_token(g, scope)) as client:
        reply = await client.call_tool(f"agent-{agent}", {"message": "hello"})
    if (wanted := _scope_wanted(g, reply)) is not None:
        return wanted
    return "unknown" if "Unknown tool" in reply.text or reply.messages[-1].get("error") else "ok"


def _token(g: Guarded, scope: str) -> str:
    return g.token(scope, aud=f"{g.public}/mcp")


def _scope_wanted(g: Guarded, reply: Any) -> str | None:
    """The grant that a 403 asks for, which also says where this resource's metadata is."""
    if reply.status != 403:
        return None
    challenge: str = reply.headers["www-authenticate"]
    assert f'resource_metadata="{g.public}{METADATA_OF_ALL}"' in challenge
    return challenge.rpartition('scope="')[2].partition('"')[0]


@each_version
async def test_a_token_is_for_this_resource_or_for_an_agent_not_for_both(version: str, tmp_path: Path) -> None:
    async with guarded(tmp_path, auth={"tokens": [static_key("run:agents:other")]}) as g:
        here, challenge = (
            f"{g.public}/mcp",
            {"resource_metadata": f"{g.public}{METADATA_OF_ALL}", "scope": "run:agents"},
        )

        async def call(url: str, token: str | None, tool: str = "agent-research") -> Refusal:
            return await attempt(url, bearer(token) if token else None, version=version, tool=tool)

        assert await call(here, None) == await call(here, None, "agent-nobody") == Refusal(401, challenge)
        assert await call(here, g.token()) == Refusal(401, {**challenge, "error": "invalid_token"})
        assert await call(g.url(), g.token(aud=here), "send_message") == g.invalid()
        assert await call(here, g.token(aud=here)) == OK
        assert await call(here, g.token(aud=g.public)) == OK
        async with httpx.AsyncClient(trust_env=False) as http:
            document = (await http.get(f"{g.public}{METADATA_OF_ALL}")).json()

    assert (document["resource"], document["scopes_supported"]) == (here, ["run:agents"])
    assert document["authorization_servers"] == [g.server.issuer]


@each_version
async def test_callers_without_a_token_see_what_is_granted_to_them(version: str, tmp_path: Path) -> None:
    auth = {"jwt": None, "anonymous": ["run:agents:research", "view:agents:other"]}
    async with guarded(tmp_path, auth=auth) as g:
        url = f"{g.public}/mcp"
        async with raw_client(url, protocol_version=version) as client:
            listed = [tool["name"] for tool in await client.list_tools()]
        tools = ("agent-research", "get_health", "agent-other", "agent-nobody", "nonsense")
        seen = [(await attempt(url, version=version, tool=tool)).status for tool in tools]

    assert listed == ["agent-research", "get_health"]
    assert seen == [200, 200, 401, 401, 401]
