"""Conversations over HTTP as a web client has them: what is answered, kept, replayed, refused."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from pallas_gateway.doors.api.app import create_api
from pallas_gateway.identity.static_keys import hash_of
from tests.support.asgi import Message, Receive, Scope
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Limits, Running, running, until_idle, write_project
from tests.support.scripted_llm import LlmRequest, Reply, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.stored_threads import threads_of
from tests.support.threads_api import messages
from tests.support.waiting import Gate, eventually, tick

JSON = {"Content-Type": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
KEYS = {"ann": ["run:agents"], "bob": ["run:agents"], "eve": ["view:agents:solo"]}
PICTURE = {
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "mime_type": "image/png",
}


@dataclass(frozen=True)
class Api:
    """The API of a running gateway, as one client after the other uses it."""

    served: Running
    llm: ScriptedLlm
    gate: Gate
    http: httpx.AsyncClient

    async def chat(self, message: str, *, agent: str = "solo", key: str | None = None, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"/agents/{agent}/chat", json={"message": message, **body}, headers=bearer(key), timeout=60
        )

    async def get(self, path: str, *, key: str | None = None, **query: Any) -> httpx.Response:
        return await self.http.get(path, params=query, headers=bearer(key))

    async def messages(self, thread_id: str, **query: Any) -> list[dict[str, Any]]:
        return await messages(self.http, thread_id, **query)


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


@asynccontextmanager
async def serving(path: Path, *, agents: Mapping[str, Agent] | None = None, **gateway: Any) -> AsyncGenerator[Api]:
    gate = Gate()
    async with stateless_downstream() as tools, scripted_llm(lambda request: script(request, gate)) as llm:
        project = write_project(
            path,
            agents or {"solo": Agent(["tools"]), "other": Agent()},
            llm_url=llm.base_url,
            servers={"tools": {"transport": "http", "url": tools.url}},
            gateway={"database": "sqlite:///threads.db", **gateway},
        )
        async with running(project) as served:
            async with httpx.AsyncClient(base_url=f"{served.base_url}/api/v1", trust_env=False) as http:
                yield Api(served, llm, gate, http)
            gate.open()


def script(request: LlmRequest, gate: Gate) -> Turn:
    told = request.last_user_text
    if told == "fail":
        return Reply(400, b'{"error": {"message": "no"}}', "application/json")
    if told.startswith("wait"):
        return hang(gate, say("at last"))
    if told == "add" and not request.tool_results:
        return call_tools([("tools__add", {"a": 1, "b": 2})])
    return say(f"You said: {told}")


async def test_a_thread_goes_on_where_it_was_and_tells_all_that_was_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        first = (await api.chat("hello")).raise_for_status().json()
        thread_id = first["threadId"]
        second = (await api.chat("again", threadId=thread_id)).raise_for_status().json()
        replayed = [(one["role"], one["content"]) for one in api.llm.requests[-1].messages[1:]]
        failed = await api.chat("fail", threadId=thread_id)
        last = (await api.chat("more", threadId=thread_id)).raise_for_status().json()
        replayed_after = api.llm.requests[-1].user_texts
        told = await api.messages(thread_id)
        page = await api.messages(thread_id, after=1, limit=1)
        listed = (await api.get("/agents/solo/threads")).json()

    assert (first["turnIndex"], first["content"], first["stopReason"]) == (1, "You said: hello", "endTurn")
    assert (second["turnIndex"], last["turnIndex"]) == (2, 4)
    assert replayed[:2] == [("user", "hello"), ("assistant", "You said: hello")]
    assert replayed_after == ["hello", "again", "more"]
    assert failed.status_code == 502
    assert failed.json() | {"error_description": ""} == {
        "error": "llm_error",
        "error_description": "",
        "threadId": thread_id,
        "turnIndex": 3,
    }
    assert [(one["turnIndex"], one["role"], one["status"], one["content"]) for one in told] == [
        (1, "user", "complete", "hello"),
        (1, "assistant", "complete", "You said: hello"),
        (2, "user", "complete", "again"),
        (2, "assistant", "complete", "You said: again"),
        (3, "user", "complete", "fail"),
        (3, "assistant", "error", None),
        (4, "user", "complete", "more"),
        (4, "assistant", "complete", "You said: more"),
    ]
    assert told[5]["error"]["reason"] == "llm_error"
    assert told[1]["usage"]["input"] == 10
    assert [one["turnIndex"] for one in page] == [2, 2]
    assert [(one["id"], one["turns"], one["agent"]) for one in listed["threads"]] == [(thread_id, 4, "solo")]


async def test_another_answer_takes_the_place_of_the_latest_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        await api.chat("again", threadId=thread_id)
        other = (await api.chat("again", threadId=thread_id, replaces=2)).raise_for_status().json()
        sent = api.llm.requests[-1].user_texts
        edited = (await api.chat("once more", threadId=thread_id, replaces=3)).raise_for_status().json()
        await api.chat("on", threadId=thread_id)
        sent_after = api.llm.requests[-1].user_texts
        late = await api.chat("again", threadId=thread_id, replaces=2)
        told = await api.messages(thread_id)

    assert (other["turnIndex"], edited["turnIndex"]) == (3, 4)
    assert sent == ["hello", "again"]
    assert sent_after == ["hello", "once more", "on"]
    assert (late.status_code, late.json()["error"]) == (409, "turn_not_latest")
    assert "Retry-After" not in late.headers
    asked = [(one["content"], one.get("replaces")) for one in told if one["role"] == "user"]
    assert asked == [("hello", None), ("again", None), ("again", 2), ("once more", 2), ("on", None)]


async def test_events_tell_the_text_as_it_comes_the_tools_and_where_it_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        plain = await events_of(api, "hello")
        with_tool = await events_of(api, "add")
        failed = await events_of(api, "fail")

    assert [one["type"] for one in with_tool] == ["thread", "tool_call", "tool_result", "text", "final"]
    assert {key: with_tool[1][key] for key in ("toolName", "args")} == {
        "toolName": "tools/add",
        "args": {"a": 1, "b": 2},
    }
    assert {key: with_tool[2][key] for key in ("toolName", "ok")} == {"toolName": "tools/add", "ok": True}
    assert "".join(one["delta"] for one in plain if one["type"] == "text") == plain[-1]["content"] == "You said: hello"
    assert (plain[-1]["type"], plain[-1]["turnIndex"], len(plain[-1]["threadId"])) == ("final", 1, 32)
    assert [(one["type"], one.get("reason"), one["turnIndex"]) for one in failed] == [
        ("thread", None, 1),
        ("error", "llm_error", 1),
    ]


async def events_of(api: Api, message: str, **body: Any) -> list[dict[str, Any]]:
    """The events of one chat without the last, which is `[DONE]`."""
    response = await api.http.post("/agents/solo/chat", json={"message": message, **body}, headers=EVENTS, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


async def test_a_second_message_waits_for_the_first_and_is_refused_when_that_takes_too_long(tmp_path: Path) -> None:
    async with serving(tmp_path, queue_seconds=0.3) as api:
        thread_id = (await api.chat("hello")).json()["threadId"]
        first = asyncio.create_task(api.chat("wait", threadId=thread_id))
        await api.gate.wait_for_entered()
        pending = await api.messages(thread_id)
        refused = [await api.chat("two", threadId=thread_id)]
        response = await api.http.post(
            "/agents/solo/chat", json={"message": "two", "threadId": thread_id}, headers=EVENTS
        )
        refused.append(response)
        api.gate.open()
        answers = [(await first).json(), (await api.chat("three", threadId=thread_id)).json()]
    assert [(one.status_code, one.json()["error"]) for one in refused] == [(409, "thread_busy")] * 2
    assert all(int(one.headers["retry-after"]) > 0 for one in refused)
    assert [(one["turnIndex"], one["content"]) for one in answers] == [(2, "at last"), (3, "You said: three")]
    assert [(one["status"], one["content"]) for one in pending[2:]] == [("complete", "wait"), ("pending", None)]


async def test_a_client_that_leaves_ends_its_call_and_the_thread_is_free(tmp_path: Path) -> None:
    async with serving(tmp_path, queue_seconds=60) as api:
        thread_id = (await api.chat("hello")).json()["threadId"]
        for number, headers in enumerate(({}, EVENTS), start=1):
            body = {"message": "wait", "threadId": thread_id}
            leaving = asyncio.create_task(api.http.post("/agents/solo/chat", json=body, headers=headers))
            await api.gate.wait_for_entered(number)
            leaving.cancel()
            await asyncio.wait({leaving})
        await api.llm.wait_for_aborted(2)
        await until_idle(api.served)
        last = (await api.chat("again", threadId=thread_id)).raise_for_status().json()
        told = await api.messages(thread_id)
    assert last["turnIndex"] == 4
    answers = [one for one in told if one["role"] == "assistant"]
    assert [one["status"] for one in answers] == ["complete", "error", "error", "complete"]
    assert {one["error"]["reason"] for one in answers[1:3]} == {"cancelled"}


async def test_clients_that_abort_at_any_statement_lock_neither_the_database_nor_their_thread(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        left = {}
        gc.disable()
        try:
            for number in range(1, 13):
                for body in ({}, {"threadId": thread_id}):
                    await abort(api, number, **body)
                    if not await is_writable(api):
                        left[number] = body
        finally:
            gc.enable()
        last = await api.chat("again", threadId=thread_id)
        listed = (await api.get("/agents/solo/threads", limit=200)).json()["threads"]
        told = [await api.messages(thread["id"]) for thread in listed]
    assert left == {}
    assert last.status_code == 200
    assert {one["status"] for messages in told for one in messages} <= {"complete", "error"}
    assert all(told)


SLOW_WRITES = """
CREATE TRIGGER slow_insert AFTER INSERT ON pallas_threads BEGIN {slow}; END;
CREATE TRIGGER slow_update AFTER UPDATE ON pallas_threads BEGIN {slow}; END;
""".format(
    slow="SELECT (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500000) SELECT max(i) FROM n)"
)


async def test_a_client_that_aborts_in_the_middle_of_a_slow_write_locks_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        with closing(sqlite3.connect(database_of(api))) as other:
            other.executescript(SLOW_WRITES)
        gc.disable()
        try:
            for statement, body in (("INSERT INTO", {}), ("UPDATE", {"threadId": thread_id})):
                await abort(api, statement=f"{statement} pallas_threads", **body)
                assert await is_writable(api)
        finally:
            gc.enable()
        last = await api.chat("again", threadId=thread_id)

        async def the_only_thread() -> list[Any]:
            threads = list((await api.get("/agents/solo/threads")).json()["threads"])
            return threads if len(threads) == 1 else []

        [only] = await eventually(the_only_thread, what="the end of the aborted message's thread")
        told = await api.messages(thread_id)
    assert last.status_code == 200
    assert only["id"] == thread_id
    assert [one["status"] for one in told if one["role"] == "assistant"] == ["complete", "error", "complete"]


async def test_a_first_message_whose_client_leaves_while_it_waits_for_a_place_leaves_no_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, max_in_flight=1, queue_seconds=60) as api:
        first = asyncio.create_task(api.chat("wait"))
        await api.gate.wait_for_entered()
        waiting = asyncio.create_task(api.chat("hi", agent="other"))

        async def threads() -> list[Any]:
            return list((await api.get("/agents/other/threads")).json()["threads"])

        await eventually(threads, what="the waiting message's thread")
        waiting.cancel()

        async def is_gone() -> bool:
            return not await threads()

        await eventually(is_gone, what="the end of the thread")
        api.gate.open()
        answered = await first
    assert answered.status_code == 200


async def abort(api: Api, number: int = 1, *, statement: str = "", **body: Any) -> None:
    """Send a message and hang up once the gateway executes the statement of that number, or has answered.

    Those count that begin with `statement`.
    """
    engine = threads_of(api.served.gateway).store.database._engine.sync_engine
    chat, reached, seen = asyncio.create_task(api.chat("hi", **body)), asyncio.Event(), 0

    def note(_: object, __: object, text: str, *___: object) -> None:
        nonlocal seen
        seen += text.startswith(statement)
        if seen == number:
            reached.set()

    event.listen(engine, "before_cursor_execute", note)
    try:
        reaching = asyncio.create_task(reached.wait())
        await asyncio.wait({chat, reaching}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        reaching.cancel()
        chat.cancel()
        await asyncio.wait({chat, reaching})
        for _ in range(10):  # whether or not the gateway hears of it by then, nothing may stay locked
            await tick()
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def is_writable(api: Api) -> bool:
    """Whether another program can write to the database, now or in a moment."""

    def can_write() -> bool:
        with closing(sqlite3.connect(database_of(api), timeout=0, isolation_level=None)) as other:
            with suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
            return other.in_transaction

    with suppress(AssertionError):
        await eventually(can_write, 5)
    return can_write()


def database_of(api: Api) -> Path:
    return api.served.project.path / "threads.db"


async def test_a_turn_ends_when_its_answer_exists_though_its_client_does_not_read(tmp_path: Path) -> None:
    reading, sent = Gate(), []

    async def send(message: Message) -> None:
        sent.append(message)
        await reading.enter()

    async with serving(tmp_path) as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        scope, receive = request_of("solo", {"message": "slowly", "threadId": thread_id})
        answering = asyncio.create_task(create_api(api.served.gateway)(scope, receive, send))
        await reading.wait_for_entered()

        async def stored() -> bool:
            return bool((await api.messages(thread_id))[-1]["content"] == "You said: slowly")

        await eventually(stored, what="the stored answer")
        other = await api.chat("meanwhile", threadId=thread_id)
        reading.open()
        await asyncio.wait_for(answering, 20)
    events = b"".join(message.get("body", b"") for message in sent).decode().split("\n\n")
    told = [json.loads(one.removeprefix("data: ")) for one in events if one.startswith("data: {")]
    assert (other.status_code, other.json()["turnIndex"]) == (200, 3)
    assert [one["type"] for one in told] == ["thread", "text", "final"]
    assert told[-1]["content"] == "You said: slowly"
    assert sent[-1]["more_body"] is False


def request_of(agent: str, body: dict[str, Any]) -> tuple[Scope, Receive]:
    """A chat that asks for events, of a client that stays."""
    headers = [(b"host", b"localhost"), (b"accept", b"text/event-stream"), (b"content-type", b"application/json")]
    path = f"/api/v1/agents/{agent}/chat"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return scope, receive


async def test_what_is_too_much_to_be_replayed_is_left_out_and_counted(tmp_path: Path, limits: Limits) -> None:
    limits.gateway.threads.replayed_bytes = limits.gateway.threads.page_bytes = 50
    async with serving(tmp_path) as api:
        first = (await api.chat("one")).raise_for_status().json()
        for message in ("two", "three"):
            fitting = (await api.chat(message, threadId=first["threadId"])).raise_for_status().json()
        cut = (await events_of(api, "four", threadId=first["threadId"]))[-1]
        replayed = api.llm.requests[-1].user_texts
        pages, after = [], 0
        while after is not None:
            page = (await api.get(f"/threads/{first['threadId']}/messages", after=after)).raise_for_status().json()
            pages.append([one["turnIndex"] for one in page["messages"]])
            after = page["nextAfter"]
    assert ["historyLeftOut" in answer for answer in (first, fitting)] == [False, False]
    assert cut["historyLeftOut"] == 1
    assert replayed == ["two", "three", "four"]
    assert pages == [[1, 1, 2, 2], [3, 3, 4, 4]]


async def test_callers_see_their_own_threads_and_the_agents_of_their_grants_alone(tmp_path: Path) -> None:
    tokens = [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in KEYS.items()]
    async with serving(tmp_path, auth={"tokens": tokens}) as api:
        made = (await api.http.post("/agents/solo/threads", json={"title": "Mine"}, headers=bearer("ann"))).json()
        mine = (await api.chat("secret", key="ann", threadId=made["id"])).raise_for_status().json()
        page, hi = f"/threads/{made['id']}/messages", {"message": "hi"}
        mine_again, solo = {**hi, "threadId": made["id"]}, "/agents/solo/chat"
        asked: dict[str, tuple[int, str | None, str, str, Any]] = {
            "another's messages": (404, "bob", "GET", page, None),
            "another's thread": (404, "bob", "POST", solo, mine_again),
            "another agent's thread": (404, "ann", "POST", "/agents/other/chat", mine_again),
            "no such thread": (404, "ann", "POST", solo, {**hi, "threadId": "0" * 32}),
            "an agent to be viewed": (403, "eve", "POST", solo, hi),
            "a thread with it": (403, "eve", "POST", "/agents/solo/threads", None),
            "a hidden agent": (404, "eve", "GET", "/agents/other", None),
            "no such agent": (404, "ann", "GET", "/agents/nobody", None),
            "no token": (401, None, "POST", solo, hi),
            "no token, a hidden agent": (401, None, "GET", "/agents/other", None),
            "no token, no such agent": (401, None, "GET", "/agents/nobody", None),
            "no token for agents": (401, None, "GET", "/agents", None),
            "no token for messages": (401, None, "GET", page, None),
            "an unknown token": (401, "mallory", "GET", "/agents", None),
        }
        refused = {
            what: await api.http.request(method, path, json=body, headers=bearer(key))
            for what, (_, key, method, path, body) in asked.items()
        }
        listed = {key: await api.get("/agents/solo/threads", key=key) for key in KEYS}
        listed_all = {key: await api.get("/threads", key=key) for key in KEYS}
        agents = {key: [one["name"] for one in (await api.get("/agents", key=key)).json()["agents"]] for key in KEYS}
        own = await api.get(f"/threads/{made['id']}/messages", key="ann")

    assert {what: response.status_code for what, response in refused.items()} == {
        what: status for what, (status, *_) in asked.items()
    }
    assert {one.json()["error"] for one in refused.values() if one.status_code == 404} == {"not_found"}
    assert refused["no such agent"].json() == {"error": "not_found", "error_description": "no agent 'nobody'"}
    assert all(response.json().keys() == {"error", "error_description"} for response in refused.values())
    assert (made["title"], mine["threadId"]) == ("Mine", made["id"])
    assert {key: response.status_code for key, response in listed.items()} == {"ann": 200, "bob": 200, "eve": 403}
    for found in (listed, listed_all):
        ids = {key: [one["id"] for one in response.json().get("threads", [])] for key, response in found.items()}
        assert ids == {"ann": [made["id"]], "bob": [], "eve": []}
    assert agents == {"ann": ["solo", "other"], "bob": ["solo", "other"], "eve": ["solo"]}
    assert own.status_code == 200


async def test_the_owner_of_a_thread_rates_its_answers_and_nobody_else(tmp_path: Path) -> None:
    tokens = [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in KEYS.items()]
    solo = Agent(["tools"], settings={"caller_params": ["temperature"]})
    async with serving(tmp_path, agents={"solo": solo, "other": Agent()}, auth={"tokens": tokens}) as api:
        mine = (await api.chat("one", key="ann", params={"temperature": 0.5})).raise_for_status().json()["threadId"]
        await api.chat("fail", key="ann", threadId=mine)
        theirs = (await api.chat("one", key="bob")).raise_for_status().json()["threadId"]

        async def rate(turn: object, body: Any, key: str | None = "ann", method: str = "PUT") -> httpx.Response:
            path = f"/threads/{mine}/turns/{turn}/feedback"
            return await api.http.request(method, path, json=body, headers=bearer(key))

        good = {"rating": "good", "note": "x" * 4000}
        asked: dict[str, tuple[Any, ...]] = {
            "another": (404, 1, good, "bob"),
            "only a viewer": (404, 1, good, "eve"),
            "no token": (401, 1, good, None),
            "no deletion by another": (404, 1, None, "bob", "DELETE"),
            "no rating": (400, 1, {"note": "hm"}),
            "an unknown rating": (400, 1, {"rating": "fine"}),
            "a long note": (400, 1, {"rating": "good", "note": "x" * 4001}),
            "a note that is no text": (400, 1, {"rating": "good", "note": 7}),
            "NUL": (400, 1, {"rating": "good", "note": "\0"}),
            "an unknown key": (400, 1, {"rating": "good", "stars": 5}),
            "no answer": (409, 2, good),
            "no such turn": (404, 3, good),
            "no number": (404, "one", good),
            "a large number": (404, 2**31, good),
            "another method": (405, 1, good, "ann", "POST"),
        }
        refused = {what: await rate(*arguments) for what, (_, *arguments) in asked.items()}
        unrated = await api.get("/threads", key="ann", rated="true")
        given = await rate(1, good)
        listed = {key: (await api.get("/threads", key=key, rated="true")).json()["threads"] for key in ("ann", "bob")}
        of_agent = (await api.get("/agents/solo/threads", key="ann", rated="true")).json()["threads"]
        rated = (await api.get(f"/threads/{mine}/messages", key="ann")).json()["messages"]
        others = (await api.get(f"/threads/{theirs}/messages", key="bob")).json()["messages"]
        removed = [(await rate(1, None, method="DELETE")).status_code for _ in range(2)]
        after = (await api.get(f"/threads/{mine}/messages", key="ann")).json()["messages"]
    assert {what: one.status_code for what, one in refused.items()} == {
        what: status for what, (status, *_) in asked.items()
    }
    assert (refused["no answer"].json()["error"], refused["another method"].headers["allow"]) == (
        "no_answer",
        "PUT, DELETE",
    )
    assert (given.status_code, given.json() | {"ratedAt": ""}) == (200, {**good, "ratedAt": ""})
    assert (unrated.json()["threads"], removed) == ([], [204, 204])
    assert {key: [one["id"] for one in found] for key, found in listed.items()} == {"ann": [mine], "bob": []}
    assert [one["id"] for one in of_agent] == [mine]
    assert [one.get("feedback") for one in rated] == [None, given.json(), None, None]
    assert [one.get("params") for one in rated] == [{"temperature": 0.5}, None, None, None]
    assert rated[1]["model"] == others[1]["model"]
    assert not any("feedback" in one for one in (*after, *others))


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no message": ({}, 400, "bad_input"),
    "a number": ({"message": 1}, 400, "bad_input"),
    "NUL": ({"message": "\0"}, 400, "bad_input"),
    "an unknown key": ({"message": "hi", "massage": 1}, 400, "bad_input"),
    "a thread that is none": ({"message": "hi", "threadId": "x"}, 400, "bad_input"),
    "a replaced turn that is no number": ({"message": "hi", "threadId": "0" * 32, "replaces": True}, 400, "bad_input"),
    "a replaced turn of no thread": ({"message": "hi", "replaces": 1}, 400, "bad_input"),
    "a broken image": ({"message": "hi", "images": [{"data": "!", "mime_type": "image/png"}]}, 400, "bad_image"),
    "a file that is no image": (
        {"message": "hi", "images": [{"data": "JVBERi0=", "mime_type": "image/png"}]},
        400,
        "bad_image",
    ),
    "an image for a model without vision": ({"message": "hi", "images": [PICTURE]}, 422, "images_unsupported"),
    "an unknown parameter": ({"message": "hi", "params": {"heat": 1}}, 400, "bad_params"),
}


async def test_searches_and_copies_count_as_calls_and_an_owner_has_one_at_a_time(tmp_path: Path) -> None:
    limits = {"rules": [{"calls_per_minute": 5}]}
    async with serving(tmp_path, limits=limits, audit_log="audit.log") as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        threads = threads_of(api.served.gateway)
        threads._limits.long_work_seconds = 0
        async with threads.long_work("anonymous"):
            late = [await api.get("/threads", search="HELLO"), await api.http.post(f"/threads/{thread_id}/fork")]
        found = await api.get("/threads", search="HELLO")
        copied = await api.http.post(f"/threads/{thread_id}/fork")
        refused = [
            await api.get("/agents/solo/threads", search="hello"),
            await api.http.post(f"/threads/{thread_id}/fork"),
            await api.chat("hello"),
        ]
        free = await api.get("/threads")
    actions = [json.loads(line)["action"] for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(one.status_code, one.json()["error"], "Retry-After" in one.headers) for one in late] == [
        (503, "busy", True)
    ] * 2
    assert [one["id"] for one in found.json()["threads"]] == [thread_id]
    assert copied.status_code == 201
    assert [(one.status_code, one.json()["error"], "Retry-After" in one.headers) for one in refused] == [
        (429, "limited", True)
    ] * 3
    assert len(free.json()["threads"]) == 2
    assert actions[1:-1] == ["call", "call_end", "search", "copy", "call"]


async def test_a_message_that_is_too_long_to_be_stored_is_refused_with_the_setting(tmp_path: Path) -> None:
    longest = "é" * 40_000
    async with serving(tmp_path, max_message_bytes=80_000) as api:
        refused = await api.chat(longest + "!")
        told = (await api.chat(longest, messages=[{"role": "user", "content": longest + "!"}])).raise_for_status()
        shown = await api.messages(told.json()["threadId"])
        assert [one["role"] for one in api.llm.requests[-1].messages[1:]] == ["user", "user"]
    assert (refused.status_code, refused.json()["error"]) == (413, "message_too_large")
    assert "80000 bytes (gateway.max_message_bytes)" in refused.json()["error_description"]
    assert [one["content"] for one in shown] == [longest, f"You said: {longest}"]


async def test_what_cannot_be_answered_is_refused_with_a_reason_and_counted(tmp_path: Path) -> None:
    blind = Agent(model="generic.blind-threads")  # other tests of this process declare that theirs can see
    async with serving(tmp_path, agents={"solo": blind}, max_body_bytes=10_000) as api:
        told = {what: await api.http.post("/agents/solo/chat", json=body) for what, (body, _, _) in BAD.items()}
        solo, hi = "/agents/solo/chat", {"message": "hi"}
        requests: dict[str, tuple[int, str, str, dict[str, Any]]] = {
            "too large": (413, "POST", solo, {"json": {"message": "x" * 10_001}}),
            "no JSON": (400, "POST", solo, {"content": "{", "headers": JSON}),
            "a form": (415, "POST", solo, {"data": hi}),
            "not acceptable": (406, "POST", solo, {"json": hi, "headers": {"Accept": "image/png"}}),
            "another method": (405, "PUT", solo, {"json": hi}),
            "another path": (404, "GET", "/agents/solo/chats", {}),
            "a bad limit": (400, "GET", "/agents/solo/threads?limit=0", {}),
            "a bad cursor": (400, "GET", "/agents/solo/threads?cursor=x", {}),
            "an unknown parameter": (400, "GET", "/agents?limit=1", {}),
        }
        raw = {what: await api.http.request(method, path, **more) for what, (_, method, path, more) in requests.items()}
        refusals = [
            api.served.metric("pallas_calls_refused_total", agent="solo", reason=reason)
            for reason in ("bad_input", "bad_image", "images_unsupported")
        ]
        left = (await api.get("/agents/solo/threads")).json()["threads"]
    assert {what: (one.status_code, one.json()["error"]) for what, one in told.items()} == {
        what: (status, reason) for what, (_, status, reason) in BAD.items()
    }
    assert {what: one.status_code for what, one in raw.items()} == {
        what: status for what, (status, *_) in requests.items()
    }
    assert raw["a form"].json()["error_description"] == "Send the body as application/json (Content-Type)."
    assert raw["another method"].headers["allow"] == "POST"
    assert refusals == [7, 2, 1]
    assert left == []


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["whole", "events"])
async def test_a_message_that_is_refused_before_the_agent_runs_leaves_no_new_thread(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async with serving(tmp_path, max_in_flight=1, queue_seconds=0) as api:
        thread_id = (await api.chat("hello")).raise_for_status().json()["threadId"]
        first = asyncio.create_task(api.chat("wait", threadId=thread_id))
        await api.gate.wait_for_entered()
        busy = await api.http.post("/agents/other/chat", json={"message": "hi"}, headers=headers)
        mine = (await api.http.post("/agents/other/threads", json={})).raise_for_status().json()["id"]
        body = {"message": "hi", "threadId": mine}
        busy_there = await api.http.post("/agents/other/chat", json=body, headers=headers)
        api.gate.open()
        (await first).raise_for_status()
        listed = {agent: (await api.get(f"/agents/{agent}/threads")).json()["threads"] for agent in ("solo", "other")}
        kept = await api.messages(mine)
        fine = await api.chat("hi", agent="other")
    assert (busy.status_code, busy.json()["error"], set(busy.json())) == (503, "busy", {"error", "error_description"})
    assert "busy" in busy_there.text
    assert mine in busy_there.text
    assert {agent: [(one["id"], one["turns"]) for one in threads] for agent, threads in listed.items()} == {
        "solo": [(thread_id, 2)],
        "other": [(mine, 1)],
    }
    assert [one["error"]["reason"] for one in kept if one["role"] == "assistant"] == ["busy"]
    assert fine.status_code == 200


async def test_a_call_that_says_nothing_until_its_deadline_is_no_answer(
    tmp_path: Path, deadline: asyncio.Event
) -> None:
    async with serving(tmp_path) as api:
        failing = asyncio.create_task(api.chat("wait"))
        await api.gate.wait_for_entered()
        deadline.set()
        failed = await failing
        deadline.clear()
        thread_id = failed.json()["threadId"]
        body = {"message": "wait", "threadId": thread_id}
        async with api.http.stream("POST", "/agents/solo/chat", json=body, headers=EVENTS) as response:
            await api.gate.wait_for_entered(2)
            deadline.set()
            told = [line async for line in response.aiter_lines() if line.startswith("data: {")]
            deadline.clear()
        (await api.chat("hello", threadId=thread_id)).raise_for_status()
        replayed = [(one["role"], one["content"]) for one in api.llm.requests[-1].messages[1:]]
        kept = await api.messages(thread_id)
    assert (failed.status_code, failed.json()["error"], failed.json()["turnIndex"]) == (504, "deadline", 1)
    last = json.loads(told[-1].removeprefix("data: "))
    assert (last["type"], last["reason"], last["turnIndex"]) == ("error", "deadline", 2)
    assert replayed == [("user", "hello")]
    assert [one["status"] for one in kept if one["role"] == "assistant"] == ["error", "error", "complete"]


async def test_images_and_parameters_reach_the_model_and_images_are_replayed(tmp_path: Path) -> None:
    solo = Agent(settings={"model_capabilities": {"vision": True}})
    async with serving(tmp_path, agents={"solo": solo}) as api:
        first = await api.chat("look", images=[PICTURE])
        await api.chat("again", threadId=first.raise_for_status().json()["threadId"])
        told = (await api.chat("warm", params={"temperature": 0.5, "top_k": 7})).raise_for_status().json()
        temperature = api.llm.requests[-1].body["temperature"]
        bodies = [json.dumps(request.messages) for request in api.llm.requests[:2]]
    assert [PICTURE["data"] in body for body in bodies] == [True, True]
    assert (temperature, set(told.get("params", {}))) == (0.5, set())


async def test_documents_are_kept_with_their_names_and_replayed_in_later_turns(tmp_path: Path) -> None:
    document = {"data": "JVBERi0xLjc=", "mime_type": "application/pdf", "name": "Größe; name=7 100%.pdf"}
    solo = Agent(settings={"model_capabilities": {"documents": True}})
    async with serving(tmp_path, agents={"solo": solo}) as api:
        first = await api.chat("read", images=[document, {**document, "name": ""}])
        thread_id = first.raise_for_status().json()["threadId"]
        await api.chat("again", threadId=thread_id)
        fork = (await api.http.post(f"/threads/{thread_id}/fork")).raise_for_status().json()["id"]
        kept = [(await api.messages(one))[0]["images"] for one in (thread_id, fork)]
        sent = [request.documents for request in api.llm.requests]
    both = [(document["name"], document["data"]), ("document.pdf", document["data"])]
    assert sent == [both, both]
    assert kept == [[document, {name: document[name] for name in ("data", "mime_type")}]] * 2


async def test_an_owner_above_its_quota_is_refused_with_413_until_it_deletes_a_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, threads_max_bytes=20_000) as api:
        long = (await api.chat("x" * 15_000)).json()["threadId"]  # the answer repeats it, and is stored
        refused = [
            await api.chat("more", threadId=long),
            await api.chat("new"),
            await api.http.post(f"/threads/{long}/fork"),
            await api.http.post("/agents/solo/threads"),
        ]
        asked = len(api.llm.requests)
        api.served.project.edit(lambda document: document["gateway"].update(threads_max_bytes=None))
        await api.served.reload()
        allowed = await api.chat("more", threadId=long)
        api.served.project.edit(lambda document: document["gateway"].update(threads_max_bytes=20_000))
        await api.served.reload()
        await api.http.delete(f"/threads/{long}")
        again = await api.chat("new")
    assert [(one.status_code, one.json()["error"]) for one in refused] == [(413, "threads_full")] * 4
    assert asked == 1
    assert (allowed.status_code, again.status_code) == (200, 200)


async def test_pages_of_allowed_origins_may_use_it_and_foreign_hosts_may_not(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_origins=["https://chat.example.com"]) as api:
        page = {"Origin": "https://chat.example.com", "Access-Control-Request-Method": "POST"}
        preflight = await api.http.options(
            "/agents/solo/chat", headers={**page, "Access-Control-Request-Headers": "content-type,authorization"}
        )
        allowed = await api.http.get("/agents", headers={"Origin": "https://chat.example.com"})
        foreign = await api.http.get("/agents", headers={"Origin": "https://evil.example.com"})
        rebound = await api.http.get("/agents", headers={"Host": "evil.example.com"})
    assert preflight.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example.com"
    assert (allowed.status_code, foreign.status_code, rebound.status_code) == (200, 403, 421)
    why = "{} is not one this gateway answers to; it can be added to gateway.{}"
    assert [refused.json() for refused in (foreign, rebound)] == [
        {
            "error": "wrong_origin",
            "error_description": why.format("Origin 'https://evil.example.com'", "allowed_origins"),
        },
        {"error": "wrong_host", "error_description": why.format("Host 'evil.example.com'", "allowed_hosts")},
    ]


async def test_without_its_database_the_routes_and_strict_readiness_say_so_and_agents_are_listed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, database="sqlite:////no/such/folder/threads.db") as api:
        refused = [await api.chat("hi"), await api.get("/agents/solo/threads")]
        agents = await api.get("/agents")
        ready = await api.http.get(f"{api.served.base_url}/readyz", params={"strict": 1})
    assert [(one.status_code, one.json()["error"]) for one in refused] == [(503, "threads_unavailable")] * 2
    assert all(one.headers["retry-after"] for one in refused)
    assert "/no/such" not in refused[0].text
    assert (agents.status_code, ready.status_code) == (200, 503)


async def test_a_message_is_a_call_to_the_drain(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        thread_id = (await api.chat("hello")).json()["threadId"]
        first = asyncio.create_task(api.chat("wait", threadId=thread_id))
        await api.gate.wait_for_entered()
        api.served.stop.set()
        await eventually(lambda: api.served.gateway.calls.draining, what="the drain")
        late, read = await api.chat("late"), await api.get(f"/threads/{thread_id}/messages")
        api.gate.open()
        answer = await first
    assert (late.status_code, late.json()["error"], late.headers["retry-after"]) == (503, "stopping", "5")
    assert read.status_code == 200
    assert (answer.status_code, answer.json()["content"]) == (200, "at last")


# --- whatever is sent, what comes back is what the OpenAPI document says ----------------------------------------------

SECONDS = 240
CONFIGURATION = """
[parameters]
"path.name" = "solo"
"path.id" = "{thread_id}"

[checks.missing_required_header]
expected-statuses = [400, 401, 403, 404, 406, 409, 415, 422, 428]

[[operations]]
include-path-regex = "^/api/v1/agents(/[^/]+(/versions.*)?)?$"
parameters = {{ "path.name" = "made", "path.version" = 1 }}
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 422]
checks.negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 412, 415, 422, 428]

[[operations]]
include-path = "/api/v1/agents/{{name}}/chat"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 422, "5xx"]

[[operations]]
include-path = "/api/v1/agents/{{name}}"
include-method = "DELETE"
parameters = {{ "path.name" = "deleted" }}
"""
"""Definitions have rules that a schema cannot express, such as what the operator has released; and a chat may be sent
the parameters of another agent, because the document has those of all."""
GATEWAY = {"database": "sqlite:///pallas.db", "agents_may_use": {"models": ["*"], "agents": ["*"]}}
MADE = {"instruction": "You are made.", "model": "passthrough"}
PARAMETERS = ["temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "tool_choice"]
OPTIONS = ("--generation-deterministic", "--seed", "1", "--max-examples", "4", "--no-color", "--request-timeout", "10")


@pytest.mark.whole("e2e/test_threads.py::test_what_cannot_be_answered_is_refused_with_a_reason_and_counted")
async def test_schemathesis_finds_nothing_that_the_document_does_not_say(tmp_path: Path) -> None:
    async with scripted_llm(lambda _: say("fine")) as llm:
        solo = Agent(settings={"model_capabilities": {"vision": True, "documents": True}, "caller_params": PARAMETERS})
        project = write_project(tmp_path / "project", {"solo": solo}, llm_url=llm.base_url, gateway=GATEWAY)
        async with running(project) as served:
            api = f"{served.base_url}/api/v1"
            async with httpx.AsyncClient(base_url=api, trust_env=False) as http:
                for name in ("made", "deleted"):
                    (await http.post("/agents", json={**MADE, "name": name})).raise_for_status()
                thread_id = (await http.post("/agents/solo/threads")).raise_for_status().json()["id"]
            settings = tmp_path / "schemathesis.toml"
            settings.write_text(CONFIGURATION.format(thread_id=thread_id))
            command = ["-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{api}/openapi.json", *OPTIONS]
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=tmp_path,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            async with asyncio.timeout(SECONDS):
                told, _ = await program.communicate()
    assert program.returncode == 0, told.decode()
