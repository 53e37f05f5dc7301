"""Events of a call that wait for a slow client: in order, joined, bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pallas_gateway.web.threads.outbox import Outbox

THREAD = {"type": "thread", "threadId": "1"}


def text(delta: str) -> dict[str, Any]:
    return {"type": "text", "delta": delta}


async def taken(box: Outbox) -> list[dict[str, Any]]:
    box.close()
    return [json.loads(line) async for line in box.lines()]


async def test_events_come_in_order_and_text_that_waits_is_joined() -> None:
    box, call = Outbox(), {"type": "tool_call", "id": "1"}
    for event in (THREAD, text("a"), text("b"), call, text("c")):
        box.put(event)
    assert await taken(box) == [THREAD, text("ab"), call, text("c")]


async def test_a_reader_waits_for_what_comes_and_ends_when_it_is_closed() -> None:
    box, seen = Outbox(), []

    async def read() -> None:
        async for line in box.lines():
            seen.append(json.loads(line))
            box.put(text("more")) if len(seen) == 1 else box.close()

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    box.put(text("some"))
    await asyncio.wait_for(reading, 10)
    assert seen == [text("some"), text("more")]


async def test_beyond_the_limit_the_oldest_events_are_dropped_but_never_the_thread() -> None:
    box, calls = Outbox(200), [{"type": "tool_call", "id": str(number)} for number in range(50)]
    box.put(THREAD)
    for event in (text("x" * 150), *calls):
        box.put(event)
        assert box._size <= 200
    left = await taken(box)
    assert left[0] == THREAD
    assert left[1:] == calls[-len(left[1:]) :]
    assert len(left) > 2
    assert box._size == 0


async def test_an_event_that_is_too_large_by_itself_is_dropped() -> None:
    box = Outbox(20)
    box.put(THREAD)
    box.put(text("x" * 21))
    box.put(text("y"))
    assert await taken(box) == [THREAD]


async def test_live_text_of_one_turn_is_joined_and_a_copy_has_its_own_events() -> None:
    def delta(agent: str, text: str) -> dict[str, Any]:
        return {"type": "assistant", "data": {"kind": "assistant_delta", "agent": agent, "iteration": 1, "text": text}}

    box, chunk = Outbox(), {"type": "assistant", "data": {"kind": "assistant_chunk", "text": "ab"}}
    for event in (delta("one", "a"), delta("one", "b"), delta("two", "c"), chunk):
        box.put(event)
    other = box.copy()
    other.put(text("more"))
    assert await taken(box) == [delta("one", "ab"), delta("two", "c"), chunk]
    assert (await taken(other))[-1] == text("more")
