"""The end of a call is the same whichever door it came in by, and whichever clients come and go while it runs."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.doors import ADA, DOORS, MEANWHILE, Read, Sent, World, held, may_ask, prepared, world
from tests.support.threads_api import Stream, http_of, stream_of


class Row(NamedTuple):
    """What the client of a door reads: status, reason, and what it is sent, without repetitions.

    `begins` is in the audit log since the request. A client that leaves reads nothing more.
    """

    door: str
    begins: str
    answered: str
    failed: str
    ended: str


CALL, ANSWER = "call allowed", "answer accepted"
# fmt: off
TABLE = (
    Row("initialize", CALL,
        "200 endTurn: progress message complete",
        "200 llm_error: progress complete",
        "200 cancelled: progress message complete"),
    Row("2026-07-28", CALL,
        "200 endTurn: progress complete",
        "200 llm_error: progress complete",
        "200 cancelled: progress complete"),
    Row("continued", ANSWER,
        "200 endTurn: progress complete",
        "200 llm_error: progress complete",
        "200 cancelled: progress complete"),
    Row("/v1", CALL, "200 stop: reply", "502 llm_error: error", "502 cancelled: error"),
    Row("/v1 streamed", CALL, "200 stop: chunk finish done", "502 llm_error: error", "502 cancelled: error"),
    Row("responses", CALL, "200 completed: reply", "502 llm_error: error", "502 cancelled: error"),
    Row("responses streamed", CALL,
        "200 completed: created in_progress output_item.added content_part.added output_text.delta "
        "output_text.done content_part.done output_item.done completed done",
        "502 llm_error: error",
        "502 cancelled: error"),
    Row("chat", CALL, "200 endTurn: reply", "502 llm_error: error", "502 cancelled: error"),
    Row("chat streamed", CALL,
        "200 endTurn: thread text final done",
        "200 llm_error: thread error done",
        "200 cancelled: thread error done"),
    Row("answers", ANSWER, "200 endTurn: reply", "502 llm_error: error", "502 cancelled: error"),
    Row("answers streamed", ANSWER,
        "200 endTurn: thread tool_call answer tool_result text final done",
        "200 llm_error: thread tool_call answer tool_result error done",
        "200 cancelled: thread tool_call answer tool_result error done"),
    Row("by hand", CALL, "200 None: reply", "502 server_unavailable: error", "502 cancelled: error"),
)
# fmt: on
REASONS = {"answered": "endTurn", "failed": "llm_error", "left": "cancelled", "ended": "cancelled"}
OF_TOOLS = {"answered": "toolResult", "failed": "server_unavailable"}


async def test_a_call_is_written_and_counted_before_its_reply_at_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`solo` may be called once at a time, so each call begins after the lease of the one before was given back."""
    assert {row.door for row in TABLE} == {*DOORS}
    async with world(tmp_path, monkeypatch, at_once=["solo"]) as gateway:
        for row in TABLE:
            for end in REASONS:
                await play(gateway, row, end)


async def play(world: World, row: Row, end: str) -> None:
    story, which = world.story, (row.door, end)
    before, sent = await world.usage(), await prepared(world, row.door, "solo", end)
    read = await read_by(world, row.door, end, sent)
    if read is not None:
        assert await world.calls() == [], which
    await world.over()
    [ended, *_], after = await world.calls("?recent=1"), await world.usage()
    is_ok, reason = end == "answered", (OF_TOOLS if row.door == "by hand" else {}).get(end, REASONS[end])

    asked_to = ["end_call accepted"] if end == "ended" else []
    account = [f"call_end {'ok' if is_ok else 'error'}", "logged", "counted"]
    reply = [one for one in story.told if one not in MEANWHILE]
    assert story.account == [row.begins, *asked_to, *account, *reply], which
    assert bool(reply) == (read is not None), which
    if read is not None:
        kinds = " ".join(one for one, _ in groupby(story.told))
        assert f"{read.status} {read.reason}: {kinds}" == getattr(row, end), which
        assert ("ended by anonymous" in json.dumps(read.last)) == (end == "ended"), which

    [line], [span] = story.lines, story.spans
    assert (line.get("stop_reason"), line.get("reason")) == ((reason, None) if is_ok else (None, reason)), which
    assert line.get("ended_by") == ("anonymous" if end == "ended" else None), which
    assert (ended["outcome"], ended["stopReason"]) == (line["outcome"], reason), which
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0), which
    assert span.get("error.type") == (None if is_ok else reason), which

    ids = {line["call_id"], ended["id"], *(one["call_id"] for one in story.audited)}
    if end != "left":
        ids |= {span["pallas.call_id"]}
    if read is not None and (is_ok or not row.door.startswith(("chat", "answers"))):
        ids |= {read.call_id}  # errors of threads have no id
    assert len(ids) == 1, which


async def read_by(world: World, door: str, end: str, sent: Sent) -> Read | None:
    """Bring the end about; return what the client reads."""
    if end in {"answered", "failed"}:
        return Read(await sent.post(world))
    request = await held(world, door, sent)
    if end == "left":
        request.cancel()
        await asyncio.wait({request})
        return None
    [running] = await world.calls()
    assert (await world.http.delete(f"/api/v1/calls/{running['id']}")).status_code == 204
    return Read(await request)


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
