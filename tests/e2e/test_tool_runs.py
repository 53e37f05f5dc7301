"""`POST /api/agents/{name}/tools/{server}/{tool}`: a call of an agent that runs one tool, without its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asking import FORM, asking_downstream
from tests.support.downstreams import Era, StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.guarded import static_key
from tests.support.odd_server import hostile, odd_server
from tests.support.pairs import pairs
from tests.support.result_forms import LINK
from tests.support.scripted_llm import say, scripted_llm
from tests.support.stdio_processes import Processes
from tests.support.waiting import eventually

GRANTS = {"anna": ["run:agents:lead"], "ben": ["run:agents:lead"], "viewer": ["view:agents"], "none": ["view:metrics"]}
LOG = "audit.log"


def key_of(who: str) -> str:
    return f"pgw_the-key-of-{who}"


@dataclass
class Tools:
    """A served gateway whose agent `lead` has tools of the downstream `notes`."""

    served: Running
    notes: StatelessDownstream

    async def run(
        self, tool: str, arguments: dict[str, Any] | None = None, *, who: str | None = "anna", **body: Any
    ) -> httpx.Response:
        """Run `server/tool` of `lead`, with the key of `who`."""
        path = f"/api/agents/lead/tools/{tool}"
        async with self.client(who) as http:
            return await http.post(path, json={"arguments": arguments or {}, **body})

    async def get(self, path: str) -> Any:
        """Return a document that `anna` may see."""
        async with self.client() as http:
            return (await http.get(path)).json()

    @asynccontextmanager
    async def slow_run(self) -> AsyncGenerator[asyncio.Task[httpx.Response]]:
        run = asyncio.create_task(self.run("notes/slow"))
        await self.notes.gate.wait_for_entered()
        yield run

    def client(self, who: str | None = "anna") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key_of(who)}"} if who else {}
        return httpx.AsyncClient(trust_env=False, base_url=self.served.base_url, headers=headers, timeout=30)


@asynccontextmanager
async def serving(
    path: Path, *, era: Era = "both", server: dict[str, Any] | None = None, settings: dict[str, Any] | None = None,
    tools: str = '["add", "echo", "fail", "slow"]', with_keys: bool = True, **gateway: Any,
) -> AsyncGenerator[Tools]:  # fmt: skip
    keys = [static_key(*grants, key=key_of(name), name=name) for name, grants in GRANTS.items()]
    lead = Agent(["notes"], decorator=f'tools={{"notes": {tools}}}', settings=settings or {})
    async with stateless_downstream(era=era) as notes:
        project = write_project(
            path, {"lead": lead, "other": Agent()},
            servers={"notes": {"url": notes.url, **(server or {})}},
            gateway={"console": True, **({"auth": {"tokens": keys}} if with_keys else {}), **gateway},
        )  # fmt: skip
        async with running(project) as served:
            yield Tools(served, notes)
            await until_idle(served)


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_a_tool_is_run_without_the_model(era: Era, tmp_path: Path) -> None:
    async with serving(tmp_path, era=era) as tools:
        answer = await tools.run("notes/add", {"a": 2, "b": 3})
        listed = (await tools.get("/api/v1/calls?recent=5"))["calls"]
        turns = tools.served.metric("pallas_llm_turns_total", agent="lead", model="passthrough")
        operations = tools.served.metric(
            "pallas_tool_calls_total", agent="lead", server="notes", operation="tool", outcome="ok"
        )
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    result = answer.json()
    assert (result["content"][0]["text"], result["structuredContent"], result["isError"]) == ("5", {"result": 5}, False)
    assert result["seconds"] >= 0
    [call] = listed
    assert (call["id"], call["agent"], call["api"], call["tokens"]) == (result["callId"], "lead", "console", 0)
    assert [(one["name"], one["ok"]) for one in call["tools"]] == [("notes/add", True)]
    assert turns == 0
    assert operations == 1


async def test_an_error_of_the_tool_is_a_result(tmp_path: Path) -> None:
    async with serving(tmp_path) as tools:
        failed = await tools.run("notes/fail", {"message": "no room"})
        misfit = await tools.run("notes/add", {"a": "two"})
    assert (failed.status_code, failed.json()["isError"]) == (200, True)
    assert "no room" in failed.json()["content"][0]["text"]
    assert (misfit.status_code, misfit.json()["isError"]) == (200, True)
    assert "valid" in misfit.json()["content"][0]["text"]  # what the server says of its schema


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_result_is_as_the_server_sent_it_not_as_a_model_reads_it(is_error: bool, tmp_path: Path) -> None:
    sent = {"content": [{**LINK, "name": "ticket"}], "structuredContent": {"seat": 5}, "isError": is_error}
    documents = hostile("modern")
    documents["tools/call"] = (200, {"result": {"resultType": "complete", **sent}})
    with odd_server(documents) as server:
        servers = {"odd": {"url": f"{server.url}/mcp"}}
        project = write_project(tmp_path, {"user": Agent(["odd"])}, servers=servers, gateway={"console": True})
        async with running(project) as served:
            result = (await served.request("POST", "/api/agents/user/tools/odd/book", json={})).json()
            await until_idle(served)
    assert {name: result[name] for name in sent} == sent


async def test_tools_that_the_agent_may_not_use_are_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path, tools='["add", "unk*", "tools/*"]') as tools:
        for tool in ("notes/unknown", "notes/emit", "none/add", "local/add", "notes/tools/add"):
            answer = await tools.run(tool)
            assert (answer.status_code, answer.json()["error"]) == (404, "no_tool")
            assert answer.json()["error_description"] == f"Agent 'lead' has no tool '{tool}' that this caller may run."
        assert tools.notes.recorder.calls() == []


async def test_callers_that_may_not_run_the_agent_are_refused(tmp_path: Path) -> None:
    refused: dict[tuple[str | None, str], int] = {
        (None, "lead"): 401, ("nobody", "lead"): 401, ("viewer", "lead"): 403, ("none", "lead"): 404,
        ("anna", "other"): 404, ("anna", "missing"): 404,
    }  # fmt: skip
    answers: dict[tuple[str | None, str], int] = {}
    async with serving(tmp_path) as tools:
        for who, agent in refused:
            async with tools.client(who) as http:
                answers[who, agent] = (await http.post(f"/api/agents/{agent}/tools/notes/add", json={})).status_code
        assert tools.notes.recorder.calls() == []
    assert answers == refused


async def test_the_guards_of_calls_hold(tmp_path: Path) -> None:
    path = "/api/agents/lead/tools/notes/echo"
    async with serving(tmp_path, max_body_bytes=2000) as tools, tools.client() as http:
        foreign = await http.post(path, json={}, headers={"Origin": "https://foreign.example"})
        rebound = await http.post(path, json={}, headers={"Host": "rebound.example"})
        large = await http.post(path, json={"arguments": {"text": "x" * 3000}})
        plain = await http.post(path, content="{}", headers={"Content-Type": "text/plain"})
        got = await http.get(path)
        bodies: tuple[Any, ...] = ({"arguments": []}, {"more": 1}, {"approved": 1}, [])
        bad = [(await http.post(path, json=one)).json() for one in bodies]
    assert [one.status_code for one in (foreign, rebound, large, plain, got)] == [403, 421, 413, 415, 405]
    assert got.headers["allow"] == "POST"
    assert {one["error"] for one in bad} == {"bad_input"}
    assert "'arguments'" in bad[0]["error_description"]


async def test_arguments_that_nobody_can_be_sent_are_refused(tmp_path: Path) -> None:
    path, typed = "/api/agents/lead/tools/notes/echo", {"Content-Type": "application/json"}
    async with serving(tmp_path, settings={"approve": ["notes/echo"]}) as tools, tools.client() as http:
        for approved in (True, False):
            body = json.dumps({"arguments": {"text": ["\ud800"]}, "approved": approved})
            answer = await http.post(path, content=body, headers=typed)
            assert (answer.status_code, answer.json()["error"]) == (400, "bad_input")
            assert "half a surrogate pair" in answer.json()["error_description"]
        assert tools.notes.recorder.calls() == []


@pairs({"pattern": ["asking/wi*", "destructive"], "unasked": ["deny", "allow"]})
async def test_a_tool_under_approval_runs_only_when_the_request_says_so(
    pattern: str, unasked: str, tmp_path: Path
) -> None:
    settings = {"approve": [pattern], "approve_unasked": unasked}
    async with asking_downstream("modern") as downstream:
        project = write_project(
            tmp_path,
            {"user": Agent(["asking"], settings=settings)},
            servers={"asking": {"url": downstream.url}},
            gateway={"audit_log": LOG, "console": True},
        )
        async with running(project) as served, httpx.AsyncClient(trust_env=False, base_url=served.base_url) as http:
            path = "/api/agents/user/tools/asking/wipe"
            refused = await http.post(path, json={"arguments": {"path": "/home"}})
            assert downstream.recorder.calls("wipe") == []
            allowed = await http.post(path, json={"arguments": {"path": "/home"}, "approved": True})
            assert len(downstream.recorder.calls("wipe")) == 1
            await until_idle(served)
    assert (refused.status_code, refused.json()["error"]) == (409, "approval_required")
    question = refused.json()["question"]
    assert {name: question[name] for name in ("agent", "tool", "arguments")} == {
        "agent": "user",
        "tool": "asking/wipe",
        "arguments": {"path": "/home"},
    }
    assert question["message"].startswith("May the tool asking/wipe run with these arguments?")
    assert (allowed.status_code, allowed.json()["content"][0]["text"]) == (200, "wiped /home")
    lines = [json.loads(line) for line in (tmp_path / LOG).read_bytes().splitlines()]
    told = [(one["action"], one["outcome"], one.get("reason")) for one in lines if one.get("api") == "console"]
    assert told == [
        ("call", "allowed", None),
        ("approve", "unaskable", None),
        ("call_end", "refused", "approval_required"),
        ("call", "allowed", None),
        ("approve", "accepted", None),
        ("call_end", "ok", "toolResult"),
    ]
    assert not [one for one in lines if "/home" in json.dumps(one)]


async def test_a_question_of_the_server_is_declined_with_the_reason(tmp_path: Path) -> None:
    async with asking_downstream("modern") as downstream:
        project = write_project(tmp_path, {"user": Agent(["asking"])}, servers={"asking": {"url": downstream.url}})
        async with running(project) as served:
            answer = (await served.request("POST", "/api/agents/user/tools/asking/name", json={})).json()
            await until_idle(served)
        assert downstream.answers == [{"action": "decline", "content": None}]
    text = " ".join(block["text"] for block in answer["content"])
    assert FORM in text
    assert "cannot be asked" in text


async def test_the_limit_of_one_tool_holds(tmp_path: Path) -> None:
    async with serving(tmp_path, settings={"tool_limits": {"notes/a*": 1}}) as tools:
        answers = [await tools.run("notes/add", {"a": 1, "b": 1}) for _ in range(2)]
    assert [one.json()["isError"] for one in answers] == [False, False]  # each run is a call of its own


async def test_a_run_ends_at_the_deadline_of_the_agent(tmp_path: Path, deadline: asyncio.Event) -> None:
    async with serving(tmp_path) as tools, tools.slow_run() as run:
        deadline.set()
        answer = await run
        await tools.notes.gate.wait_for_cancelled()
    assert (answer.status_code, answer.json()["error"]) == (504, "deadline")


async def test_during_a_drain_running_tools_end_and_no_further_one_begins(tmp_path: Path) -> None:
    async with serving(tmp_path) as tools, tools.slow_run() as run:
        tools.served.stop.set()
        await eventually(lambda: tools.served.gateway.calls.draining, what="the drain")
        refused = await tools.run("notes/add", {"a": 1, "b": 1})
        tools.notes.gate.open()
        answer = await run
    assert (refused.status_code, refused.json()["error"]) == (503, "stopping")
    assert refused.headers["retry-after"]
    assert answer.status_code == 200


async def test_the_callers_token_reaches_the_server_that_asks_for_it_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"forward_inbound_auth": True}, with_keys=False) as tools:
        whose = ["anna", "ben"] * 5
        answers = await asyncio.gather(*(tools.run("notes/echo", {"text": who}, who=who) for who in whose))
        echoed = tools.notes.recorder.calls("echo")
        seen = {(one.rpc["params"]["arguments"]["text"], one.bearer) for one in echoed}
    assert {one.status_code for one in answers} == {200}
    assert len(echoed) == len(whose)
    assert seen == {(who, key_of(who)) for who in ("anna", "ben")}


async def test_only_the_server_of_the_tool_is_connected(tmp_path: Path) -> None:
    async with stateless_downstream() as notes, stateless_downstream() as mine:
        servers: dict[str, dict[str, Any]] = {
            "notes": {"url": notes.url},
            "mine": {"url": mine.url, "forward_inbound_auth": True},
        }
        async with running(write_project(tmp_path, {"lead": Agent(["notes", "mine"])}, servers=servers)) as served:
            body, headers = {"arguments": {"a": 1, "b": 1}}, {"Authorization": "Bearer of-anna"}
            answer = await served.request("POST", "/api/agents/lead/tools/notes/add", json=body, headers=headers)
            await until_idle(served)
        assert not [one for one in (*notes.recorder.requests, *mine.recorder.requests) if one.bearer == "of-anna"]
    assert answer.status_code == 200


async def test_programs_and_peers_are_downstreams_too(tmp_path: Path) -> None:
    agents = {
        "lead": Agent(["program", "echo"], settings={"depends_on": ["echo"]}),
        "echo": Agent(),
    }
    async with scripted_llm(lambda request: say(f"heard {request.last_user_text}")) as llm:
        servers = {"program": Processes(tmp_path).settings()}
        project = write_project(tmp_path, agents, llm_url=llm.base_url, servers=servers)
        async with running(project) as served, httpx.AsyncClient(trust_env=False, base_url=served.base_url) as http:
            program = await http.post("/api/agents/lead/tools/program/where", json={})
            peer = await http.post("/api/agents/lead/tools/echo/send_message", json={"arguments": {"message": "you"}})
            ended = (await http.get("/api/v1/calls?recent=9")).json()["calls"]
            await until_idle(served)
    assert (program.status_code, program.json()["isError"]) == (200, False)
    assert (peer.status_code, peer.json()["content"][0]["text"]) == (200, "heard you")
    nested = next(one for one in ended if one["agent"] == "echo")
    assert nested["parent"] == peer.json()["callId"]


async def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    async with stateless_downstream(start=False) as gone:
        project = write_project(tmp_path, {"lead": Agent(["gone"])}, servers={"gone": {"url": gone.url}})
        async with running(project) as served:
            answer = await served.request("POST", "/api/agents/lead/tools/gone/add", json={})
            await until_idle(served)
    assert (answer.status_code, answer.json()["error"]) == (502, "server_unavailable")
    assert answer.json()["error_description"] == "The server 'gone' does not answer. Try again in a moment."


@pytest.mark.parametrize("off", ["console_run_tools", "console"])
async def test_switched_off_there_is_no_such_endpoint(off: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {off: False}
    async with serving(tmp_path, **settings) as tools:
        answer = await tools.run("notes/add", {"a": 1, "b": 1})
        details = await tools.get("/api/agents/lead")
        assert tools.notes.recorder.calls() == []
    assert answer.status_code == 404
    assert off in answer.json()["error"]
    assert off == "console" or (details["may_run"], details["may_run_tools"]) == (True, False)
