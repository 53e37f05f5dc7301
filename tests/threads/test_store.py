"""Threads and turns in a real database of either kind."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, override

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.calls.call import Image, Message
from pallas_gateway.calls.questions import Question
from pallas_gateway.features.threads.records import (
    ExchangeOutcome,
    ExchangePage,
    ExchangeRecord,
    History,
    LeaseLostError,
    NewThread,
    NotLatestExchangeError,
    ThreadBusyError,
    ThreadLease,
    ThreadNotFoundError,
    ThreadsFullError,
    ThreadTooLargeError,
)
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.features.threads.sizes import Room
from pallas_gateway.features.threads.store import Store
from pallas_gateway.features.threads.thread_changes import ThreadChanges
from pallas_gateway.features.threads.turns import Exchanges
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.connections import Database, LeaseTerms
from tests.support.stored_threads import LONG, SHORT, listed, opened, say, turns_of
from tests.support.waiting import eventually, tick

PICTURE = Image("aGVsbG8=", "image/png")
ASKED = Message("user", "one")
ROOM = Room(1000, 16 * 1024 * 1024, 100_000)
QUESTION = Question("form", "Which year?", id="f00")


async def test_a_thread_keeps_what_was_said_in_order_and_replays_it(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo", "first words")
        question, answer = Message("user", "look", (PICTURE,)), Message("assistant", "seen\0 \ud83d", (PICTURE,))
        async with threads.turns.turn(thread.id, question, "call-1", wait_seconds=0) as turn:
            assert turn.history == History()
            [pending] = await turns_of(threads, thread.id)
            await turn.end(ExchangeOutcome(answer, "endTurn", {"input": 3}))
        [told] = await turns_of(threads, thread.id)
        async with threads.turns.turn(thread.id, Message("user", "again"), "call-2", wait_seconds=0, room=ROOM) as turn:
            history = turn.history.messages
            await turn.end(ExchangeOutcome(error_reason="llm_error", error="no"))

        found = await threads.store.find(thread.id, "me")

    stored = Message("assistant", "seen\N{REPLACEMENT CHARACTER} ?", (PICTURE,))
    assert (pending.status, pending.question, pending.ended_at) == ("pending", question, None)
    assert (told.number, told.status, told.question, told.call_id) == (1, "complete", question, "call-1")
    assert told.outcome == ExchangeOutcome(stored, "endTurn", {"input": 3})
    assert history == (question, stored)
    assert (found.turns, found.title, found.agent) == (2, "first words", "solo")
    assert found.updated_at >= found.created_at


async def test_a_thread_beyond_the_room_goes_on_over_all_connections(database_url: str) -> None:
    """A read that is left open keeps SQLite's snapshot, and the next write over its connection fails."""
    both = asyncio.Barrier(2)

    async def wait_for_the_other(connection: AsyncConnection) -> None:
        await connection.execute(select(1))
        await both.wait()

    async with opened(database_url) as threads:
        database = threads.store.database
        await asyncio.gather(*(database.read(wait_for_the_other) for _ in range(2)))
        thread = await threads.store.create("me", "solo")
        left_out = []
        for number in range(12):
            question = Message("user", f"{number}")
            async with threads.turns.turn(
                thread.id, question, "call", wait_seconds=0, room=Room(4, 10**6, 10**6)
            ) as turn:
                left_out.append(turn.history.left_out)
                await turn.end(ExchangeOutcome(Message("assistant", "said"), "endTurn"))

    assert left_out == [0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]


async def test_turns_that_failed_are_told_of_and_not_replayed(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        with pytest.raises(ZeroDivisionError):
            async with threads.turns.turn(thread.id, Message("user", "one"), "call", wait_seconds=0):
                raise ZeroDivisionError
        await say(threads, thread.id, "two")
        async with threads.turns.turn(thread.id, Message("user", "three"), "call", wait_seconds=0, room=ROOM) as turn:
            await turn.end(ExchangeOutcome(error_reason="llm_error", error="no"))

        said = [message.text for message in turn.history.messages]
        told = [(one.number, one.status, one.outcome.error_reason) for one in await turns_of(threads, thread.id)]
    assert said == ["two", "said two"]
    assert told == [(1, "error", "internal_error"), (2, "complete", None), (3, "error", "llm_error")]


async def test_an_answer_is_kept_although_its_client_leaves_while_it_is_written(database_url: str) -> None:
    database = Database(Secret(database_url), Path("/"))
    begun, blocked, writing = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")

        async def answered() -> None:
            async with threads.turns.turn(thread.id, Message("user", "one"), "call", wait_seconds=0) as turn:
                begun.set()
                await blocked.wait()
                writing.set()
                await turn.end(ExchangeOutcome(Message("assistant", "paid for"), "endTurn"))

        answering = asyncio.create_task(answered())
        await asyncio.wait_for(begun.wait(), 10)

        async def cancel_meanwhile(connection: AsyncConnection) -> None:
            await connection.execute(update(tables.threads).values(title="held"))
            blocked.set()
            await asyncio.wait_for(writing.wait(), 10)
            answering.cancel()
            await asyncio.sleep(0)

        await database.write(cancel_meanwhile)  # holds up all others that write to the thread
        await asyncio.wait({answering}, timeout=30)
        [told] = await turns_of(threads, thread.id)
        number = await say(threads, thread.id, "next", wait_seconds=0)
    await database.close()

    assert answering.cancelled()
    assert (told.status, told.outcome.answer) == ("complete", Message("assistant", "paid for"))
    assert number == 2


async def test_a_new_thread_whose_first_turn_fails_is_deleted_unless_it_was_kept(database_url: str) -> None:
    async def fail(threads: Threads, thread: NewThread, *, kept: bool) -> None:
        async with threads.turns.first_turn(thread, Message("user", "one"), "call") as turn:
            if kept:
                turn.keep()
            raise ZeroDivisionError

    kept, deleted, answered = (NewThread("me", "solo") for _ in range(3))
    async with opened(database_url) as threads:
        for thread in (kept, deleted):
            with pytest.raises(ZeroDivisionError):
                await fail(threads, thread, kept=thread is kept)
        async with threads.turns.first_turn(answered, Message("user", "one"), "call") as turn:
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        left = await listed(threads, "me", "solo", limit=10)
        told = [[(one.number, one.status) for one in await turns_of(threads, thread.id)] for thread in (kept, answered)]
        forgotten = await turns_of(threads, deleted.id)
        numbers = [await say(threads, thread.id, "two") for thread in (kept, answered)]
    assert {(thread.id, thread.turns) for thread in left} == {(kept.id, 1), (answered.id, 1)}
    assert (told, forgotten) == ([[(1, "error")], [(1, "complete")]], [])
    assert numbers == [2, 2]


async def test_threads_come_in_pages_the_last_changed_first(database_url: str) -> None:
    async with opened(database_url) as threads:
        made = [(await threads.store.create("me", "solo", str(number))).id for number in range(5)]
        await say(threads, made[0], "hello")
        pages, after = [], None
        while page := await listed(threads, "me", "solo", limit=2, after=after):
            pages.append([thread.id for thread in page])
            after = (int(page[-1].updated_at.timestamp() * 1000 + 0.5), page[-1].id)
    found = [one for page in pages for one in page]
    assert sorted(found) == sorted(made)
    assert found[0] == made[0]
    assert [len(page) for page in pages] == [2, 2, 1]


async def test_a_second_writer_waits_for_the_first_and_gives_up_in_the_end(database_url: str) -> None:
    async with opened(database_url) as threads, opened(database_url) as elsewhere:
        thread = await threads.store.create("me", "solo")
        async with threads.turns.turn(thread.id, Message("user", "one"), "call", wait_seconds=0) as turn:
            for others in (threads, elsewhere):
                with pytest.raises(ThreadBusyError):
                    await say(others, thread.id, "two", wait_seconds=0.1)
            waiting = [asyncio.create_task(say(others, thread.id, "three")) for others in (threads, elsewhere)]
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        numbers = sorted([await one for one in waiting])
    assert numbers == [2, 3]


async def test_a_copy_has_the_turns_up_to_one_and_goes_on_by_itself(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo", "a title")
        for text in ("one", "two", "three"):
            await say(threads, thread.id, text)
        copy = await threads.changes.fork(thread.id, 2)
        assert (copy.agent, copy.title, copy.turns) == ("solo", "a title", 2)
        assert (await threads.store.find(copy.id, "me")).id != thread.id
        assert await turns_of(threads, copy.id) == (await turns_of(threads, thread.id))[:2]
        assert await say(threads, copy.id, "other") == 3
        await threads.changes.remove(copy.id)
        assert [one.question.text for one in await turns_of(threads, thread.id)] == ["one", "two", "three"]
        assert (
            (await threads.changes.fork(thread.id, 99)).turns,
            (await threads.changes.fork(thread.id, 0)).turns,
        ) == (3, 0)

        async with threads.turns.turn(thread.id, Message("user", "four"), "call", wait_seconds=0) as turn:
            with pytest.raises(ThreadBusyError):
                await threads.changes.fork(thread.id, 4)
            assert (await threads.changes.fork(thread.id, 3)).turns == 3  # also while the next turn runs
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        with pytest.raises(ThreadTooLargeError):
            await ThreadChanges(threads.store.database, ThreadLimits(copied_bytes=10)).fork(thread.id, 4)
        await threads.changes.remove(thread.id)
        with pytest.raises(ThreadNotFoundError):
            await threads.changes.fork(thread.id, 1)


async def test_a_rating_stays_with_its_turn_and_is_deleted_with_the_thread(database_url: str) -> None:
    async with opened(database_url) as threads:
        changes, (thread, other) = threads.changes, [await threads.store.create("me", "solo") for _ in range(2)]
        for text in ("one", "two"):
            await say(threads, thread.id, text)
        before = await _bytes_of(threads, thread.id)
        await changes.rate(thread.id, 1, "bad", "ä" * 1000)
        given = await changes.rate(thread.id, 1, "good", "fine\0 \ud83d")
        sizes = [await _bytes_of(threads, thread.id)]
        first, second = await turns_of(threads, thread.id)
        assert (first.feedback, second.feedback) == (given, None)
        assert (given.rating, given.note) == ("good", "fine\N{REPLACEMENT CHARACTER} ?")
        assert [one.id for one in await listed(threads)] == [thread.id, other.id]
        assert [one.id for one in await listed(threads, rated=True)] == [thread.id]
        copy = await changes.fork(thread.id, 2)
        assert [one.feedback for one in await turns_of(threads, copy.id)] == [None, None]

        threads.quota.max_bytes = sum([await _bytes_of(threads, one.id) for one in (thread, other, copy)])
        with pytest.raises(ThreadsFullError):
            await changes.rate(thread.id, 1, "bad", "x" * 100)
        assert [one.feedback for one in await turns_of(threads, thread.id)] == [given, None]
        await changes.rate(thread.id, 1, "bad", "")
        for _ in range(2):
            await changes.unrate(thread.id, 1)
        sizes.append(await _bytes_of(threads, thread.id))
        assert sizes == [before + len(given.note.encode()), before]
        assert await listed(threads, rated=True) == []

        await changes.rate(thread.id, 2, "good", "")
        await changes.remove(thread.id)
        assert await threads.store.database.read(lambda sql: sql.scalar(select(tables.feedback.c.turn))) is None
        with pytest.raises(ThreadNotFoundError):
            await changes.rate(thread.id, 2, "good", "")


async def test_ratings_of_one_turn_at_once_leave_one_of_them(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await say(threads, thread.id, "one")
        before = await _bytes_of(threads, thread.id)
        notes = ["x" * size for size in range(8)]
        async with asyncio.TaskGroup() as group:
            for note in notes:
                group.create_task(threads.changes.rate(thread.id, 1, "bad", note))
        [turn] = await turns_of(threads, thread.id)
        assert turn.feedback is not None
        assert turn.feedback.note in notes
        assert await _bytes_of(threads, thread.id) == before + len(turn.feedback.note)


async def test_the_parameters_and_the_model_of_a_call_are_kept_and_count(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        params = {"system_append": "ä" * 1000}
        ended = ExchangeOutcome(Message("assistant", "fine"), "endTurn", model="gpt-x", params=params)
        async with threads.turns.turn(thread.id, ASKED, "call", wait_seconds=0) as turn:
            await turn.end(ended)
        [told] = await turns_of(threads, thread.id)
        assert told.outcome == ended
        assert await _bytes_of(threads, thread.id) > 2 * 1024 + 2000


async def test_a_turn_of_a_thread_that_was_deleted_meanwhile_finds_no_thread(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await threads.changes.remove(thread.id)
        with pytest.raises(ThreadNotFoundError):
            await say(threads, thread.id, "one", wait_seconds=30)


async def test_a_lease_is_renewed_while_its_turn_runs(database_url: str) -> None:
    async with opened(database_url) as threads, opened(database_url) as elsewhere:
        thread = await threads.store.create("me", "solo")
        often = Exchanges(threads.store, SHORT)  # as if the lease was that short; a busy machine loses none of a minute
        async with often.turn(thread.id, Message("user", "one"), "call", wait_seconds=0) as turn:
            first = await lease_until(threads)

            async def is_later() -> bool:
                return await lease_until(threads) > first + 2 * SHORT

            await eventually(is_later, what="renewals for two times of the lease")
            with pytest.raises(ThreadBusyError):
                await say(elsewhere, thread.id, "two", wait_seconds=0)
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        assert [one.status for one in await turns_of(elsewhere, thread.id)] == ["complete"]


async def lease_until(threads: Threads) -> float:
    found = await threads.database.read(lambda sql: sql.execute(select(tables.threads.c.lease_until)))
    return float(found.scalar_one()) / 1000


async def test_a_renewal_that_comes_after_the_end_is_no_loss_of_the_thread(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowToRenew(Store):
        begun, held, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @override
        async def renew(self, lease: ThreadLease) -> bool:
            self.begun.set()
            await self.held.wait()
            is_held = await super().renew(lease)
            self.answered.set()
            return is_held

    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        store = SlowToRenew(threads.database, LeaseTerms(LONG), threads.long_calls)
        async with Exchanges(store, SHORT).turn(thread.id, Message("user", "one"), "call", wait_seconds=0) as turn:
            await asyncio.wait_for(store.begun.wait(), 20)
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
            store.held.set()
            await asyncio.wait_for(store.answered.wait(), 20)
            await tick()
        assert [one.status for one in await turns_of(threads, thread.id)] == ["complete"]
    assert "thread taken over" not in caplog.text


@pytest.mark.parametrize("is_answered", [False, True], ids=["it runs on", "its answer comes"])
async def test_a_turn_that_another_process_cancels_is_cancelled_for_its_client_and_not_taken_over(
    is_answered: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")

        async def run() -> None:
            async with threads.turns.turn(thread.id, Message("user", "one"), "call", wait_seconds=0) as turn:
                await threads.changes.cancel(thread.id)
                if is_answered:
                    await turn.end(ExchangeOutcome(Message("assistant", "too late")))
                turn.look.set()
                await asyncio.Event().wait()

        with pytest.raises(LeaseLostError) as lost:
            await asyncio.wait_for(run(), 20)
    assert (lost.value.reason, str(lost.value)) == ("cancelled", "The call was cancelled.")
    assert "thread taken over" not in caplog.text


async def test_what_a_vanished_writer_left_is_an_error_and_the_thread_goes_on(database_url: str) -> None:
    async with opened(database_url, SHORT) as gone, opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        lease = await gone.store.begin_turn(thread.id, Message("user", "one"), "call")
        assert lease is not None
        assert await say(threads, thread.id, "two") == 2

        assert not await gone.store.renew(lease)
        assert not await gone.store.end_turn(lease, ExchangeOutcome(Message("assistant", "too late")))
        told = [(one.status, one.outcome.error_reason) for one in await turns_of(threads, thread.id)]
    assert told == [("error", "abandoned"), ("complete", None)]


async def test_a_pending_turn_whose_lease_is_over_reads_as_an_error_before_anybody_writes(database_url: str) -> None:
    async with opened(database_url, 0.001, process="killed") as threads:
        thread = await threads.store.create("me", "solo")
        await threads.store.begin_turn(thread.id, Message("user", "one"), "call")

        async def ended() -> ExchangeRecord | None:
            [turn] = await turns_of(threads, thread.id)
            return turn if turn.status != "pending" else None

        turn = await eventually(ended, what="the end of the lease")
    assert turn is not None
    assert (turn.status, turn.outcome.error_reason, turn.process) == ("error", "abandoned", None)


async def test_many_writers_of_one_thread_make_turns_without_gaps(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(opened(database_url)) for _ in range(2)]
        thread = await replicas[0].store.create("me", "solo")
        calls = [say(replicas[number % 2], thread.id, str(number), wait_seconds=60) for number in range(50)]
        numbers = await asyncio.gather(*calls)
        told = await turns_of(replicas[0], thread.id)
    assert sorted(numbers) == list(range(1, 51))
    assert [turn.number for turn in told] == list(range(1, 51))
    assert Counter(turn.question.text for turn in told) == Counter(str(number) for number in range(50))


async def test_a_page_of_turns_ends_where_they_become_too_much_and_the_next_goes_on(database_url: str) -> None:
    texts = ["x" * size for size in (10, 20, 400, 5000, 300, 300, 10)]
    async with opened(database_url, page_bytes=1000) as threads:
        thread = await threads.store.create("me", "solo")
        for text in texts:
            await say(threads, thread.id, text)
        pages, after, more = [], 0, True
        while more:
            page = await threads.store.turns_of(thread.id, limit=3, after=after)
            pages.append([turn.number for turn in page.turns])
            after, more = page.turns[-1].number, page.has_more
        nothing = await threads.store.turns_of(thread.id, limit=3, after=after)
    # By `limit`; one that is too large by itself; by size.
    assert pages == [[1, 2, 3], [4], [5], [6, 7]]
    assert nothing == ExchangePage((), has_more=False)


async def test_images_count_in_the_size_of_a_page(database_url: str) -> None:
    async with opened(database_url, page_bytes=1000) as threads:
        thread = await threads.store.create("me", "solo")
        for _ in range(2):
            question = Message("user", "look", (Image("A" * 400, "image/png"),))
            async with threads.turns.turn(thread.id, question, "call", wait_seconds=0) as turn:
                await turn.end(ExchangeOutcome(Message("assistant", "seen", (Image("B" * 400, "image/png"),))))
        page = await threads.store.turns_of(thread.id, limit=10, after=0)
    assert ([turn.number for turn in page.turns], page.has_more) == ([1], True)


@pytest.mark.parametrize(
    ("limits", "replayed", "left_out"),
    [
        ({}, ["one", "two", "thr\u00e9e"], 0),
        ({"replayed_turns": 2}, ["two", "thr\u00e9e"], 1),
        ({"replayed_bytes": 39}, ["one", "two", "thr\u00e9e"], 0),  # é is two bytes
        ({"replayed_bytes": 38}, ["two", "thr\u00e9e"], 1),
        ({"replayed_bytes": 28}, ["thr\u00e9e"], 2),  # the two would fit, but leave a quarter of the room free
        ({"replayed_bytes": 1}, [], 3),
    ],
    ids=str,
)
async def test_the_newest_turns_that_fit_are_replayed_and_the_others_counted(
    limits: dict[str, Any], replayed: list[str], left_out: int, database_url: str
) -> None:
    async with opened(database_url, **limits) as threads:
        thread = await threads.store.create("me", "solo")
        for text in ("one", "two", "thr\u00e9e"):
            await say(threads, thread.id, text)
        with pytest.raises(ZeroDivisionError):
            async with threads.turns.turn(thread.id, Message("user", "failed"), "call", wait_seconds=0):
                raise ZeroDivisionError
        room = threads.room_for(None)
        async with threads.turns.turn(thread.id, Message("user", "four"), "call", wait_seconds=0, room=room) as turn:
            await turn.end(ExchangeOutcome(error_reason="llm_error", error="no"))
    questions = [message.text for message in turn.history.messages if message.role == "user"]
    assert (questions, turn.history.left_out) == (replayed, left_out)


async def test_a_turn_takes_the_place_of_the_latest_one_once_it_is_answered(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        replayed: list[list[str]] = []

        async def ask(number: int, *, replaces: int | None = None, fails: bool = False) -> None:
            message = Message("user", f"{number}")
            begun = threads.turns.turn(thread.id, message, "call", wait_seconds=0, room=ROOM, replaces=replaces)
            async with begun as turn:
                assert turn.number == number
                replayed.append([one.text for one in turn.history.messages if one.role == "user"])
                failed = ExchangeOutcome(error_reason="llm_error", error="no")
                await turn.end(failed if fails else ExchangeOutcome(Message("assistant", f"heard {number}")))

        await ask(1)
        await ask(2)
        await ask(3, replaces=2)
        await ask(4, replaces=2, fails=True)
        await ask(5)
        await ask(6, replaces=5)
        await ask(7, replaces=6)
        await ask(8)
        for wrong in (7, 1, 9):
            with pytest.raises(NotLatestExchangeError):
                await ask(9, replaces=wrong)
        shown = await turns_of(threads, thread.id)
        copy = await threads.changes.fork(thread.id, 7)
        copied = await turns_of(threads, copy.id)

    assert replayed == [[], ["1"], ["1"], ["1"], ["1", "3"], ["1", "3"], ["1", "3"], ["1", "3", "7"]]
    assert [turn.replaces for turn in shown] == [None, None, 2, 2, None, 5, 5, None]
    assert [turn.replaces for turn in copied] == [None, None, 2, 2, None, 5, 5]


async def test_an_owner_stores_no_more_than_its_quota_until_it_deletes_something(database_url: str) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await say(threads, thread.id, "ä" * 5_000)
        picture = Message("user", "look", (Image("A" * 20_000, "image/png"),))
        async with threads.turns.first_turn(NewThread("me", "solo"), picture, "call") as turn:
            turn.keep()
            await turn.end(ExchangeOutcome(Message("assistant", "fine")))
        sizes = [await _bytes_of(threads, id_) for id_ in (thread.id, turn.lease.thread_id)]
        copy = await threads.changes.fork(thread.id, 1)
        assert await _bytes_of(threads, copy.id) == pytest.approx(sizes[0], abs=10)  # as counted by the database

        threads.quota.max_bytes = sum(sizes) + sizes[0]
        for refused in (
            threads.store.create("me", "solo"),
            threads.changes.fork(thread.id, 1),
            say(threads, thread.id, "more"),
            say_first(threads, NewThread("me", "solo")),
        ):
            with pytest.raises(ThreadsFullError, match="threads_max_bytes"):
                await refused
        assert await say_first(threads, NewThread("you", "solo")) == 1
        assert [one.status for one in await turns_of(threads, thread.id)] == ["complete"]
        await threads.changes.remove(copy.id)
        assert await say(threads, thread.id, "more") == 2
    assert [size > least for size, least in zip(sizes, (20_000, 20_000), strict=True)] == [True, True]


async def say_first(threads: Threads, thread: NewThread) -> int:
    async with threads.turns.first_turn(thread, ASKED, "call") as turn:
        turn.keep()
        await turn.end(ExchangeOutcome(Message("assistant", "fine")))
    return turn.number


async def _bytes_of(threads: Threads, thread_id: str) -> int:
    wanted = select(tables.threads.c.bytes).where(tables.threads.c.id == thread_id)
    return int((await threads.store.database.read(lambda sql: sql.execute(wanted))).scalar_one())
