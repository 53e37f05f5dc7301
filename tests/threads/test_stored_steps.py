"""Steps of turns, agents by their ids, searches, sizes and expiry in a real database of either kind."""

import json
import tracemalloc
from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from pallas_gateway.calls.call import Message, Step, StepLog
from pallas_gateway.features.threads import search as searching
from pallas_gateway.features.threads.records import (
    CANCELLED,
    ExchangeOutcome,
    NewThread,
    ThreadsFullError,
    WantedThreads,
)
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.features.threads.sizes import Room
from pallas_gateway.shared.database import tables
from tests.support.stored_threads import listed, opened, say, turns_of
from tests.support.waiting import eventually

ROOM = Room(1000, 16 * 1024 * 1024, 100_000)


def step(text_: str = "3", *, id_: str = "call_1") -> Step:
    return Step("generic", "test-model", json.dumps({"tools": {id_: "tools/add"}, "text": text_}))


async def use_tools(threads: Threads, thread_id: str, made: Sequence[Step], *, room: Room = ROOM) -> None:
    async with threads.turns.turn(thread_id, Message("user", "add"), "call", wait_seconds=0, room=room) as turn:
        turn.step_log = StepLog(16, steps=[*made])
        await turn.end(ExchangeOutcome(Message("assistant", "added"), "endTurn"))


async def test_steps_are_stored_with_their_turn_replayed_copied_and_deleted_with_it(database_url: str) -> None:
    made = [step("one"), step("two \N{SNOWMAN}", id_="call_2")]
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await use_tools(threads, thread.id, made)
        await say(threads, thread.id, "plain")
        copy = await threads.changes.fork(thread.id, 1)
        for id_ in (thread.id, copy.id):
            page = await threads.store.turns_of(id_, limit=10, after=0, with_steps=True)
            assert page.turns[0].steps == (*made,)
        assert [turn.steps for turn in await turns_of(threads, thread.id)] == [(), ()]
        async with threads.turns.turn(thread.id, Message("user", "next"), "call", wait_seconds=0, room=ROOM) as turn:
            replayed = turn.history.messages
            await turn.end(ExchangeOutcome(error_reason="llm_error", error="no"))
        for id_ in (thread.id, copy.id):
            await threads.changes.remove(id_)
        left = await threads.store.database.read(lambda sql: sql.execute(select(tables.steps)))
    assert [message.steps for message in replayed] == [(), (*made,), (), ()]
    assert left.all() == []


async def test_a_failed_turn_keeps_its_steps_for_people_and_not_for_the_model(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        async with threads.turns.turn(thread.id, Message("user", "add"), "call", wait_seconds=0) as turn:
            turn.step_log = StepLog(16, steps=[step()])
            await turn.fail(CANCELLED)
        page = await threads.store.turns_of(thread.id, limit=10, after=0, with_steps=True)
        async with threads.turns.turn(thread.id, Message("user", "next"), "call", wait_seconds=0, room=ROOM) as turn:
            assert turn.history.messages == ()
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
    assert [(one.status, one.steps) for one in page.turns] == [("error", (step(),))]


async def test_steps_count_for_the_quota_of_their_owner(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await use_tools(threads, thread.id, [step("x" * 20_000)])
        threads.quota.max_bytes = 20_000
        with pytest.raises(ThreadsFullError):
            await threads.store.create("me", "solo")
        threads.quota.max_bytes = 30_000
        assert (await threads.store.create("me", "solo")).agent == "solo"


def test_a_log_takes_no_more_than_it_may_have_in_all() -> None:
    log = StepLog(16, most_bytes_in_all=len(step().data) * 2)
    for _ in range(4):
        log.add(step())
    assert log.steps == [step(), step()]


async def test_pages_without_steps_are_measured_without_them(database_url: str) -> None:
    async with opened(database_url, page_bytes=200) as threads:
        thread = await threads.store.create("me", "solo")
        for _ in range(2):
            await use_tools(threads, thread.id, [step("x" * 1000)])
        plain = await threads.store.turns_of(thread.id, limit=10, after=0)
        whole = await threads.store.turns_of(thread.id, limit=10, after=0, with_steps=True)
    assert ([one.number for one in plain.turns], plain.has_more) == ([1, 2], False)
    assert ([one.number for one in whole.turns], whole.has_more) == ([1], True)


async def test_the_beginning_of_what_is_replayed_stays_the_same_over_several_messages(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread, room = await threads.store.create("me", "solo"), Room(8, 10**6, 10**6)
        begins: list[tuple[str, int]] = []
        for number in range(16):
            turns = threads.turns
            async with turns.turn(thread.id, Message("user", f"{number}"), "c", wait_seconds=0, room=room) as turn:
                if turn.history.messages:
                    begins.append((turn.history.messages[0].text, turn.history.left_out))
                await turn.end(ExchangeOutcome(Message("assistant", "said")))
    kept = [("0", 0)] * 8 + [("2", 2)] * 2 + [("4", 4)] * 2 + [("6", 6)] * 2 + [("8", 8)]
    assert begins == kept


@pytest.mark.parametrize(
    ("room", "left_out"),
    [(Room(9, 10**6, 10**6), 0), (Room(9, 2_500, 10**6), 2), (Room(9, 10**6, 800), 2), (Room(9, 10**6, 10), 3)],
    ids=str,
)
async def test_steps_decide_with_their_bytes_and_tokens_what_is_left_out(
    database_url: str, room: Room, left_out: int
) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        for _ in range(3):
            await use_tools(threads, thread.id, [step("x" * 1000)], room=room)
        async with threads.turns.turn(thread.id, Message("user", "next"), "call", wait_seconds=0, room=room) as turn:
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
    assert turn.history.left_out == left_out
    assert len(turn.history.messages) == 2 * (3 - left_out)


async def test_a_thread_belongs_to_an_agent_by_its_id(database_url: str) -> None:
    async with opened(database_url) as threads:
        of_file = await threads.store.create("me", "solo")
        old = await threads.store.create("me", "solo", agent_id="a1")
        async with threads.turns.first_turn(NewThread("me", "solo", "a2"), Message("user", "hi"), "call") as turn:
            turn.keep()
            await turn.end(ExchangeOutcome(Message("assistant", "hello")))
        new = turn.lease.thread_id
        copy = await threads.changes.fork(new, 1)
        by_id = {
            id_: {one.id for one in await listed(threads, "me", "solo", agent_id=id_)} for id_ in ("", "a1", "a2", "a3")
        }
        shown = await threads.store.threads_except("me", [("solo", ""), ("solo", "a2")], WantedThreads(10))
        every = await threads.store.threads_except("me", [], WantedThreads(10))
        others = await threads.store.threads_except("you", [], WantedThreads(10))
        names = await threads.store.file_agents_of("me")

        await threads.changes.remove_of_agent("a2")
        left = await threads.store.threads_except("me", [], WantedThreads(10))
        with pytest.raises(ValueError, match="not empty"):
            await threads.changes.remove_of_agent("")
    assert by_id == {"": {of_file.id}, "a1": {old.id}, "a2": {new, copy.id}, "a3": set()}
    assert [(one.id, one.agent_id) for one in shown.threads] == [(old.id, "a1")]
    assert {one.id for one in every.threads} == {of_file.id, old.id, new, copy.id}
    assert (others.threads, [*names]) == ((), ["solo"])
    assert {one.id for one in left.threads} == {of_file.id, old.id}


async def test_a_search_finds_titles_and_texts_in_either_case_and_nothing_by_its_signs(database_url: str) -> None:
    async with opened(database_url) as threads:
        ids = {}
        for name, title, said in (
            ("title", "Holiday in Rome", "where to"),
            ("question", None, "Is the HOLIDAY paid?"),
            ("accent", "Über die Küche", "hello"),
            ("percent", "100% sure_thing", "back\\slash"),
            ("other", "nothing", "at all"),
        ):
            ids[name] = (await threads.store.create("me", "solo", title)).id
            await say(threads, ids[name], said)
        await threads.store.create("you", "solo", "Holiday in Rome")
        found = {}
        for search in ("holiday", "ÜBER", "küche", "0% SURE_", "k\\s", "%", "_", "said is", "h_liday", "absent"):
            page = await listed(threads, "me", "solo", search=search)
            found[search] = {name for name, id_ in ids.items() if id_ in {one.id for one in page}}
    assert found == {
        "holiday": {"title", "question"},
        "ÜBER": {"accent"},
        "küche": {"accent"},
        "0% SURE_": {"percent"},
        "k\\s": {"percent"},
        "%": {"percent"},
        "_": {"percent"},
        "said is": {"question"},
        "h_liday": set(),
        "absent": set(),
    }


async def test_a_search_reads_so_many_threads_and_goes_on_behind_them(database_url: str) -> None:
    async with opened(database_url, searched_threads=3) as threads:
        made = [await threads.store.create("me", "solo", f"wanted {number % 4 == 0}") for number in range(8)]
        pages = await pages_of(threads, "wanted true", limit=2)
    found = [id_ for page in pages for id_ in page]
    assert sorted(found) == sorted([made[0].id, made[4].id])
    assert len(pages) == 3


async def test_a_search_reads_so_many_bytes_and_goes_on_behind_them(database_url: str) -> None:
    async with opened(database_url, searched_bytes=1) as threads:
        made = [await threads.store.create("me", "solo", "wanted") for _ in range(3)]
        first = await threads.store.threads_of("me", ("solo", ""), WantedThreads(10, search="wanted"))
        second = await threads.store.threads_of("me", ("solo", ""), WantedThreads(10, first.behind, "wanted"))
    assert [[one.id for one in page.threads] for page in (first, second)] == [
        [one.id] for one in sorted(made, key=lambda one: one.position, reverse=True)[:2]
    ]


async def pages_of(threads: Threads, search: str, *, limit: int = 10) -> list[list[str]]:
    pages: list[list[str]] = []
    wanted = WantedThreads(limit, search=search)
    while True:
        page = await threads.store.threads_of("me", ("solo", ""), wanted)
        pages.append([one.id for one in page.threads])
        if page.behind is None:
            return pages
        wanted = WantedThreads(limit, page.behind, search)


@pytest.mark.parametrize("limits", [{"searched_bytes": 3000}, {"search_seconds": 0}])
async def test_a_page_of_a_search_ends_within_a_long_thread_and_the_next_goes_on_there(
    database_url: str, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 10)  # each turn is read alone
    monkeypatch.setattr(searching, "ROWS", 3)
    async with opened(database_url, **limits) as threads:
        empty, long, other = [(await threads.store.create("me", "solo")).id for _ in range(3)]
        for number in range(7):
            await say(threads, long, f"{number}: {'late' if number > 4 else 'early'}")
        await say(threads, other, "late")
        late, early = await pages_of(threads, "LATE", limit=2), await pages_of(threads, "early")
        nothing = await pages_of(threads, "nothing")
    assert [id_ for page in late for id_ in page] == [other, long]
    assert [id_ for page in early for id_ in page] == [long]
    assert len(nothing) >= 3
    assert {id_ for page in nothing for id_ in page} == set()
    assert empty


async def test_a_search_finds_a_text_across_the_pieces_in_which_it_is_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 6)
    monkeypatch.setattr(searching, "PIECE", 4)
    said = "Über die Küche 0123456789"
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await say(threads, thread.id, said)
        parts = {said[first : first + length] for first in range(len(said)) for length in (1, 2, 5, 6, 9, 20)}
        missed = [part for part in sorted(parts) if not await listed(threads, search=part.upper())]
        found = [
            text for text in ("9sai", "3 die", "Kücheü", "99", "0123456789s") if await listed(threads, search=text)
        ]
    assert (missed, found) == ([], [])


async def test_no_text_takes_much_longer_to_search_for_than_another(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await say(threads, thread.id, "a" * 8_000_000)
        seconds: dict[str, list[float]] = {"none of this": [], "a" * 199 + "b": []}
        for text_ in [*seconds] * 3:
            began = perf_counter()
            page = await threads.store.threads_of("me", ("solo", ""), WantedThreads(10, search=text_))
            seconds[text_].append(perf_counter() - began)
            assert page.threads == ()
    harmless, hostile = map(min, seconds.values())  # the shortest: other processes only make it longer
    assert hostile < 20 * harmless  # 75 times with LIKE, by which a search of all that an owner may store took minutes


async def test_a_thread_that_is_touched_is_the_one_last_changed(database_url: str) -> None:
    async with opened(database_url) as threads:
        first, second = [await threads.store.create("me", "solo", title) for title in ("first", "second")]
        await _set_age(threads, first.id, days=2)
        before = [one.id for one in await listed(threads)]
        touched = await threads.changes.touch(first.id)
        after = [one.id for one in await listed(threads)]
    assert (before, after) == ([second.id, first.id], [first.id, second.id])
    assert touched.title == "first"


async def test_threads_expire_in_small_batches_but_never_one_that_is_being_answered(database_url: str) -> None:
    limits: dict[str, Any] = {"try_again_seconds": 0.02, "clean_seconds": 0, "removed_threads": 2}
    async with opened(database_url, **limits) as threads:
        old = [(await threads.store.create("me", "solo", "old")).id for _ in range(5)]
        running = await threads.store.create("me", "solo", "running")
        young = await threads.store.create("me", "solo", "young")
        async with threads.turns.turn(running.id, Message("user", "wait"), "call", wait_seconds=0) as turn:
            for id_ in (*old, running.id):
                await _set_age(threads, id_, days=3)
            await _set_age(threads, young.id, days=1)
            threads.expire_days = 2

            async def are_gone() -> bool:
                return {one.id for one in await listed(threads)} == {running.id, young.id}

            await eventually(are_gone, what="the removal of old threads")
            await turn.end(ExchangeOutcome(Message("assistant", "done")))
        assert {one.id for one in await listed(threads)} == {running.id, young.id}  # which has changed now


async def test_threads_are_kept_unless_they_shall_expire(database_url: str) -> None:
    async with opened(database_url, try_again_seconds=0.01, clean_seconds=0) as threads:
        thread = await threads.store.create("me", "solo")
        await _set_age(threads, thread.id, days=4000)
        cleaned: list[int] = []
        original = threads.long_calls.remove_expired

        async def counted(_: float) -> None:
            cleaned.append(1)
            if len(cleaned) == 1:
                raise OverflowError("a fault that is none of the database")
            await original(0)

        threads.long_calls.remove_expired = counted  # type: ignore[method-assign]
        await eventually(lambda: len(cleaned) > 2, what="further rounds of the cleaner")
        assert [one.id for one in await listed(threads)] == [thread.id]


async def _set_age(threads: Threads, thread_id: str, *, days: float) -> None:
    long_ago = tables.now() - int(days * 86_400_000)
    aged = update(tables.threads).where(tables.threads.c.id == thread_id).values(updated_at=long_ago)
    await threads.store.database.write(lambda sql: sql.execute(aged))


async def peak_of(work: Awaitable[object]) -> int:
    """The bytes that some work takes at most."""
    tracemalloc.start()
    try:
        await work
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_history_of_a_thousand_turns_is_read_in_bounded_memory(database_url: str) -> None:
    turns_, results, room = 1_000, 200, Room(1_000, 16 * 1024 * 1024, 100_000)
    data = step("x" * 16 * 1024).data
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await _fill(threads, thread.id, turns_, results, data)
        async with threads.turns.turn(thread.id, Message("user", "warm"), "call", wait_seconds=0, room=room) as turn:
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        async with threads.turns.turn(thread.id, Message("user", "next"), "call", wait_seconds=0) as turn:
            peak = await peak_of(turn.read_history(room))
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
    read = sum(len(one.data) for message in turn.history.messages for one in message.steps)
    assert turn.history.left_out + len(turn.history.messages) // 2 == turns_ + 1
    assert room.tokens * 3 // 2 <= read <= room.tokens * 3  # what the window takes, of the 3.3 MB that are stored
    assert peak < 3 * room.tokens * 3


async def test_a_history_reads_no_steps_of_turns_that_have_failed(database_url: str) -> None:
    large = [step("x" * 1024 * 1024) for _ in range(4)]
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await use_tools(threads, thread.id, [step()])
        for _ in range(4):
            async with threads.turns.turn(thread.id, Message("user", "add"), "call", wait_seconds=0) as turn:
                turn.step_log = StepLog(16, steps=large)
                await turn.fail(CANCELLED)
        async with threads.turns.turn(thread.id, Message("user", "next"), "call", wait_seconds=0) as turn:
            peak = await peak_of(turn.read_history(ROOM))
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
    assert [message.steps for message in turn.history.messages] == [(), (step(),)]
    assert peak < 2 * 1024 * 1024  # 16 MB are stored


async def _fill(threads: Threads, thread_id: str, count: int, results: int, data: str) -> None:
    """Write turns, the last of them with a step each."""
    first = count - results + 1
    row: dict[str, Any] = {
        "thread_id": thread_id,
        "status": "complete",
        "question_images": [],
        "answer_images": [],
        "usage": {},
    }
    row |= {"question": "what", "answer": "that", "call_id": "call", "created_at": 0}
    size = {"bytes": len(data), "tokens": len(data) // 3, "steps_bytes": len(data)}
    rows = [
        {**row, "number": number, **(size if number >= first else dict.fromkeys(size, 8))}
        for number in range(1, count + 1)
    ]
    made = [
        {"thread_id": thread_id, "turn": number, "number": 0, "provider": "generic", "model": "m", "step": data}
        for number in range(first, count + 1)
    ]

    async def written(sql: Any) -> None:
        await sql.execute(insert(tables.turns), rows)
        await sql.execute(insert(tables.steps), made)
        await sql.execute(update(tables.threads).values(turns=count))

    await threads.store.database.write(written)
