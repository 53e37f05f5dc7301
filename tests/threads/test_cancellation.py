"""Clients that leave at any moment: no transaction stays open, no lease stays held, no empty thread stays behind."""

import asyncio
import gc
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.calls.call import Message
from pallas_gateway.features.threads.records import ExchangeOutcome, NewThread, ThreadBusyError
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from tests.support.postgresql import PostgreSql
from tests.support.stored_threads import listed, opened, say, turns_of
from tests.support.waiting import Gate, eventually

type Operation = Callable[[Threads, str], Coroutine[Any, Any, object]]

ANSWER = ExchangeOutcome(Message("assistant", "fine"), "endTurn")


@contextmanager
def without_garbage_collection() -> Generator[None]:
    """A collection would close what was left open."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def whole_turn(threads: Threads, thread_id: str) -> object:
    return await say(threads, thread_id, "hello", wait_seconds=5)


async def first_turn(threads: Threads, _: str) -> object:
    async with threads.turns.first_turn(NewThread("me", "solo"), Message("user", "hello"), "call") as turn:
        await turn.end(ANSWER)
    return turn.number


async def refused_turn(threads: Threads, _: str) -> object:
    with suppress(ZeroDivisionError):
        async with threads.turns.first_turn(NewThread("me", "solo"), Message("user", "hello"), "call"):
            raise ZeroDivisionError
    return None


OPERATIONS: dict[str, Operation] = {
    "create": lambda threads, _: threads.store.create("me", "solo"),
    "find": lambda threads, thread_id: threads.store.find(thread_id, "me"),
    "list threads": lambda threads, _: listed(threads, limit=10),
    "list turns": turns_of,
    "turn": whole_turn,
    "first turn": first_turn,
    "refused turn": refused_turn,
}


async def cancelled_at(threads: Threads, number: int, work: Coroutine[Any, Any, object], *, times: int = 1) -> bool:
    """Cancel `work` while its statement of that number is executed; whether it has got there.

    It is cancelled `times` times, whenever it waits again.
    """
    engine = threads.store.database._engine.sync_engine
    task, seen, loop = asyncio.ensure_future(work), 0, asyncio.get_running_loop()

    def cancel(left: int = times) -> None:
        if left and not task.done():
            task.cancel()
            loop.call_soon(cancel, left - 1)

    def note(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            cancel()

    event.listen(engine, "before_cursor_execute", note)
    try:
        await asyncio.wait({task}, timeout=30)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert task.done()
    if not task.cancelled():
        task.result()
    return seen >= number


def open_transactions(url: str, server: PostgreSql | None) -> str:
    """The transactions of others that a new connection meets; empty if there are none."""
    if server is not None:
        database = url.partition("@/")[2].partition("?")[0]
        idle = "SELECT state, query FROM pg_stat_activity WHERE datname = '{}' AND state LIKE 'idle in%'"
        return server.run(idle.format(database), database="postgres")
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        return str(error)
    finally:
        connection.close()
    return "a reader" if busy else ""


@pytest.fixture
def find_open(database_url: str, request: pytest.FixtureRequest) -> Callable[[], Awaitable[str]]:
    """Waits until no transaction is open; what is still open after a while."""
    server = None if database_url.startswith("sqlite") else request.getfixturevalue("server")

    async def find() -> str:
        left = ""

        def none_is_open() -> bool:
            nonlocal left
            left = open_transactions(database_url, server)
            return not left

        with suppress(AssertionError):
            await eventually(none_is_open, 20)
        return left  # another look might meet a transaction that has begun since

    return find


@pytest.mark.parametrize("times", [1, 5])
async def test_a_caller_that_leaves_during_any_statement_leaves_no_transaction_behind(
    times: int, database_url: str, find_open: Callable[[], Awaitable[str]]
) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        await say(threads, thread.id, "hello")
        with without_garbage_collection():
            for name, operation in OPERATIONS.items():
                number = 1
                while await cancelled_at(threads, number, operation(threads, thread.id), times=times):
                    assert await find_open() == "", f"{name}, at its statement {number}"
                    number += 1
                assert number > 1


@pytest.mark.parametrize("times", [1, 5])
async def test_a_turn_cancelled_at_any_statement_leaves_its_thread_free(database_url: str, times: int) -> None:
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        number = 1
        while await cancelled_at(threads, number, whole_turn(threads, thread.id), times=times):
            number += 1
            await say(threads, thread.id, "again", wait_seconds=5)
        told = await turns_of(threads, thread.id)
    failures = Counter(turn.outcome.error_reason for turn in told)
    assert failures.keys() <= {None, "cancelled"}
    assert failures["cancelled"] > 0
    assert [turn.number for turn in told] == list(range(1, len(told) + 1))


@pytest.mark.parametrize("times", [1, 5])
async def test_a_first_message_cancelled_at_any_statement_leaves_a_whole_thread_or_none(
    database_url: str, times: int
) -> None:
    async with opened(database_url) as threads:
        number = 1
        while await cancelled_at(threads, number, first_turn(threads, ""), times=times):
            number += 1

        async def settled() -> bool:
            found = await listed(threads, "me", "solo", limit=100)
            pages = [await turns_of(threads, thread.id) for thread in found]
            return all([turn.status for turn in turns] == ["complete"] for turns in pages)

        await eventually(settled, 5, what="only whole threads")


async def test_callers_that_leave_at_random_moments_lock_neither_the_database_nor_a_thread(
    database_url: str, find_open: Callable[[], Awaitable[str]]
) -> None:
    chance = random.Random(20260728)  # noqa: S311  no secret
    async with opened(database_url) as threads:
        thread = await threads.store.create("me", "solo")
        operations = list(OPERATIONS.values())

        async def leave_at_some_moment() -> None:
            work = asyncio.ensure_future(chance.choice(operations)(threads, thread.id))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            work.cancel()
            with suppress(asyncio.CancelledError, ThreadBusyError):
                await work

        with without_garbage_collection():
            for _ in range(60):
                await asyncio.gather(*(leave_at_some_moment() for _ in range(4)))
            left = await find_open()
        await say(threads, thread.id, "still there", wait_seconds=5)
        found = await listed(threads, "me", "solo", limit=200)
        statuses = {turn.status for one in found for turn in await turns_of(threads, one.id)}
    assert left == ""
    assert statuses <= {"complete", "error"}


async def test_a_transaction_that_takes_too_long_goes_on_and_its_connection_is_used_again(database_url: str) -> None:
    database, gate = Database(Secret(database_url), Path("/")), Gate()

    async def write(connection: AsyncConnection) -> None:
        await connection.execute(insert(tables.threads).values(VALUES))
        await gate.enter()

    async with opened(database_url) as threads:
        with pytest.raises(DatabaseUnavailableError, match="try again"):
            await database.write(write, seconds=0.05)
        gate.open()
        await eventually(lambda: listed(threads, "me", "solo", limit=1), what="the late commit")
        count = await database.read(lambda connection: connection.execute(select(tables.threads)))
    await database.close()
    assert len(count.all()) == 1


VALUES = {"id": "1" * 32, "owner": "me", "agent": "solo", "created_at": 1, "updated_at": 1, "turns": 0}
