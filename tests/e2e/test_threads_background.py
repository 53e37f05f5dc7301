"""Turns of threads: those without their client, their ends, tools and questions, and what owners change."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.features.registry.registry import PUBLISHER
from pallas_gateway.identity.static_keys import hash_of
from tests.support.asking import FORM, SCHEMA, URL, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import chain_of_agents, questions
from tests.support.gateway import Agent, gateway_and_model, running, until_idle
from tests.support.scripted_llm import (
    LlmRequest,
    Script,
    ScriptedLlm,
    Turn,
    call_tools,
    hang,
    say,
    scripted_llm,
    stream,
)
from tests.support.stored_agents import ME, applied, definition, definitions_of, project_of, ready
from tests.support.stored_threads import threads_of
from tests.support.threads_api import ACCEPT, Api, chat, http_of, messages, serving, stream_of
from tests.support.waiting import Gate, eventually
from tests.support.watching import stage

BOTH = {"background": True, "assistantStream": True}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types of events, and those of payloads, without repetitions."""
    names = [one["data"]["kind"] if one["type"] == "assistant" else one["type"] for one in events]
    return [name for index, name in enumerate(names) if name != (names[index - 1] if index else None)]


async def test_a_call_in_the_background_goes_on_and_each_client_receives_all_its_events(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return stream(["one ", "two"], gate) if request.last_user_text == "go" else say("fine")

    async with serving(tmp_path, script=script) as api:
        async with api.stream("/agents/user/chat", {"message": "go", **BOTH}) as first:
            thread_id = (await first.event("thread"))["threadId"]
            await first.event("assistant")
        left = await api.last(thread_id)
        path = f"/threads/{thread_id}/answers"
        async with api.stream(path, {"answers": {}}) as second, api.stream(path, {"answers": {}}) as third:
            await second.event("assistant")
            await third.event("assistant")
            gate.open()
            finals = [await one.event("final") for one in (second, third)]
        await until_idle(api.served)
        registry = (await api.http.get(f"{api.served.base_url}/.well-known/mcp/server.json")).json()["servers"]
        plain = (await api.chat("again", threadId=thread_id))["content"]
    assert left["status"] == "pending"
    assert [one["server"]["_meta"][PUBLISHER]["threads"] for one in registry] == [
        api.served.gateway.addresses.absolute("/api/v1/")
    ]
    assert kinds(second.events) == kinds(third.events) == ["thread", "assistant_delta", "assistant_chunk", "final"]
    assert second.events[1]["data"]["text"].startswith("one ")
    assert [one["content"] for one in finals] == ["one two"] * 2
    assert plain == "fine"


async def test_a_cancelled_call_ends_and_its_thread_is_free(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return stream(["one ", "two"], gate) if request.last_user_text == "go" else say("fine")

    async with serving(tmp_path, script=script) as api:
        async with api.stream("/agents/user/chat", {"message": "go", **BOTH}) as running:
            thread_id = (await running.event("thread"))["threadId"]
            await running.event("assistant")
            deleted = await api.http.delete(f"/threads/{thread_id}")
            cancelled = [await api.http.post(f"/threads/{thread_id}/cancel") for _ in range(2)]
            error = await running.event("error")
        await until_idle(api.served)
        ended = await api.last(thread_id)
        again = await api.chat("again", threadId=thread_id)
    assert (deleted.status_code, deleted.json()["error"]) == (409, "thread_busy")
    assert [one.status_code for one in cancelled] == [204, 204]
    assert error["reason"] == ended["error"]["reason"] == "cancelled"
    assert again["content"] == "fine"


async def test_a_call_whose_agent_a_reload_removed_is_cancelled_by_its_owner(tmp_path: Path) -> None:
    gate, agents, threads = Gate(), {"user": Agent(), "other": Agent()}, {"database": "sqlite:///threads.db"}
    async with (
        gateway_and_model(tmp_path, agents, lambda _: stream(["one ", "two"], gate), gateway=threads) as (served, _),
        http_of(served) as http,
        stream_of(http, "/agents/user/chat", {"message": "go", **BOTH}) as begun,
    ):
        thread_id = (await begun.event("thread"))["threadId"]
        await begun.event("assistant")
        served.project.edit(lambda document: document["agents"].pop("user"))
        await served.reload()
        cancelled = await http.post(f"/threads/{thread_id}/cancel")
        error = await begun.event("error")
        deleted = await http.delete(f"/threads/{thread_id}")
        await until_idle(served)
    assert (cancelled.status_code, error["reason"], deleted.status_code) == (204, "cancelled", 204)


async def test_another_gateway_cancels_a_call_as_soon_as_its_client_has_left(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, script=lambda _: stream(["one ", "two"], gate)) as api:
        async with api.stream("/agents/user/chat", {"message": "go", **BOTH}) as running:
            thread_id = (await running.event("thread"))["threadId"]
            await running.event("assistant")
            await threads_of(api.served.gateway).changes.cancel(thread_id)  # as another process does
        await until_idle(api.served)  # before a lease of 30 s is renewed
        assert (await api.last(thread_id))["error"]["reason"] == "cancelled"


async def test_owners_rename_and_delete_their_threads(tmp_path: Path) -> None:
    tokens = [
        {"name": name, "sha256": hash_of(name), "grants": [grant]}
        for name, grant in {"ann": "run:agents", "bob": "run:agents", "eve": "view:agents"}.items()
    ]
    async with serving(tmp_path, script=lambda _: say("fine"), auth={"tokens": tokens}) as api:
        ann = {"Authorization": "Bearer ann"}
        made = (await api.http.post("/agents/user/chat", json={"message": "hi"}, headers=ann)).json()["threadId"]
        path = f"/threads/{made}"
        refused = [
            await api.http.request(method, f"{path}{tail}", headers={"Authorization": f"Bearer {name}"})
            for name in ("bob", "eve")
            for method, tail in (("PATCH", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/fork"))
        ]
        too_long = await api.http.patch(path, json={"title": "x" * 201}, headers=ann)
        named = await api.http.patch(path, json={"title": "Ours"}, headers=ann)
        touched = await api.http.patch(path, json={}, headers=ann)
        other = (await api.http.post("/agents/user/threads", json={"title": "Mine"}, headers=ann)).json()["id"]
        untitled = await api.http.patch(f"/threads/{other}", json={"title": None}, headers=ann)
        await api.http.delete(f"/threads/{other}", headers=ann)
        listed = (await api.http.get("/agents/user/threads", headers=ann)).json()["threads"]
        misfits = [
            await api.http.post(f"{path}/fork", json={"turns": bad}, headers=ann) for bad in (-1, True, "1", 2**31)
        ]
        copy = (await api.http.post(f"{path}/fork", json={"turns": 1}, headers=ann)).json()
        copied = (await api.http.get(f"/threads/{copy['id']}/messages", headers=ann)).json()["messages"]
        await api.http.delete(f"/threads/{copy['id']}", headers=ann)
        deleted = await api.http.delete(path, headers=ann)
        gone = await api.http.get(f"{path}/messages", headers=ann)
    assert [one.status_code for one in refused] == [404] * 8
    assert too_long.status_code == 400
    assert (named.status_code, named.json()["title"]) == (200, "Ours")
    assert {**touched.json(), "updatedAt": ""} == {**named.json(), "updatedAt": ""}
    assert touched.json()["updatedAt"] >= named.json()["updatedAt"]
    assert untitled.json()["title"] is None
    assert [(one["id"], one["title"]) for one in listed] == [(made, "Ours")]
    assert [one.status_code for one in misfits] == [400] * 4
    assert (copy["title"], copy["turns"], [one["content"] for one in copied]) == ("Ours", 1, ["hi", "fine"])
    assert (deleted.status_code, gone.status_code) == (204, 404)


async def test_payloads_of_nested_agents_have_the_path_of_their_question(tmp_path: Path) -> None:
    threads = {"database": "sqlite:///threads.db"}
    async with (
        asking_downstream("modern") as downstream,
        chain_of_agents(tmp_path, downstream.url, gateway=threads) as served,
        http_of(served) as http,
    ):
        api = Api(served, downstream, http)
        async with api.stream("/agents/boss/chat", {"message": "user: name", **BOTH}) as running:
            asked = await running.event("question")
            thread_id = running.events[0]["threadId"]
            await api.answer(thread_id, {asked["id"]: ACCEPT})
            final = await running.event("final")

    async def path_of_user() -> list[str]:
        found = [one["data"] for one in running.events if one["type"] == "assistant"]
        return next(one["call_path"] for one in found if one["agent"] == "user")

    assert await eventually(path_of_user) == asked["callPath"] != []
    assert (asked["agent"], asked["message"]) == ("user", f"asking, for user: {FORM}")
    assert "tool_call" not in running.types
    assert "Ada" in final["content"]


# --- tool calls and their results -------------------------------------------------------------------------------------


def adds(request: LlmRequest) -> Turn:
    if request.last_user_text == "add" and not request.messages[-1].get("tool_call_id"):
        return call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me add.")
    return say("It is 3." if request.last_user_text == "add" else "fine")


async def test_clients_read_the_tools_of_a_turn_and_the_model_reads_them_in_the_next(tmp_path: Path) -> None:
    async with tools_and(adds, tmp_path) as (llm, http):
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


async def test_messages_replace_the_stored_history_for_one_call_and_are_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tools_and(lambda _: say("fine"), tmp_path) as (llm, http):
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
    settings = {"database": "sqlite:///threads.db", **gateway}
    async with stage(path, script, gateway=settings) as staged, http_of(staged.served) as http:
        yield staged.llm, http


# --- questions to a caller of the threads API -------------------------------------------------------------------------

BAD_ANSWERS: tuple[dict[str, Any], ...] = (
    {},
    {"answers": []},
    {"answers": {"f00": {"action": "yes"}}},
    {"answers": {"f00": 1}},
    {"answers": {"f00": {"action": {}}}},
    {"answers": {"f00": {"action": "accept", "content": [1]}}},
    {"answers": {str(number): {"action": "decline"} for number in range(33)}},
    {"answers": {"f00": {"action": "accept", "content": {"name": "E" * 70_000}}}},
)


async def test_a_stream_has_the_question_and_goes_on_when_another_request_answers(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, queue_seconds=0) as api,
        api.stream("/agents/user/chat", {"message": "name"}) as stream,
    ):
        asked = await stream.event("question")
        thread_id = (await stream.event("thread"))["threadId"]
        shown = await api.last(thread_id)
        busy = await api.http.post("/agents/user/chat", json={"message": "two", "threadId": thread_id})
        answered = (await api.answer(thread_id, {asked["id"]: ACCEPT})).raise_for_status().json()
        final = await stream.event("final")
        ended = await api.last(thread_id)
        assert questions(api.served, "form", "accepted") == 1
    origin = {"agent": "user", "server": "asking", "callPath": []}
    question = {**origin, "kind": "form", "mode": "form", "message": f"asking: {FORM}"}
    assert asked == {"type": "question", "id": asked["id"], **question, "schema": SCHEMA}
    assert (shown["status"], shown["content"]) == ("asking", None)
    assert [{"type": "question", **one} for one in shown["questions"]] == [asked]
    assert busy.status_code == 409
    assert api.downstream.answers == [{"action": "accept", "content": {"name": "Ada"}}]
    assert '"Ada"' in answered["content"]
    assert {"type": "final", **answered} == final
    assert (answered["stopReason"], "questions" in answered) == ("endTurn", False)
    assert [one for one in stream.types if one != "text"] == [
        *("thread", "tool_call", "question", "answer", "tool_result", "final")
    ]
    assert stream.events[stream.types.index("answer")] == {"type": "answer", "id": asked["id"], "action": "accept"}
    assert (ended["status"], ended["content"], "questions" in ended) == ("complete", answered["content"], False)


async def test_json_ends_with_the_questions_and_an_answer_that_does_not_fit_may_be_given_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        asked = await api.chat("name pay")
        thread_id, by_mode = asked["threadId"], {one["mode"]: one for one in asked["questions"]}
        while len(by_mode) < 2:  # both tools run at once, and one of them asks first
            again = (await api.answer(thread_id, {})).json()
            by_mode = {one["mode"]: one for one in again["questions"]}
        form, page = by_mode["form"]["id"], by_mode["url"]["id"]
        misfits = [
            await api.answer(thread_id, {form: {"action": "accept", "content": content}, page: {"action": "accept"}})
            for content in ({"name": 7}, {"age": 7}, {"name": "Ada", "more": 1})
        ]
        malformed = [await api.http.post(f"/threads/{thread_id}/answers", json=body) for body in BAD_ANSWERS]
        unknown = await api.answer(thread_id, {"f00": {"action": "decline"}})
        left = (await api.answer(thread_id, {page: {"action": "accept", "content": {"dropped": 1}}})).json()
        twice = await api.answer(thread_id, {page: {"action": "accept"}})
        final = (await api.answer(thread_id, {form: ACCEPT})).json()
        over = await api.answer(thread_id, {form: ACCEPT})
        reread = (await api.answer(thread_id, {})).json()
        empty = (await api.http.post("/agents/user/threads")).json()["id"]
        nothing_asked = await api.answer(empty, {})
    assert (asked["stopReason"], asked["content"], by_mode["url"]["url"]) == ("input_needed", "", URL)
    assert by_mode["url"]["message"] == f"asking: {URL_MESSAGE}"
    assert [(one.status_code, one.json()["error"]) for one in misfits] == [(422, "bad_answer")] * 3
    assert [one.json()["error_description"].split(": ")[1] for one in misfits] == [
        "'name' must be of type string. Send another one.",
        "'name' is missing. Send another one.",
        "'more' is not asked for. Send another one.",
    ]
    assert [(one.status_code, one.json()["error"]) for one in malformed] == [(400, "bad_input")] * 8
    assert [(one.status_code, one.json()["error"]) for one in (unknown, twice, over)] == [
        (404, "question_not_open")
    ] * 3
    assert [one["id"] for one in left["questions"]] == [form]
    assert sorted(one["action"] for one in api.downstream.answers) == ["accept", "accept"]
    assert {"action": "accept", "content": {"name": "Ada"}} in api.downstream.answers
    assert {"action": "accept", "content": None} in api.downstream.answers
    assert (final["stopReason"], reread["content"]) == ("endTurn", final["content"])
    assert nothing_asked.status_code == 404


@pytest.mark.parametrize(("action", "ask_seconds"), [("decline", 60), ("cancel", 0.3)])
async def test_a_question_without_a_yes_ends_in_the_stream_as_at_the_server(
    action: str, ask_seconds: float, tmp_path: Path
) -> None:
    async with (
        serving(tmp_path, ask_seconds=ask_seconds) as api,
        api.stream("/agents/user/chat", {"message": "name"}) as stream,
    ):
        asked, thread = await stream.event("question"), await stream.event("thread")
        if action == "decline":
            await api.answer(thread["threadId"], {asked["id"]: {"action": action}})
        await stream.event("final")
    [answered] = [one for one in stream.events if one["type"] == "answer"]
    assert answered == {"type": "answer", "id": asked["id"], "action": action}
    assert api.downstream.answers == [{"action": action, "content": None}]


async def test_a_page_that_is_reloaded_answers_and_reads_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        async with api.stream("/agents/user/chat", {"message": "name"}) as first:
            await first.event("question")
            thread_id = first.events[0]["threadId"]
        left = await api.last(thread_id)
        path = f"/threads/{thread_id}/answers"
        async with api.stream(path, {"answers": {}}) as reloaded:
            asked = await reloaded.event("question")
            async with api.stream(path, {"answers": {asked["id"]: ACCEPT}}) as answering:
                final = await answering.event("final")
            await reloaded.event("final")
        await until_idle(api.served)
    assert left["status"] == "asking"
    assert asked["id"] == left["questions"][0]["id"]
    assert reloaded.events[0] == {"type": "thread", "threadId": thread_id, "turnIndex": 1}
    assert answering.types[0] == "thread"
    assert "text" in answering.types
    assert reloaded.events[-1] == answering.events[-1] == final
    assert '"Ada"' in final["content"]


async def test_an_approval_is_asked_for_and_only_the_threads_owner_who_may_run_the_agent_answers(
    tmp_path: Path,
) -> None:
    grants = {"ann": ["run:agents"], "bob": ["run:agents"], "ann-reading": ["view:agents"]}
    tokens = [{"name": name, "sha256": hash_of(name), "grants": given} for name, given in grants.items()]
    agent = Agent(["asking"], settings={"approve": ["asking/wipe"]})
    async with serving(tmp_path, agent, auth={"tokens": tokens}) as api:
        ann = {"Authorization": "Bearer ann"}
        response = await api.http.post("/agents/user/chat", json={"message": "wipe"}, headers=ann)
        asked = response.raise_for_status().json()
        thread_id, [question] = asked["threadId"], asked["questions"]
        approve = {question["id"]: {"action": "accept", "content": {"decision": "once"}}}
        refused = [await api.answer(thread_id, approve, Authorization=f"Bearer {key}") for key in ("bob", "eve")]
        refused += [await api.answer(thread_id, approve)]
        final = (await api.answer(thread_id, approve, **ann)).raise_for_status().json()
    assert (question["kind"], question["mode"]) == ("approval", "form")
    assert [one.status_code for one in refused] == [404, 401, 401]
    assert "wiped /" in final["content"]


async def test_a_caller_who_may_only_view_the_agent_by_now_answers_nothing(tmp_path: Path) -> None:
    def keys(grant: str) -> dict[str, Any]:
        return {"tokens": [{"name": "ann", "sha256": hash_of("ann"), "grants": [grant]}]}

    async def present(api: Api, grant: str) -> None:
        api.served.project.edit(lambda document: document["gateway"].update(auth=keys(grant)))
        await api.served.reload()

    async with serving(tmp_path, auth=keys("run:agents")) as api:
        api.http.headers["Authorization"] = "Bearer ann"
        asked = await api.chat("name")
        answer = asked["threadId"], {asked["questions"][0]["id"]: ACCEPT}
        await present(api, "view:agents")
        refused = await api.answer(*answer)
        await present(api, "run:agents")
        shown, taken = await api.last(asked["threadId"]), await api.answer(*answer)
    assert (refused.status_code, refused.json()["error"]) == (403, "insufficient_scope")
    assert (shown["status"], taken.status_code) == ("asking", 200)
