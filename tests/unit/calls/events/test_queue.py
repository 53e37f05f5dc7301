"""Events that wait for a slow reader: in order, text joined, bounded."""

import asyncio

import pytest

from pallas_gateway.calls.events import queue
from pallas_gateway.calls.events.events import (
    Admitted,
    Emitter,
    Event,
    QuestionAsked,
    StepBegan,
    TextDelta,
    ToolCall,
    ToolsEnded,
    TurnEnded,
)
from pallas_gateway.calls.events.queue import LIVE, EventQueue, StreamOptions
from pallas_gateway.calls.questions import Question

ONE, TWO = Emitter("one", None), Emitter("two", None)
ALL = StreamOptions(progress=True, deltas=True)
STEP = StepBegan("one", 1, "llm")
ASKED = QuestionAsked(Question("form", "Which?"), "Which?")


def text(piece: str, emitter: Emitter = ONE, iteration: int = 1) -> TextDelta:
    return TextDelta(emitter, iteration, piece)


def turn(emitter: Emitter = ONE, iteration: int = 1) -> TurnEnded:
    return TurnEnded(emitter, iteration, "", [ToolCall("1", None, "t", {})])


async def taken(events: EventQueue) -> list[Event]:
    events.close()
    return [event async for event in events.events()]


async def test_events_come_in_order_and_unread_text_of_a_turn_is_joined() -> None:
    events = EventQueue(ALL)
    for event in (Admitted(), text("a"), text("b"), turn(), text("c", iteration=2), STEP, text("d", iteration=2)):
        events.put(event)
    assert await taken(events) == [Admitted(), text("ab"), turn(), text("cd", iteration=2), STEP]


async def test_text_of_agents_that_speak_at_once_is_joined_for_each() -> None:
    events = EventQueue(ALL)
    for number in range(3):
        events.put(text(f"{number}"))
        events.put(text(f"{number}", TWO))
    assert await taken(events) == [text("012"), text("012", TWO)]


async def test_text_can_wait_while_later_events_are_read_but_not_beyond_the_end_of_its_turn() -> None:
    events = EventQueue(ALL)
    for event in (text("a"), STEP, text("b", TWO), turn(TWO)):
        events.put(event)
    read = [events.next(with_text=False) for _ in range(4)]
    assert read == [STEP, text("b", TWO), turn(TWO), None]
    events.put(text("c"))
    assert [events.next(), events.next()] == [text("ac"), None]


async def test_a_reader_waits_for_events_and_ends_when_the_queue_is_closed() -> None:
    events, seen = EventQueue(ALL), []

    async def read() -> None:
        async for event in events.events():
            seen.append(event)
            events.put(text("more")) if len(seen) == 1 else events.close()

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    events.put(text("some"))
    await asyncio.wait_for(reading, 10)
    events.put(text("late"))
    assert seen == [text("some"), text("more")]
    assert len(events) == 0


async def test_beyond_the_limit_the_oldest_events_that_may_be_missed_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "MOST_EVENTS", 4)
    events = EventQueue(ALL, (*LIVE, TurnEnded))
    for event in (ASKED, text("a"), STEP, turn(), text("b", iteration=2), turn(iteration=2), turn(iteration=3)):
        events.put(event)
        assert len(events) <= 4
    assert await taken(events) == [ASKED, text("b", iteration=2), turn(iteration=2), turn(iteration=3)]


async def test_a_reader_that_may_miss_nothing_more_is_lost_until_its_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "MOST_EVENTS", 2)
    events, lost = EventQueue(ALL), list[str]()
    events.on_lost = lambda: lost.append("lost")
    for iteration in (1, 2, 3, 4):
        events.put(turn(iteration=iteration))
    assert (lost, events.is_lost) == (["lost"], True)
    assert [events.next(), events.next(), events.next()] == [turn(iteration=1), turn(iteration=2), None]
    events.serve(ALL)
    events.put(turn(iteration=5))
    assert await taken(events) == [turn(iteration=5)]


async def test_the_unread_events_are_split_from_later_ones() -> None:
    events = EventQueue(ALL)
    for event in (turn(), text("a", iteration=2)):
        events.put(event)
    unread = events.split()
    events.put(text("b", iteration=2))
    unread.put(turn(iteration=3))
    assert await taken(unread) == [turn(), text("a", iteration=2)]
    assert await taken(events) == [text("b", iteration=2)]


@pytest.mark.parametrize(("may_miss", "left"), [((), "x" * 9 + "y"), (((StepBegan,),), "x" * 30 + "y")])
async def test_the_oldest_text_of_a_turn_is_dropped_unless_the_reader_needs_it(
    may_miss: tuple[tuple[type, ...], ...], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LONGEST_TEXT", 10)
    events = EventQueue(ALL, *may_miss)  # a client of MCP needs its texts whole, but not live
    for _ in range(10):
        events.put(text("xxx"))
    events.put(text("y"))
    assert await taken(events) == [text(left)]


async def test_events_that_the_client_does_not_ask_for_are_not_kept() -> None:
    events = EventQueue(StreamOptions(messages=False))
    for event in (STEP, text("a"), turn(), ToolsEnded(ONE, 1, [])):
        events.put(event)
    assert await taken(events) == []


async def test_another_request_of_the_client_gets_the_events_that_it_asks_for() -> None:
    events = EventQueue(StreamOptions(progress=True, deltas=True))
    for event in (STEP, text("a"), turn()):
        events.put(event)
    events.serve(StreamOptions())
    events.put(STEP)
    assert events.options == StreamOptions()
    events.serve(ALL)
    events.put(text("b", iteration=2))
    assert await taken(events) == [turn(), text("b", iteration=2)]


async def test_a_copy_has_events_of_its_own() -> None:
    events = EventQueue(ALL)
    for event in (text("a"), turn(), text("b", iteration=2)):
        events.put(event)
    other = events.copy()
    other.put(text("c", iteration=2))
    assert await taken(events) == [text("a"), turn(), text("b", iteration=2)]
    assert await taken(other) == [text("a"), turn(), text("bc", iteration=2)]
