"""Clients that come and go while a call runs: it is written and counted once, and each reader gets its end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from tests.e2e.doors import ADA, Read, Sent, may_ask, world
from tests.support.threads_api import http_of, stream_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.e2e.doors import ADA, Read, Sent, World, may_ask, world
    from tests.support.threads_api import Stream

ENDED_OK = ["call_end ok", "logged", "counted"]
ENDED_BADLY = ["call_end error", "logged", "counted"]


async def test_a_call_in_the_background_goes_on_without_clients_and_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, at_once=["solo"]) as one, http_of(one.served) as http:
        one.story.begin()
        async with stream_of(http, "/agents/solo/chat", {"message": "held", "background": True}) as first:
            thread_id = (await first.event("thread"))["threadId"]
            await one.gate.wait_for_entered(1)
        path = f"/threads/{thread_id}/answers"
        async with stream_of(http, path, {"answers": {}}) as second, stream_of(http, path, {"answers": {}}) as third:
            for reader in (second, third):
                await reader.event("thread")
            whole = asyncio.create_task(Sent(f"/api/v1{path}", {"answers": {}}).post(one))
            assert [call["api"] for call in await one.calls()] == ["threads"]
            assert one.story.account == ["call allowed"]
            one.gate.open()
            finals = [await reader.last() for reader in (second, third)]
        reply = (await whole).json()
        await one.over()
        assert await one.usage() == (1, 0)
    assert second.types == third.types == ["thread", "text", "final"]
    assert finals == [{"type": "final", **reply}] * 2
    assert reply["content"] == "late"
    assert one.story.account[:4] == ["call allowed", *ENDED_OK]
    assert [line["call_id"] for line in one.story.lines] == [reply["callId"]]
    assert {entry["call_id"] for entry in one.story.audited} >= {reply["callId"]}


async def test_a_call_of_2026_whose_client_comes_back_over_another_connection_is_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch, at_once=["solo"]) as one:

        async def repeated(**more: Any) -> dict[str, Any]:
            async with httpx.AsyncClient(base_url=one.served.base_url, trust_env=False, timeout=60) as http:
                last = Read(await may_ask(one, "fine", **more).post(replace(one, http=http))).last
            return dict(last.get("result") or last["error"])

        asked = await repeated()
        [waiting] = await one.calls()
        first = {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], ADA)}
        again = await repeated(requestState=asked["requestState"])
        used = await repeated(**first)
        assert [call["id"] for call in await one.calls()] == [waiting["id"]]
        result = await repeated(**{**first, "requestState": again["requestState"]})
        late = await repeated(**{**first, "requestState": again["requestState"]})
        assert (await one.calls(), await one.usage()) == ([], (1, 0))
        steps, spans = one.story.account, one.story.spans
    assert waiting["waiting"]
    assert again["inputRequests"] == asked["inputRequests"]
    assert (used["code"], late["code"]) == (-32602, -32602)
    assert result["content"][0]["text"] == "fine"
    assert result["_meta"]["pallas/call"]["call_id"] == waiting["id"]
    told = ["input_required", "input_required", "error"]
    assert steps == ["call allowed", *told, "answer accepted", *ENDED_OK, "complete", "error"]
    assert [one["pallas.call_id"] for one in spans] == [waiting["id"]] * 3  # each request that was taken


async def test_two_readers_of_a_turn_get_its_end_and_it_goes_on_while_one_of_them_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that chats, and the one that answers the question."""
    found: dict[str, tuple[list[Any], list[str]]] = {}
    async with world(tmp_path, monkeypatch, at_once=["solo"]) as one:
        for end in ("answered", "failed", "ended", "chatter left", "answerer left", "both left"):
            found[end] = await read_by_two(one, end)
            await one.over()
            assert [line["agent"] for line in one.story.lines] == ["solo"], end
            assert await one.calls() == [], end
    begun = ["call allowed", "answer accepted"]
    assert found == {
        "answered": (["fine", "fine"], [*begun, *ENDED_OK]),
        "failed": (["llm_error", "llm_error"], [*begun, *ENDED_BADLY]),
        "ended": (["cancelled", "cancelled"], [*begun, "end_call accepted", *ENDED_BADLY]),
        "chatter left": (["late"], [*begun, *ENDED_OK]),
        "answerer left": (["late"], [*begun, *ENDED_OK]),
        "both left": ([], [*begun, *ENDED_BADLY]),
    }


async def read_by_two(world: World, end: str) -> tuple[list[Any], list[str]]:
    """Return what the readers that stay get at the end, and the account without that."""
    word = end if end in {"answered", "failed"} else "held"
    entered = len(world.gate.entered)
    async with http_of(world.served) as http, AsyncExitStack() as chat, AsyncExitStack() as answer:
        world.story.begin()
        chatter = await chat.enter_async_context(stream_of(http, "/agents/solo/chat", {"message": f"asks {word}"}))
        asked, thread = await chatter.event("question"), await chatter.event("thread")
        given = {"answers": {asked["id"]: ADA}}
        answerer = await answer.enter_async_context(stream_of(http, f"/threads/{thread['threadId']}/answers", given))
        readers: list[Stream] = [chatter, answerer]
        if word == "held":
            await world.gate.wait_for_entered(entered + 1)
        for which, stack, reader in (("chatter", chat, chatter), ("answerer", answer, answerer)):
            if end in {f"{which} left", "both left"}:
                await stack.aclose()
                readers.remove(reader)
        if end == "ended":
            [call] = await world.calls()
            await world.http.delete(f"/api/v1/calls/{call['id']}")
        elif readers and word == "held":
            world.gate.let_through()
        lasts = [await one.last() for one in readers]
    await world.over()
    account = world.story.account
    assert account.pop(1) == "question"
    ends = [kind for kind in ("final", "done", "error") for _ in range(account.count(kind))]
    assert sorted(account[-len(ends) :] if ends else []) == sorted(ends)  # the last of all
    return [one.get("content", one.get("reason")) for one in lasts], account[: len(account) - len(ends)]
