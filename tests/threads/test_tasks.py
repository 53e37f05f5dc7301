"""Tasks in a real database of either kind: who may write them, and who goes on with them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.calls.call import Message
from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.calls.recording import Row
from pallas_gateway.calls.spending import Spending
from pallas_gateway.core.long_calls import recorder, rows
from pallas_gateway.core.long_calls.records import MOST_UNMOVED, Held, NewTask, TaskLostError, TooManyTasksError
from pallas_gateway.features.threads.records import (
    ClaimedExchange,
    ExchangeOutcome,
    QuestionNotOpenError,
    ThreadBusyError,
    ThreadLease,
)
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.shared.database.errors import DatabaseBusyError
from pallas_gateway.shared.database.tables import now, task_questions, task_steps, tasks
from tests.support.leases import let_leases_end
from tests.support.stored_threads import claim_turn, opened, task_of, turns_of
from tests.support.waiting import Gate, eventually, tick

ASKED = Message("user", "one")
FINE = ExchangeOutcome(Message("assistant", "fine"))
TURN, BEGAN = Row("turn", 1, "", {"said": "x"}), Row("began", 1, "call-1", {"approved": []})
WAITS = Row("waits", 1, "call-1", {})
YEAR, MONTH = Question("form", "Which year?", id="f00"), Question("form", "Which month?", id="f01")
ACCEPTED = Answer("accepted", {"year": 1})


async def begun(threads: Threads, **options: Any) -> ThreadLease:
    """Begin a turn with a task in a new thread; return its lease."""
    thread = await threads.store.create("me", "solo")
    lease = await threads.store.begin_turn(
        thread.id,
        ASKED,
        "call",
        lambda lease: replace(task_of(lease.thread_id, lease.turn, **options), holder=lease.holder),
    )
    assert lease is not None
    return lease


def held(lease: ThreadLease) -> Held:
    assert lease.task is not None
    return lease.task


async def append(threads: Threads, lease: ThreadLease, first: int, *new: Row, **changed: Any) -> None:
    await threads.database.write(lambda sql: rows.append(sql, held(lease), first, new, **changed))


async def ask(threads: Threads, lease: ThreadLease, *questions: Question, seconds: float = 60) -> None:
    async def written(sql: AsyncConnection) -> None:
        await rows.append(sql, held(lease), 0, [], status="input_required")
        for question in questions:
            await rows.ask(sql, held(lease).task_id, question, seconds)

    await threads.database.write(written)


async def status_of(threads: Threads, lease: ThreadLease) -> str | None:
    wanted = select(tasks.c.status).where(tasks.c.id == held(lease).task_id)
    return await threads.database.read(lambda sql: sql.scalar(wanted))


async def test_of_many_processes_each_task_goes_to_one(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(opened(database_url, process="a"))
        leases = [await begun(first) for _ in range(12)]
        await let_leases_end(database_url)
        others = [await stack.enter_async_context(opened(database_url, process=f"p{number}")) for number in range(4)]

        async def claim_all(threads: Threads) -> list[ClaimedExchange]:
            found = []
            while (claimed := await claim_turn(threads)) is not None:
                found.append(claimed)
            return found

        claimed = await asyncio.gather(*map(claim_all, others * 2))
        found = sorted(one.lease.thread_id for of_process in claimed for one in of_process)
        assert found == sorted(lease.thread_id for lease in leases)
        with pytest.raises(TaskLostError):  # of the process that was paused
            await append(first, leases[0], 0, TURN)
        assert not await first.store.end_turn(leases[0], FINE)


async def test_a_task_of_a_living_process_is_left_alone_and_its_course_goes_to_the_next(database_url: str) -> None:
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        lease = await begun(first)
        await append(first, lease, 0, TURN, BEGAN, tokens=12, cost=0.5)
        await append(first, lease, 1, BEGAN)  # a write that is repeated after its connection was lost
        assert await claim_turn(second) is None
        with pytest.raises(ThreadBusyError):
            async with second.turns.turn(lease.thread_id, ASKED, "other", wait_seconds=0):
                pass
        await let_leases_end(database_url)
        with pytest.raises(ThreadBusyError):  # nor does another message end it
            async with second.turns.turn(lease.thread_id, ASKED, "other", wait_seconds=0):
                pass
        assert (await turns_of(second, lease.thread_id))[-1].can_be_resumed
        claimed = await claim_turn(second)
        assert claimed is not None
        assert (claimed.task.rows, claimed.task.runs, claimed.task.why) == ([TURN, BEGAN], 1, "killed")
        assert (claimed.task.tokens, claimed.task.cost, claimed.task.call_id) == (12, 0.5, "call")
        assert await second.store.end_turn(claimed.lease, FINE)
        count = select(func.count()).select_from(task_steps)
        assert await second.database.read(lambda sql: sql.scalar(count)) == 0
        assert await status_of(second, lease) == "completed"


async def test_a_task_that_needs_its_owner_goes_on_by_a_request_of_it_alone(database_url: str) -> None:
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        lease = await begun(first, by_owner=True)
        await ask(first, lease, YEAR)
        await let_leases_end(database_url)
        assert (await turns_of(second, lease.thread_id))[-1].asks == (YEAR,)
        await second.give(lease.thread_id, 1, {YEAR.id: ACCEPTED})
        assert await claim_turn(second) is None
        assert await claim_turn(second, owner="you") is None
        claimed = await claim_turn(second, owner="me")
        assert claimed is not None
        assert (claimed.task.answers, claimed.task.why) == ({YEAR.id: ACCEPTED}, "owner")


async def test_a_task_waits_until_each_question_has_an_answer_and_the_first_answer_counts(database_url: str) -> None:
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        lease = await begun(first)
        await append(first, lease, 0, TURN, WAITS)
        await ask(first, lease, YEAR, MONTH)
        await ask(first, lease, YEAR)  # the same write again
        await first.store.leave_turn(lease, 0)
        assert await claim_turn(second) is None
        with pytest.raises(QuestionNotOpenError):
            await second.give(lease.thread_id, 1, {YEAR.id: ACCEPTED, "unknown": ACCEPTED})
        await second.give(lease.thread_id, 1, {YEAR.id: ACCEPTED})
        with pytest.raises(QuestionNotOpenError):
            await first.give(lease.thread_id, 1, {YEAR.id: Answer("declined")})
        assert await claim_turn(second) is None
        assert await status_of(second, lease) == "input_required"
        await first.give(lease.thread_id, 1, {MONTH.id: Answer("declined")})
        claimed = await claim_turn(second)
        assert claimed is not None
        assert claimed.task.answers == {YEAR.id: ACCEPTED, MONTH.id: Answer("declined")}
        assert claimed.task.why == "answered"


async def test_a_question_of_a_task_at_rest_expires_and_the_task_goes_on(database_url: str) -> None:
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        lease, running = await begun(first), await begun(second)
        await ask(first, lease, YEAR, seconds=0)
        await ask(second, running, YEAR, seconds=0)  # which its process ends itself
        await first.store.leave_turn(lease, 0)
        await second.database.write(rows.expire_questions)
        claimed = await claim_turn(second)
        assert claimed is not None
        assert (claimed.lease.thread_id, claimed.task.answers) == (lease.thread_id, {YEAR.id: Answer("expired")})
        assert await status_of(second, running) == "input_required"


async def test_a_task_that_ends_its_processes_waits_longer_each_time_and_is_given_up(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        lease = await begun(threads)
        pauses, pause = [], select(tasks.c.not_before - now())
        for run in range(MOST_UNMOVED):
            await let_leases_end(database_url)
            if run:
                assert await claim_turn(threads) is None  # its pause is not over
                await threads.database.write(lambda sql: sql.execute(update(tasks).values(not_before=0)))
            assert await claim_turn(threads) is not None
            pauses.append(await threads.database.read(lambda sql: sql.scalar(pause)) or 0)
        assert pauses == sorted(pauses)
        await let_leases_end(database_url)
        await threads.database.write(lambda sql: sql.execute(update(tasks).values(not_before=0)))
        assert await claim_turn(threads) is None

        async def cleaned(sql: AsyncConnection) -> None:
            while (stuck := await rows.given_up(sql, "threads", 0)) is not None:
                await threads.store.give_up(sql, stuck)

        await threads.database.write(cleaned)
        [turn] = await turns_of(threads, lease.thread_id)
        assert (turn.status, turn.outcome.error_reason) == ("error", "gave_up")
        assert await status_of(threads, lease) == "failed"
        async with threads.turns.turn(lease.thread_id, ASKED, "next", wait_seconds=0) as following:
            await following.end(FINE)


async def test_a_step_or_a_hand_over_is_no_run_in_vain(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        lease = await begun(threads)
        unmoved = select(tasks.c.unmoved, tasks.c.claims)

        async def counts() -> tuple[int, int]:
            row = (await threads.database.read(lambda sql: sql.execute(unmoved))).one()
            return row.unmoved, row.claims

        await threads.store.leave_turn(lease, 0)
        claimed = await claim_turn(threads)
        assert claimed is not None
        assert await counts() == (1, 1)
        await append(threads, claimed.lease, 0, TURN, BEGAN)
        assert await counts() == (1, 1)  # its tool may end each process
        await append(threads, claimed.lease, 2, Row("result", 1, "call-1", {"result": {}}))
        assert await counts() == (0, 1)
        await threads.store.leave_turn(claimed.lease, 0)
        again = await claim_turn(threads)
        assert again is not None
        assert again.task.why == "drained"
        await threads.store.leave_turn(again.lease, 3600)
        assert await counts() == (0, 2)
        assert await claim_turn(threads) is None  # for an hour


async def test_the_owner_ends_a_task_wherever_it_runs_and_a_deleted_thread_has_none(database_url: str) -> None:
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        lease = await begun(first)
        await append(first, lease, 0, TURN)
        await second.changes.cancel(lease.thread_id)
        assert await status_of(first, lease) == "cancelled"
        with pytest.raises(TaskLostError):
            await append(first, lease, 1, BEGAN)
        assert await claim_turn(second) is None
        await second.changes.remove(lease.thread_id)
        assert await status_of(first, lease) is None


async def test_ended_tasks_are_deleted_after_a_while_and_one_that_expires_is_given_up(database_url: str) -> None:
    async with opened(database_url, process="a", try_again_seconds=0.05, clean_seconds=0, expired_seconds=0) as threads:
        ended, expired = await begun(threads), await begun(threads, seconds=0)
        await ask(threads, expired, YEAR)
        await threads.store.leave_turn(expired, 0)
        stuck = await threads.database.read(lambda sql: rows.given_up(sql, "threads", 0))
        assert stuck is not None
        assert stuck.id == held(expired).task_id
        assert await threads.store.end_turn(ended, FINE)

        async def is_removed() -> bool:
            return await status_of(threads, ended) is None

        await threads.database.write(lambda sql: sql.execute(update(tasks).values(expires_at=0)))
        await eventually(is_removed, what="the removal of the ended task")
        count = select(func.count()).select_from(task_questions).where(true())
        assert await threads.database.read(lambda sql: sql.scalar(count)) == 1


async def test_a_turn_that_cannot_move_fails_with_its_process(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        lease = await begun(threads, can_move=False)
        assert await threads.database.read(lambda sql: rows.given_up(sql, "threads", 0)) is None
        await let_leases_end(database_url)
        stuck = await threads.database.read(lambda sql: rows.given_up(sql, "threads", 0))
        assert stuck is not None
        assert await threads.database.write(lambda sql: threads.store.give_up(sql, stuck)) == "abandoned"
        assert await threads.database.write(lambda sql: threads.store.give_up(sql, stuck)) is None
        [turn] = await turns_of(threads, lease.thread_id)
        assert (turn.status, turn.outcome.error_reason) == ("error", "abandoned")
        assert await status_of(threads, lease) == "failed"


async def test_a_task_that_its_living_process_does_not_run_is_left_after_a_lease(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        lease, running = await begun(threads), await begun(threads)
        kept = [held(running).task_id]
        await threads.database.write(lambda sql: rows.free_others(sql, "a", kept, seconds=3600))
        assert await claim_turn(threads) is None
        await threads.database.write(lambda sql: sql.execute(update(tasks).values(updated_at=0)))
        await threads.database.write(lambda sql: rows.free_others(sql, "a", kept, seconds=3600))
        claimed = await claim_turn(threads)
        assert claimed is not None
        assert claimed.lease.thread_id == lease.thread_id
        assert await claim_turn(threads) is None


async def test_a_claim_whose_request_is_cancelled_meanwhile_is_left_again(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        lease = await begun(threads)
        await threads.store.leave_turn(lease, 0)
        claiming = asyncio.create_task(threads.long_calls.claim(true()))
        await tick()
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert await claim_turn(threads) is not None


async def test_calls_of_an_account_that_become_tasks_at_the_same_moment_are_counted_together(database_url: str) -> None:
    async with opened(database_url, process="a") as threads:
        first, second = [replace(task_of("x"), thread_id=None, turn=None, most=1) for _ in range(2)]
        gate = Gate()

        async def add(new: NewTask) -> None:
            async def added(sql: AsyncConnection) -> None:
                await rows.add(sql, new, "a")
                await gate.enter()

            await threads.database.write(added)

        adding = [asyncio.create_task(add(first))]
        await gate.wait_for_entered(1)
        adding.append(asyncio.create_task(add(second)))
        with pytest.raises(AssertionError):
            await gate.wait_for_entered(2, 0.3)  # it waits for the first
        gate.open()
        done = await asyncio.gather(*adding, return_exceptions=True)
    assert [type(one) for one in done] == [type(None), TooManyTasksError]


async def test_of_a_course_that_is_too_long_nothing_more_is_stored_and_no_other_process_goes_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LONGEST_COURSE", 1000)
    left: list[ThreadLease] = []
    async with opened(database_url, process="a") as first, opened(database_url, process="b") as second:
        short, long = await begun(first), await begun(first)
        for lease, size in ((short, 100), (long, 1000)):
            one = recorder.TaskRecorder(first.database, held(lease), 60, None, recorder.LatestStep())
            one.note(TURN, 1, 0.0)
            await one.store(BEGAN, 1, 0.0)
            one.on_boundary = partial(left.append, lease)
            one.note(Row("result", 1, "call-1", {"result": "x" * size}), 1, 0.0)
            await one.end()
            assert one.can_move is (lease is short)
        assert left == [short]
        await let_leases_end(database_url)
        claimed = await claim_turn(second)
        assert claimed is not None
        assert claimed.lease.thread_id == short.thread_id
        assert [row.kind for row in claimed.task.rows] == ["turn", "began", "result"]
        assert await claim_turn(second) is None
        [turn] = await turns_of(second, long.thread_id)
        assert (turn.status, turn.outcome.error_reason) == ("error", "abandoned")


async def test_a_task_that_is_stored_too_late_is_not_stored(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(database_url, process="a") as threads:
        new = replace(task_of("", 1), api="mcp", thread_id=None, turn=None)
        late: list[Any] = []

        async def gives_up(work: Any) -> None:
            late.append(work)
            raise DatabaseBusyError

        one = recorder.TaskRecorder(threads.database, new.held, 60, None, recorder.LatestStep())
        with monkeypatch.context() as patched:
            patched.setattr(threads.database, "write", gives_up)
            with pytest.raises(DatabaseBusyError):
                await one.begin(new, threads.long_calls, None, Spending(), None)
        with pytest.raises(TaskLostError):
            await threads.database.write(late[0])
        count = select(func.count()).select_from(tasks)
        assert await threads.database.read(lambda sql: sql.scalar(count)) == 0
