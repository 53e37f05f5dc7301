"""The shared state in a database: its transactions, outages, leases and rows. What it decides: test_shared.py."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from sqlalchemy import Connection, Table, event, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.shared import counter_rows
from pallas_gateway.shared.database import migrating, tables
from pallas_gateway.shared.database.errors import DatabaseSchemaError
from pallas_gateway.shared.protocol import SharedAwayError, Wanted
from pallas_gateway.shared.sql import Sql
from tests.support.fair_time import hastened
from tests.support.older_tables import migrations_up_to, write_as_of_0_1_0
from tests.support.shared_state import OfDatabase, wanted
from tests.support.stored_threads import services, turns_of
from tests.support.waiting import eventually


@pytest.fixture
async def state(database_url: str) -> AsyncGenerator[OfDatabase]:
    async with OfDatabase(database_url) as opened:
        yield opened


def processes(state: OfDatabase, number: int = 2, lease_seconds: float = 1e9, **options: Any) -> list[Sql]:
    return [state.on(state.database(), lease_seconds, **options) for _ in range(number)]


async def is_admitted(one: Sql, lease: int, of: Wanted) -> bool:
    return (await one.acquire(lease, [of])).refused is None


async def released(one: Sql, lease: int) -> None:
    one.release(lease)
    await one._tasks.wait_until_idle()


async def rows(one: Sql, table: Table) -> int:
    found = await one._database.read(lambda sql: sql.execute(select(func.count()).select_from(table)))
    return int(found.scalar_one())


async def executed(one: Sql, statement: str) -> None:
    await one._database.write(lambda sql: sql.execute(text(statement)))


async def alive_until(one: Sql) -> float:
    until = select(tables.processes.c.alive_until).where(tables.processes.c.process == one._process)
    return float((await one._database.read(lambda sql: sql.execute(until))).scalar_one()) / 1000


# Transactions


async def test_processes_that_lock_many_counters_in_any_order_never_block_each_other(state: OfDatabase) -> None:
    made = processes(state, 4)
    per: dict[str, Any] = {"minute": 1000, "at_once": 1000, "tokens": 10**9}

    async def call(one: Sql, lease: int, account: str, agent: str) -> None:
        of = [wanted(*key, scope=scope, **per) for scope, key in enumerate([(account,), ("", agent), (account, agent)])]
        assert (await one.acquire(lease, of)).refused is None
        assert (await one.add(of, 1)).refused is None
        one.release(lease)

    leases = iter(range(1, 1000))
    accounts, agents = ("key:ann", "key:bob", "key:ci-1"), ("echo", "search")
    calls = [call(one, next(leases), c, a) for c in accounts for a in agents for one in made for _ in range(10)]
    await asyncio.gather(*calls)
    for one in made:
        await one._tasks.wait_until_idle()
        assert one._database.is_up
    assert await rows(made[0], tables.call_leases) == 0
    assert await rows(made[0], tables.counted_calls) == 3 * 240
    stored = await made[0]._database.read(lambda sql: sql.execute(select(tables.counters)))
    assert sum(row.tokens for row in stored) == 3 * 240


async def test_what_is_asked_at_one_moment_is_decided_in_one_transaction(
    state: OfDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = processes(state, 1)
    of = wanted(minute=50, at_once=50)
    assert await is_admitted(one, 1, of)
    write, begun = one._database.write, list[str]()

    async def noted(work: Any, **options: Any) -> Any:
        begun.append(options["share"])
        return await write(work, **options)

    monkeypatch.setattr(one._database, "write", noted)
    asked = [one.acquire(lease, [of]) for lease in range(2, 42)]
    answers = await asyncio.gather(*asked, one.add([of], 1))
    assert [one.refused for one in answers] == [None] * 41
    assert begun == ["calls"]


async def test_a_transaction_that_hangs_is_given_up_and_never_counts(state: OfDatabase) -> None:
    one, two = processes(state, answer_seconds=20)
    of = wanted(minute=5, at_once=5)
    await one.acquire(1, [of])
    await released(one, 1)
    locked, release = asyncio.Event(), asyncio.Event()

    async def hold(sql: AsyncConnection) -> None:
        await sql.execute(select(tables.counters).with_for_update())
        locked.set()
        await release.wait()

    holding = asyncio.create_task(two._database.write(hold, seconds=60))
    await locked.wait()
    with pytest.raises(SharedAwayError):
        await hastened(one.acquire(2, [of]))
    assert (one.counts, one.is_available) == (False, True)
    with pytest.raises(SharedAwayError):  # at once
        await one.acquire(3, [of])
    release.set()
    await holding
    await one._database._transactions.wait_until_idle()
    assert await rows(two, tables.call_leases) == 0
    assert await rows(two, tables.counted_calls) == 1
    await one._database.try_out()
    assert await is_admitted(one, 4, of)


async def test_a_call_without_a_free_lease_asks_again_after_a_pause(state: OfDatabase) -> None:
    one, two = processes(state, release_seconds=20)
    of = wanted(at_once=1)
    assert await is_admitted(two, 1, of)
    asking = asyncio.create_task(is_admitted(one, 1, of))
    await eventually(lambda: one._deciding is not None and one._deciding.done(), what="the first answer")
    await released(two, 1)
    assert await hastened(asking)


async def test_a_call_that_is_cancelled_as_its_answer_comes_keeps_no_lease(
    state: OfDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = processes(state, 1)
    asking = asyncio.create_task(one.acquire(1, [wanted(at_once=1)]))
    give = one._give

    def cancelled(*given: Any) -> None:
        give(*given)
        asking.cancel()

    monkeypatch.setattr(one, "_give", cancelled)
    await asyncio.wait({asking})
    assert asking.cancelled()
    await one._tasks.wait_until_idle()
    assert await rows(one, tables.call_leases) == 0


# Leases


async def test_leases_are_renewed_as_long_as_their_process_lives(state: OfDatabase) -> None:
    one, other = processes(state, lease_seconds=40)
    of = wanted(at_once=1)
    await one.acquire(1, [of])
    assert await alive_until(one) == state.clock.wall + 40

    async def is_renewed() -> bool:
        return await alive_until(one) == state.clock.wall + 40

    for _ in range(8):
        await state.clock.move(11)
        await eventually(is_renewed, what="the renewal")
    await state.kill(one)
    assert await is_admitted(other, 1, of)
    await other.remove_expired(0)
    assert await rows(other, tables.processes) == await rows(other, tables.call_leases) == 1


async def test_an_orderly_stop_ends_the_leases_of_its_process(state: OfDatabase) -> None:
    stopped, other = processes(state)
    await stopped.acquire(1, [wanted(at_once=1)])
    await stopped.close()
    assert await rows(other, tables.call_leases) == await rows(other, tables.processes) == 0
    assert await is_admitted(other, 1, wanted(at_once=1))


async def test_what_a_process_holds_is_what_the_database_has_after_an_outage(state: OfDatabase) -> None:
    one, two = processes(state)
    of = wanted(at_once=2)
    for lease in (1, 2):
        assert await is_admitted(one, lease, of)
    one._database.is_up = False
    with pytest.raises(SharedAwayError):
        await one.acquire(3, [of])
    one.release(1)
    one.hold(4, [of, wanted(scope=2, minute=1)])
    one._database.is_up = True
    assert not await is_admitted(two, 1, of)  # as the database has it
    await one.add([of], 0)
    await eventually(lambda: one._renew_at > 0, what="the comparison of leases")
    await one._tasks.wait_until_idle()
    assert not await is_admitted(two, 1, of)  # the call that began alone is counted now
    await released(one, 4)
    assert await is_admitted(two, 1, of)


# Rows


async def test_rows_that_no_longer_count_are_removed(state: OfDatabase) -> None:
    (one,) = processes(state, 1)
    for lease, name in enumerate(("key:idle", "key:runs", "key:spent"), 1):
        await one.acquire(lease, [wanted(name, minute=5, at_once=5, tokens=5)])
    for lease in (1, 3):
        await released(one, lease)
    await one.add([wanted("key:spent", tokens=5)], 5)
    await one.first("key", "value", 10)
    await one.remove_expired(0)
    assert await rows(one, tables.counters) == await rows(one, tables.counted_calls) == 3
    assert await rows(one, tables.used_states) == 1
    await state.clock.move(61)
    await one.remove_expired(60)
    assert await rows(one, tables.counters) == 3
    assert await rows(one, tables.used_states) == 1
    await one.remove_expired(0)
    assert await rows(one, tables.counters) == 2
    assert await rows(one, tables.counted_calls) == await rows(one, tables.used_states) == 0
    await executed(one, "UPDATE pallas_counters SET day = day - 1")
    await one.remove_expired(0)
    assert await rows(one, tables.counters) == 1
    assert await is_admitted(one, 4, wanted("key:spent", minute=5, at_once=5, tokens=5))


async def test_no_call_stays_without_its_counter_when_time_passes_between_the_statements(state: OfDatabase) -> None:
    def let_pass(sql: Connection, milliseconds: int) -> None:
        for table, name in ((tables.counted_calls, "began_at"), (tables.counters, "touched_at")):
            sql.execute(update(table).values({name: table.c[name] - milliseconds}))

    (one,) = processes(state, 1)
    await one.acquire(1, [wanted(minute=5)])
    await one._database.write(lambda sql: sql.run_sync(let_pass, 60_500))  # it counts 9.5 s more
    deleted = list[str]()

    def ten_seconds_pass(sql: Connection, *executed: Any) -> None:
        if "DELETE" in executed[1]:
            deleted.append(executed[1])
            if len(deleted) == 1:
                let_pass(sql, 10_000)

    engine = one._database._engine.sync_engine
    event.listen(engine, "after_cursor_execute", ten_seconds_pass)
    await one._database.write(partial(counter_rows.clean, seconds=10))
    event.remove(engine, "after_cursor_execute", ten_seconds_pass)
    assert len(deleted) == 2
    assert await rows(one, tables.counted_calls) <= await rows(one, tables.counters)
    assert await is_admitted(one, 2, wanted(minute=5))


async def test_tables_of_0_1_0_keep_what_they_have(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config, id_ = migrations_up_to("0011", tmp_path), migrating._config, "1" * 32

    def older_config(connection: Connection | None = None) -> Config:
        changed = config(connection)
        changed.set_main_option("script_location", str(folder))
        return changed

    with monkeypatch.context() as older:
        older.setattr(migrating, "_config", older_config)
        async with services(database_url) as stored:
            assert await stored.states.use("ticket", 600)
    await write_as_of_0_1_0(database_url, [id_], [("complete", "hello")])
    async with services(database_url) as stored:
        assert [turn.question.text for turn in await turns_of(stored.threads, id_)] == ["one"]
        assert not await stored.states.use("ticket", 600)
        assert await is_admitted(stored.shared, 1, wanted(minute=1))
        assert not await is_admitted(stored.shared, 2, wanted(minute=1))
    monkeypatch.setattr(migrating, "_config", older_config)
    with pytest.raises(DatabaseSchemaError, match=r"at version \d+, this gateway knows up to 0011"):
        async with services(database_url):
            pass
