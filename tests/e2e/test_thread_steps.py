"""Tool calls and their results in threads: what clients read of them, and what is kept."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pallas_gateway.identity.static_keys import hash_of
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import call_tools, hang, say, scripted_llm
from tests.support.stored_agents import ME, applied, definition, definitions_of, project_of, ready
from tests.support.stored_threads import threads_of
from tests.support.threads_api import http_of, stream_of
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx
    import pytest

    from tests.support.scripted_llm import LlmRequest, Script, ScriptedLlm, Turn


def adds(request: LlmRequest) -> Turn:
    if request.last_user_text == "add" and not request.messages[-1].get("tool_call_id"):
        return call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me add.")
    return say("It is 3." if request.last_user_text == "add" else "fine")


async def test_clients_read_the_tools_of_a_turn_and_the_model_reads_them_in_the_next(tmp_path: Path) -> None:
    async with stateless_downstream() as tools, scripted_llm(adds) as llm:
        project = write_project(
            tmp_path,
            {"solo": Agent(["tools"])},
            llm_url=llm.base_url,
            servers={"tools": {"transport": "http", "url": tools.url}},
            gateway={"database": "sqlite:///threads.db"},
        )
        async with running(project) as served, http_of(served) as http:
            first = await chat(http, "add")
            plain = await messages(http, first["threadId"])
            told = await messages(http, first["threadId"], tools="true")
            await chat(http, "next", threadId=first["threadId"])
            bad = await http.get(f"/threads/{first['threadId']}/messages", params={"tools": "yes"})
    _, followed, second = (request.messages for request in llm.requests)
    assert [one["role"] for one in plain] == ["user", "assistant"]
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "assistant"]
    assert told[1]["content"] == "Let me add."
    assert told[1]["toolCalls"] == [{"id": "call_1_1", "toolName": "tools/add", "args": {"a": 1, "b": 2}}]
    result = {key: told[2][key] for key in ("turnIndex", "content", "toolCallId", "toolName", "ok", "images", "status")}
    assert result == {
        "turnIndex": 1,
        "content": '{"result":3}',  # as the model has read it
        "toolCallId": "call_1_1",
        "toolName": "tools/add",
        "ok": True,
        "images": [],
        "status": "complete",
    }
    assert second[: len(followed)] == followed
    assert [(one["role"], one["content"]) for one in second[len(followed) :]] == [
        ("assistant", "It is 3."),
        ("user", "next"),
    ]
    assert (bad.status_code, bad.json()["error"]) == (400, "bad_input")


async def chat(http: httpx.AsyncClient, message: str, *, agent: str = "solo", **body: Any) -> dict[str, Any]:
    response = await http.post(f"/agents/{agent}/chat", json={"message": message, **body})
    return dict(response.raise_for_status().json())


async def messages(http: httpx.AsyncClient, thread_id: str, **query: Any) -> list[dict[str, Any]]:
    found = await http.get(f"/threads/{thread_id}/messages", params=query)
    return list(found.raise_for_status().json()["messages"])


async def test_messages_replace_the_stored_history_for_one_call_and_are_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_llm(lambda _: say("fine")) as llm:
        gateway = {"database": "sqlite:///threads.db"}
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, gateway=gateway)
        async with running(project) as served, http_of(served) as http:
            thread_id = (await chat(http, "one"))["threadId"]
            other = [{"role": "user", "content": "was"}, {"role": "judge", "content": "x"}, 7]
            replaced = await chat(http, "two", threadId=thread_id, messages=other)
            empty = await chat(http, "three", threadId=thread_id, messages=[])
            await chat(http, "four", threadId=thread_id)
            stored = await messages(http, thread_id)
            too_many = await http.post("/agents/solo/chat", json={"message": "x", "messages": [{}] * 10_001})
    assert [request.user_texts for request in llm.requests] == [
        ["one"],
        ["was", "two"],
        ["three"],
        ["one", "two", "three", "four"],
    ]
    assert "historyLeftOut" not in replaced | empty
    assert [one["content"] for one in stored if one["role"] == "user"] == ["one", "two", "three", "four"]
    assert [record.__dict__["entries"] for record in caplog.records if record.msg == "history entries skipped"] == [2]
    assert (too_many.status_code, too_many.json()["error"]) == (400, "bad_input")


async def test_a_cancelled_turn_and_one_that_the_loop_guard_halted_show_their_tools(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        if request.last_user_text == "cancel":
            add = call_tools([("tools__add", {"a": 1, "b": 2})])
            return hang(gate, say("never")) if request.messages[-1]["role"] == "tool" else add
        if request.last_user_text == "repeat":
            return call_tools([("tools__add", {"a": 3, "b": 4})])
        return say("fine")

    async with tools_and(script, tmp_path, keep_tool_results=True) as (llm, http):
        halted = await chat(http, "repeat")
        thread_id = halted["threadId"]
        rounds = len(llm.requests)
        async with stream_of(http, "/agents/solo/chat", {"message": "cancel", "threadId": thread_id}) as stream:
            await stream.event("tool_result")
            await http.post(f"/threads/{thread_id}/cancel", json={})
            assert (await stream.last())["reason"] == "cancelled"
        told = await messages(http, thread_id, tools="true")
        await chat(http, "next", threadId=thread_id)
    assert halted["stopped"] == "repeat"
    shown = [(one["turnIndex"], one["ok"]) for one in told if one["role"] == "tool"]
    assert shown == [(1, True)] * rounds + [(2, True)]
    last = llm.requests[-1]
    assert last.user_texts == ["repeat", "next"]  # a turn that failed is not sent again
    assert last.called == ["tools__add"] * rounds


async def test_without_keep_tool_results_no_tool_call_is_stored(tmp_path: Path) -> None:
    async with tools_and(adds, tmp_path, keep_tool_results=False) as (llm, http):
        thread_id = (await chat(http, "add"))["threadId"]
        told = await messages(http, thread_id, tools="true")
        await chat(http, "next", threadId=thread_id)
    assert [one["role"] for one in told] == ["user", "assistant"]
    assert llm.requests[-1].called == []


async def test_the_token_of_the_caller_is_not_stored_with_arguments_and_results(tmp_path: Path) -> None:
    token = "token-of-the-caller-4711"

    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools([("tools__echo", {"text": f"I have {token}"})])

    keys = [{"name": "ann", "sha256": hash_of(token), "grants": ["run:agents"]}]
    async with tools_and(script, tmp_path, auth={"tokens": keys}) as (_, http):
        http.headers["Authorization"] = f"Bearer {token}"
        thread_id = (await chat(http, "echo"))["threadId"]
        told = await messages(http, thread_id, tools="true")
    assert told[1]["toolCalls"][0]["args"] == {"text": "I have ****"}
    assert told[2]["content"] == '{"result":"I have ****"}'
    database = b"".join(file.read_bytes() for file in tmp_path.rglob("threads.db*"))
    assert token.encode() not in database
    assert b"I have ****" in database


async def test_threads_of_a_deleted_agent_are_their_owners_to_read_and_no_other_agents(tmp_path: Path) -> None:
    async with scripted_llm(lambda _: say("fine")) as llm, running(project_of(tmp_path, llm.base_url)) as served:
        made = definitions_of(served)
        await made.create("helper", definition("one"), ME)
        await applied(served)
        await ready(served, "helper")
        async with http_of(served) as http:
            thread_id = (await chat(http, "secret", agent="helper"))["threadId"]
            listed = (await http.get("/agents/helper/threads")).json()["threads"]
            await made.remove("helper", ME, expected=1)
            await applied(served)
            gone = [
                await http.post("/agents/helper/chat", json={"message": "x", "threadId": thread_id}),
                await http.get("/agents/helper/threads"),
            ]
            read = await messages(http, thread_id)
            every = (await http.get("/threads", params={"search": "SECRET"})).json()["threads"]
            await made.create("helper", definition("two"), ME)
            await applied(served)
            await ready(served, "helper")
            not_its = await http.post("/agents/helper/chat", json={"message": "x", "threadId": thread_id})
            of_new = (await http.get("/agents/helper/threads")).json()["threads"]
            still = await messages(http, thread_id)
            answers = await http.post(f"/threads/{thread_id}/answers", json={"answers": {}})
            renamed = await http.patch(f"/threads/{thread_id}", json={"title": "Old"})
            await threads_of(served.gateway).changes.remove_of_agent(listed[0]["agentId"])
            removed = await http.get(f"/threads/{thread_id}/messages")
    assert [one.status_code for one in gone] == [404, 404]
    assert [one["content"] for one in read] == ["secret", "fine"]
    assert still == read
    assert [(one["id"], one["agentId"]) for one in every] == [(thread_id, listed[0]["agentId"])]
    assert (not_its.status_code, of_new, answers.status_code) == (404, [], 404)
    assert (renamed.status_code, removed.status_code) == (200, 404)


@asynccontextmanager
async def tools_and(
    script: Script, path: Path, **gateway: Any
) -> AsyncGenerator[tuple[ScriptedLlm, httpx.AsyncClient]]:
    async with stateless_downstream() as tools, scripted_llm(script) as llm:
        project = write_project(
            path,
            {"solo": Agent(["tools"])},
            llm_url=llm.base_url,
            servers={"tools": {"transport": "http", "url": tools.url}},
            gateway={"database": "sqlite:///threads.db", **gateway},
        )
        async with running(project) as served, http_of(served) as http:
            yield llm, http
