"""The name of the process that runs the call of a thread, in the thread's lease."""

from dataclasses import replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.calls.call import Message
from pallas_gateway.core.long_calls.records import NewTask
from pallas_gateway.features.threads.records import ExchangeOutcome, NewThread, ThreadLease
from pallas_gateway.features.threads.service import Threads
from pallas_gateway.shared.database.connections import Database
from tests.support.stored_threads import claim_turn, opened, task_of, turns_of

ASKED = Message("user", "one")
FINE = ExchangeOutcome(Message("assistant", "fine"))
OLDER_BEGINS = (
    "INSERT INTO pallas_threads (id, owner, agent, created_at, updated_at, turns, lease_holder, lease_until, bytes) "
    "VALUES ('t', 'me', 'solo', 1, 1, 1, 'unguessable', 32503680000000, 0)",
    "INSERT INTO pallas_turns (thread_id, number, status, question, question_images, answer_images, usage, call_id, "
    "created_at) VALUES ('t', 1, 'pending', 'one', '[]', '[]', '{}', 'call', 1)",
)
"""As a gateway with tables of version 0003 begins a turn."""


async def process_of(threads: Threads, thread_id: str) -> str | None:
    return (await turns_of(threads, thread_id))[-1].process


def task_of_lease(lease: ThreadLease) -> NewTask:
    return replace(task_of(lease.thread_id, lease.turn), holder=lease.holder)


async def test_every_process_reads_which_one_runs_the_call_of_a_pending_turn(database_url: str) -> None:
    async with opened(database_url, process="a") as a, opened(database_url, process="b") as b:
        new = NewThread("me", "solo")
        async with a.turns.first_turn(new, ASKED, "call") as turn:
            turn.keep()
            assert await process_of(b, new.id) == "a"
            await turn.end(FINE)
        assert await process_of(b, new.id) is None
        async with b.turns.turn(new.id, ASKED, "call", wait_seconds=0) as turn:
            assert await process_of(a, new.id) == "b"
            assert [one.process for one in await turns_of(a, new.id)] == [None, "b"]
            await a.changes.cancel(new.id)
            assert await process_of(a, new.id) is None
            turn.is_ended = True


async def test_the_process_that_resumes_a_turn_is_that_of_its_call(database_url: str) -> None:
    async with opened(database_url, process="a") as a, opened(database_url, process="b") as b:
        thread = await a.store.create("me", "solo")
        async with a.turns.turn(thread.id, ASKED, "call", wait_seconds=0, task=task_of_lease) as turn:
            await turn.leave()
        assert await process_of(b, thread.id) is None
        claimed = await claim_turn(b)
        assert claimed is not None
        async with b.turns.claimed_turn(claimed) as turn:
            assert await process_of(a, thread.id) == "b"
            await turn.end(FINE)
        assert await process_of(a, thread.id) is None


async def test_a_gateway_that_does_not_know_the_name_goes_on_with_newer_tables(database_url: str) -> None:
    async with opened(database_url, process="new") as threads:
        await executed(threads.database, *OLDER_BEGINS)
        [turn] = await turns_of(threads, "t")
    assert (turn.status, turn.process) == ("pending", None)


async def executed(database: Database, *statements: str) -> None:
    async def all_of_them(connection: AsyncConnection) -> None:
        for statement in statements:
            await connection.execute(text(statement))

    await database.write(all_of_them)
