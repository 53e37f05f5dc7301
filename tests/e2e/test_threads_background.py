"""Calls of threads that go on without their client, the end of calls, and what owners change in their threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.features.registry.registry import PUBLISHER
from pallas_gateway.identity.static_keys import hash_of
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import chain_of_agents
from tests.support.gateway import Agent, until_idle, write_project
from tests.support.gateway import running as served_project
from tests.support.scripted_llm import say, scripted_llm, stream
from tests.support.stored_threads import threads_of
from tests.support.threads_api import ACCEPT, Api, http_of, serving, stream_of
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

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


async def test_a_reload_keeps_the_live_events_of_a_running_call_and_its_cancellation(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, script=lambda _: stream(["one ", "two"], gate)) as api:
        async with api.stream("/agents/user/chat", {"message": "go", **BOTH}) as running:
            thread_id = (await running.event("thread"))["threadId"]
            await running.event("assistant")
        await api.served.reload()
        async with api.stream(f"/threads/{thread_id}/answers", {"answers": {}}) as attached:
            await attached.event("assistant")
            cancelled = await api.http.post(f"/threads/{thread_id}/cancel")
            error = await attached.event("error")
        await until_idle(api.served)
    assert (cancelled.status_code, error["reason"]) == (204, "cancelled")


async def test_a_call_whose_agent_a_reload_removed_is_cancelled_by_its_owner(tmp_path: Path) -> None:
    gate = Gate()
    threads = {"database": "sqlite:///threads.db"}
    async with scripted_llm(lambda _: stream(["one ", "two"], gate)) as llm:
        agents = {"user": Agent(), "other": Agent()}
        async with (
            served_project(write_project(tmp_path, agents, llm_url=llm.base_url, gateway=threads)) as served,
            http_of(served) as http,
            stream_of(http, "/agents/user/chat", {"message": "go", **BOTH}) as running,
        ):
            thread_id = (await running.event("thread"))["threadId"]
            await running.event("assistant")
            served.project.edit(lambda document: document["agents"].pop("user"))
            await served.reload()
            cancelled = await http.post(f"/threads/{thread_id}/cancel")
            error = await running.event("error")
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
    assert "tool_call" not in running.types
    assert "Ada" in final["content"]
