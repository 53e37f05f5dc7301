"""`POST /api/v1/agents/try`: an editor talks to an agent as a definition makes it that is not saved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.features.tries import api as tries
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.runtime.runtime import FastAgentRuntime
from tests.support.agents_api import KEYS
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.threads_api import Stream, stream_of
from tests.support.waiting import Gate, eventually

MODEL = "generic.test-model"
DEFINITION = {"instruction": "You are a draft.", "model": MODEL, "servers": ["notes"]}
MAY_USE = {
    "models": [MODEL],
    "servers": {"notes": ["add", "echo"]},
    "agents": ["*"],
    "approve": ["notes/echo"],
    "most": {"max_iterations": 20},
}
PRICES = {MODEL: {"input": 1_000_000, "output": 0}}


@dataclass(frozen=True)
class World:
    """A gateway whose editors have the keys of `KEYS`; its model says what it is told, by its instruction."""

    served: Running
    llm: ScriptedLlm
    gate: Gate
    path: Path

    def http(self, key: str = "owner", **headers: str) -> httpx.AsyncClient:
        sent = {"Authorization": f"Bearer {key}", **headers}
        return httpx.AsyncClient(base_url=f"{self.served.base_url}/api/v1", headers=sent, trust_env=False, timeout=60)

    async def ask(
        self, message: str = "Hi", name: str = "", *, key: str = "owner", of: Any = DEFINITION, **more: Any
    ) -> httpx.Response:
        async with self.http(key) as http:
            return await http.post(path_of(name), json={"definition": of, "message": message, **more})

    async def get(self, path: str, key: str = "everything") -> Any:
        async with self.http(key) as http:
            return (await http.get(path)).raise_for_status().json()

    async def metrics(self) -> str:
        async with self.http("everything") as http:
            return (await http.get(f"{self.served.base_url}/metrics")).raise_for_status().text

    async def save(self, name: str = "poet", **changes: Any) -> None:
        async with self.http() as http:
            made = await http.post("/agents?wait=true", json={"name": name, **DEFINITION, **changes})
            assert made.status_code == 201, made.text

    @asynccontextmanager
    async def stream(
        self, message: str, name: str = "", **more: Any
    ) -> AsyncIterator[tuple[Stream, httpx.AsyncClient]]:
        async with (
            self.http() as http,
            stream_of(http, path_of(name), {"definition": DEFINITION, "message": message, **more}) as events,
        ):
            yield events, http

    def audited(self, action: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in (self.path / "audit.log").read_text().splitlines())
        return [line for line in lines if line["action"] == action]


def path_of(name: str) -> str:
    return f"/agents/{name}/try" if name else "/agents/try"


@asynccontextmanager
async def world(path: Path, **gateway: Any) -> AsyncIterator[World]:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        message, instruction = request.last_user_text, str(request.messages[0]["content"])
        if request.messages[-1]["role"] == "tool":
            return say(f"told {' | '.join(request.tool_results.values())}")
        if message in ("add", "echo"):
            return call_tools([(f"notes__{message}", {"a": 1, "b": 2} if message == "add" else {"text": "so"})])
        return hang(gate, say("at last")) if message == "wait" else say(f"{instruction} {len(request.user_texts)}")

    grants = {**KEYS, "everything": (*KEYS["everything"], "view:calls", "view:metrics")}
    tokens = [{"name": name, "sha256": hash_of(name), "grants": [*its]} for name, its in grants.items()]
    settings = {
        "database": "sqlite:///pallas.db",
        "agents_may_use": MAY_USE,
        "audit_log": "audit.log",
        "auth": {"tokens": tokens},
        "openai_api": True,
        **gateway,
    }
    async with stateless_downstream() as notes, scripted_llm(script) as llm:
        servers = {"notes": {"url": notes.url}}
        project = write_project(path, {"echo": Agent()}, llm_url=llm.base_url, servers=servers, gateway=settings)
        async with running(project) as served:
            yield World(served, llm, gate, path)


def problems_of(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    return {one["path"]: one["message"] for one in response.json()["problems"]}


async def test_a_definition_answers_without_being_saved(tmp_path: Path) -> None:
    async with world(tmp_path, prices=PRICES) as here:
        new = await here.ask("Hi", messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        await here.save()
        changed = await here.ask(name="poet", of={**DEFINITION, "instruction": "You are new."})
        saved = await here.get("/agents/poet", "owner")
        versions = await here.get("/agents/poet/versions", "owner")
    assert (new.status_code, new.headers["cache-control"]) == (200, "no-store")
    assert new.json() == {
        "content": "You are a draft. 2", "images": [], "stopReason": "endTurn", "usage": new.json()["usage"],
        "callId": new.json()["callId"], "tryId": new.json()["tryId"],
    }  # fmt: skip
    assert changed.json()["content"] == "You are new. 1"
    assert (saved["instruction"], len(versions["versions"])) == ("You are a draft.", 1)
    assert [(line["outcome"], line["caller"], line["agent"], line["grant"]) for line in here.audited("try")] == [
        ("accepted", "key:owner", "unsaved", "create:agents"),
        ("accepted", "key:owner", "poet", "owner"),
    ]
    calls = here.audited("call")
    assert [(line["api"], line["agent"], line["grant"]) for line in calls] == [
        ("try", "unsaved", "owner"), ("try", "poet", "owner")
    ]  # fmt: skip


async def test_a_definition_without_a_name_is_tried_whatever_others_have_saved(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for name in ("Unsaved", "unsaved-2"):
            await here.save(name)
        answer = await here.ask()
    assert (answer.status_code, answer.json().get("content")) == (200, "You are a draft. 1")
    assert [line["agent"] for line in here.audited("try")] == ["unsaved-3"]


async def test_an_agent_that_is_tried_is_in_no_list_and_at_no_other_address(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        async with here.stream("wait", definition={**DEFINITION, "name": "draft"}) as (events, http):
            await events.event("try")
            await here.gate.wait_for_entered(1)
            hosted = [*here.served.gateway.agents]
            listed = [one["name"] for one in (await here.get("/agents"))["agents"]]
            registry = (await http.get(f"{here.served.base_url}/.well-known/mcp/server.json")).text
            statuses = [
                (await http.post(f"{here.served.base_url}/agents/draft/mcp", json={})).status_code,
                (await http.get("/agents/draft")).status_code,
                (await http.post("/agents/draft/chat", json={"message": "Hi"})).status_code,
                (await http.post(f"{here.served.base_url}/v1/chat/completions", json={"model": "draft"})).status_code,
            ]
            running_now = (await here.get("/calls"))["calls"]
            here.gate.open()
            final = await events.last()
        metrics = await here.metrics()
        used = await here.get("/usage")
        gone = (await here.get("/calls"))["calls"]
    assert hosted == listed == ["echo"]
    assert "draft" not in registry
    assert statuses == [404, 404, 404, 404]
    assert [(one["agent"], one["api"], one["caller"]) for one in running_now] == [("draft", "try", "key:owner")]
    assert (final["type"], final["content"]) == ("final", "at last")
    assert gone == []
    assert 'agent="(try)"' in metrics
    assert 'agent="draft"' not in metrics
    assert [one["agent"] for one in used["all"]["today"]] == ["(try)"]


async def test_the_events_are_those_of_a_chat(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        async with here.stream("add") as (events, _):
            await events.last()
        async with here.stream("add", assistantStream=True) as (payloads, _):
            await payloads.last()
    assert events.types == ["try", "tool_call", "tool_result", "text", "final"]
    assert (events.events[1]["toolName"], events.events[-1]["content"]) == ("notes/add", 'told {"result":3}')
    assert {*payloads.types} == {"try", "assistant", "final"}


async def test_questions_are_answered_by_the_one_who_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        async with here.stream("echo") as (events, http):
            begun, question = await events.event("try"), await events.event("question")
            path, accept = (
                f"/agents/try/{begun['tryId']}/answers",
                {"action": "accept", "content": {"decision": "once"}},
            )
            async with here.http("everything") as other:
                foreign = await other.post(path, json={"answers": {question["id"]: accept}})
            wrong = await http.post(path, json={"answers": {question["id"]: {**accept, "content": {"decision": "x"}}}})
            unknown = await http.post(path, json={"answers": {"other": accept}})
            given = await http.post(path, json={"answers": {question["id"]: accept}})
            final = await events.last()
            again = await http.post(path, json={"answers": {question["id"]: accept}})
        unasked = await here.ask("echo")
    assert (question["tool"], question["kind"]) == ("notes/echo", "approval")
    assert [one.status_code for one in (foreign, wrong, unknown, given, again)] == [404, 422, 404, 204, 404]
    assert final["content"] == 'told {"result":"so"}'
    assert "not" in unasked.json()["content"]  # a client without events is not asked, so the tool did not run


async def test_a_client_that_leaves_ends_the_call_also_while_it_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for message, event in (("wait", "try"), ("echo", "question")):
            async with here.stream(message) as (events, _):
                await events.event(event)
                if message == "wait":
                    await here.gate.wait_for_entered(1)
            await eventually(lambda: not here.served.gateway.calls.running(), what="the end of the call")
        ends = [line["reason"] for line in here.audited("call_end")]
        again = await here.ask()
    assert ends == ["cancelled", "cancelled"]
    assert again.status_code == 200


async def test_who_may_not_save_may_not_try(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.save()
        new = {key: (await here.ask(key=key)).status_code for key in ("owner", "editor", "runner", "everything")}
        poet = {
            key: (await here.ask(name="poet", key=key)).status_code
            for key in ("owner", "editor", "runner", "viewer", "nobody", "editor-of-another", "everything")
        }
        of_file = await here.ask(name="echo", key="everything")
        missing = await here.ask(name="none", key="everything")
        async with here.http() as http:
            anonymous = await http.post(path_of(""), json={}, headers={"Authorization": ""})
    assert new == {"owner": 200, "editor": 403, "runner": 403, "everything": 200}
    assert poet == {
        "owner": 200, "editor": 200, "runner": 403, "viewer": 403, "nobody": 404, "editor-of-another": 404,
        "everything": 200,
    }  # fmt: skip
    assert (of_file.status_code, of_file.json()["error"]) == (409, "agent_of_file")
    assert missing.status_code == 404
    assert anonymous.status_code == 401


async def test_a_definition_is_checked_as_if_it_were_saved(tmp_path: Path) -> None:
    wrong = {"instruction": "{{file:/etc/passwd}}", "model": "dear", "servers": ["mail"], "maxIterations": 21, "x": 1}
    async with world(tmp_path) as here:
        await here.save()
        new = problems_of(await here.ask(of=wrong))
        changed = problems_of(await here.ask(name="poet", of=wrong))
        renamed = problems_of(await here.ask(name="poet", of={**DEFINITION, "name": "bard"}))
        taken = await here.ask(of={**DEFINITION, "name": "Poet"})
        whole = await here.ask(name="poet", of=await here.get("/agents/poet", "owner"))
        released = await here.ask(of={**DEFINITION, "approve": [], "maxIterations": 20})
    assert new.keys() == changed.keys() == {"instruction", "model", "servers.0", "maxIterations", "x"}
    assert renamed.keys() == {"name"}
    assert (taken.status_code, taken.json()["error"]) == (409, "name_taken")
    assert (whole.status_code, released.status_code) == (200, 200)
    assert here.llm.requests[-1].tools == ["notes__add", "notes__echo"]  # those that are released, and no others
    refused = [(line["outcome"], line.get("reason"), line.get("agent")) for line in here.audited("try")][:4]
    assert refused == [
        ("refused", "invalid_definition", None), ("refused", "invalid_definition", "poet"),
        ("refused", "invalid_definition", "poet"), ("refused", "name_taken", "poet"),
    ]  # fmt: skip


async def test_a_definition_that_does_not_start_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    async with world(tmp_path) as here:
        monkeypatch.setattr(FastAgentRuntime, "_enter", fail)
        refused = problems_of(await here.ask())
        monkeypatch.undo()
        again = await here.ask()
    assert [line["outcome"] for line in here.audited("try")] == ["refused", "accepted"]
    assert refused == {"": "agent 'unsaved' failed to start: ValueError: no such thing"}
    assert again.status_code == 200


async def test_an_editor_tries_two_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        async with here.stream("wait") as (one, _), here.stream("wait") as (two, _):
            await asyncio.gather(one.event("try"), two.event("try"))
            third, other = await here.ask(), await here.ask(key="everything")
            here.gate.open()
            await asyncio.gather(one.last(), two.last())
        later = await here.ask()
    assert (third.status_code, third.json()["limit"]["rule"]) == (429, "tries")
    assert int(third.headers["retry-after"]) > 0
    assert [other.status_code, later.status_code] == [200, 200]


async def test_the_limits_of_calls_and_a_request_that_cannot_be_answered_are_as_in_a_chat(tmp_path: Path) -> None:
    rules = [{"name": "few", "caller": "key:owner", "agent": "poet", "calls_per_minute": 1}]
    async with world(tmp_path, limits={"rules": rules}, max_message_bytes=10) as here:
        named = {**DEFINITION, "name": "poet"}
        answers = [await here.ask(of=named), await here.ask(of=named)]
        long = await here.ask("x" * 11)
        unread = [await here.ask(params={"nope": 1}), await here.ask(threadId="1"), await here.ask(of=[])]
    assert [one.status_code for one in answers] == [200, 429]
    assert answers[1].json()["limit"]["rule"] == "few"
    assert (long.status_code, [one.status_code for one in unread]) == (413, [400, 400, 400])


async def test_a_try_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as here:
        monkeypatch.setattr(tries, "LONGEST_SECONDS", 0.0)
        late = await here.ask("wait")
    assert (late.status_code, late.json()["error"]) == (504, "deadline")


async def test_an_agent_may_be_named_try(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.save("try")
        read, tried = await here.get("/agents/try", "owner"), await here.ask(name="try")
        async with here.http() as http:
            other = await http.put("/agents/try/try", json={})
    assert (read["name"], tried.status_code) == ("try", 200)
    assert (other.status_code, other.headers["allow"]) == (405, "POST")
