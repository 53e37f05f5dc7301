"""Calls that are refused or badly formed, at every door: the line, the counter, the audit entry and the span of each.

A rule refuses at the ledger, which writes before the call is counted. A call that waited for a place was admitted
before. The guards of a port refuse callers without a grant, so those have no span, and `api` of their entry is `mcp`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.doors import DOORS, FULL, Read, World, held, prepared, world
from tests.support.guarded import static_key
from tests.support.waiting import eventually

GRANTS = {"anna": ["run:agents"], "viewer": ["view:agents"]}
COUNTED = ["refusal counted", "counted"]
STEPS = {
    "refused": ["refusal logged", "call refused", *COUNTED],
    "no grant": ["refusal logged", "call refused", *COUNTED],
    "by a rule": ["refusal logged", "call refused", *COUNTED],
    "busy": ["call allowed", "call_end refused", "refusal logged", *COUNTED],
    "span": [],
    "nothing": [],
}
"""What is written and counted, by the kind of the refusal. Of some errors there is a span alone, or nothing at all."""


class Row(NamedTuple):
    """A request, the kind of its refusal, and what the client reads."""

    doors: tuple[str, ...]
    request: dict[str, Any]
    kind: str
    status: int
    reason: str | int


MCP, CHAT = ("initialize", "2026-07-28"), ("chat", "chat streamed")
OPENAI = ("/v1", "/v1 streamed", "responses", "responses streamed")
ANSWERS, CONTINUED, HAND = ("answers", "answers streamed"), ("continued",), ("by hand",)
MISFIT = {"action": "accept", "content": {"name": 7}}
# fmt: off
TABLE = (
    # --- badly formed
    Row(MCP, {"message": 7}, "refused", 200, "bad_input"),
    Row(MCP, {"more": 1}, "refused", 200, "bad_input"),
    Row(MCP, {"params": {"no": 1}}, "refused", 200, "bad_params"),
    Row(MCP, {"images": ["no base64"]}, "refused", 200, "bad_image"),
    Row(OPENAI, {"message": 7}, "refused", 400, "bad_input"),
    Row(OPENAI, {"temperature": 99}, "refused", 400, "bad_params"),
    Row(CHAT, {"message": 7}, "refused", 400, "bad_input"),
    Row(CHAT, {"more": 1}, "refused", 400, "bad_input"),
    Row(CHAT, {"params": {"no": 1}}, "refused", 400, "bad_params"),
    Row(CHAT, {"threadId": "0" * 32}, "span", 404, "not_found"),
    Row(ANSWERS, {"answers": []}, "nothing", 400, "bad_input"),
    Row(ANSWERS, {"answers": {"f00": {"action": "decline"}}}, "span", 404, "question_not_open"),
    Row(ANSWERS, {"answer": MISFIT}, "span", 422, "bad_answer"),
    Row(CONTINUED, {"requestState": "of.no.call"}, "nothing", 400, -32602),
    Row(CONTINUED, {"arguments": {"message": "another"}}, "nothing", 400, -32602),
    Row(CONTINUED, {"answer": MISFIT}, "nothing", 400, -32602),
    Row(HAND, {"arguments": []}, "refused", 400, "bad_input"),
    Row(HAND, {"more": 1}, "refused", 400, "bad_input"),
    # --- not admitted
    Row((*MCP, *OPENAI, *CHAT, *HAND), {"bearer": "viewer"}, "no grant", 403, "insufficient_scope"),
    Row(MCP, {"nesting": 99}, "refused", 200, "nesting_too_deep"),
    Row(MCP, {"agent": "broken"}, "refused", 200, "agent_unavailable"),
    Row((*OPENAI, *CHAT, *HAND), {"agent": "broken"}, "refused", 503, "agent_unavailable"),
    Row(MCP, {"agent": "limited"}, "by a rule", 200, "limited"),
    Row(OPENAI, {"agent": "limited"}, "by a rule", 429, "rate_limit_exceeded"),
    Row((*CHAT, *HAND), {"agent": "limited"}, "by a rule", 429, "limited"),
    Row(MCP, {"agent": "busy"}, "busy", 200, "busy"),
    Row(OPENAI, {"agent": "busy"}, "busy", 429, "busy"),
    Row((*CHAT, *HAND), {"agent": "busy"}, "busy", 503, "busy"),
    Row(HAND, {"server": "none"}, "busy", 404, "no_tool"),
)
# fmt: on
API = {**dict.fromkeys(MCP, "mcp"), **dict.fromkeys(OPENAI, "openai"), **dict.fromkeys(HAND, "console")}


async def test_a_refused_call_is_written_and_counted_as_such_at_every_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {door for row in TABLE for door in row.doors} == {*DOORS}
    auth = {"tokens": [static_key(*grants, key=name, name=name) for name, grants in GRANTS.items()]}
    async with world(tmp_path, monkeypatch, at_once=["limited"], bearer="anna", auth=auth) as gateway:
        full = [await held(gateway, "chat", await prepared(gateway, "chat", name, "held")) for name in FULL]
        for row in TABLE:
            for door in row.doors:
                await play(gateway, row, door)
        gateway.gate.open()
        assert [(await one).json()["content"] for one in full] == ["late", "late"]


async def play(world: World, row: Row, door: str) -> None:
    story, which = world.story, (door, row.request)
    given = {"agent": "solo", "message": "hi", "bearer": None, **row.request}
    agent, message, bearer = (given.pop(name) for name in ("agent", "message", "bearer"))
    before, sent = await world.usage(), await prepared(world, door, agent, message, **given)
    response = await sent.post(world, bearer)
    read, after = Read(response), await world.usage()
    reply = "complete" if read.status == 200 else "error"
    assert (read.status, read.reason) == (row.status, row.reason), which
    assert story.steps == [*STEPS[row.kind], reply], which
    has_span = row.kind not in {"no grant", "nothing"}
    if has_span:
        await eventually(lambda: story.spans, what=f"the span of {which}")
    reason = {"rate_limit_exceeded": "limited"}.get(str(row.reason), row.reason)
    assert [one["error.type"] for one in story.spans] == [reason] * has_span, which
    await end_calls(world)
    if not STEPS[row.kind]:
        return

    [line], entry = story.lines, story.audited[-1]
    assert (line["reason"], entry["reason"], line["caller"]) == (reason, reason, f"key:{bearer or 'anna'}"), which
    assert entry["api"] == ("mcp" if row.kind == "no grant" else API.get(door, "threads")), which
    assert (after[0] - before[0], after[1] - before[1]) == (0, 0 if bearer else 1), which
    ids = {line["call_id"], *(one["call_id"] for one in story.audited)}
    ids |= {one["pallas.call_id"] for one in story.spans}
    if has_span and door not in CHAT:
        ids |= {read.call_id}
    assert len(ids) == 1, which


async def end_calls(world: World) -> None:
    """End the calls of `solo`, which wait for an answer that was refused."""
    for one in await waiting(world):
        await world.http.delete(f"/api/v1/calls/{one['id']}")

    async def none_waits() -> bool:
        return not await waiting(world)

    await eventually(none_waits, what="the end of the waiting calls")


async def waiting(world: World) -> list[dict[str, Any]]:
    return [one for one in await world.calls() if one["agent"] == "solo"]
