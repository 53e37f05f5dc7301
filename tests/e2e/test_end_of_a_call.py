"""The end of a call is the same whichever door it came in by: what is written and counted, in order, then the reply."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.doors import DOORS, MEANWHILE, Read, held, prepared, world

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.e2e.doors import Sent, World


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
