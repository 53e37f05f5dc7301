"""Counters in the database: the same decisions as in memory, for any number of processes on it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, override

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule
from sqlalchemy import event, func, select, text, update

from pallas_gateway.config.model.limits import LimitsSettings
from pallas_gateway.database import migrating, tables
from pallas_gateway.database.connections import Database
from pallas_gateway.database.errors import DatabaseSchemaError, DatabaseUnavailableError
from pallas_gateway.database.migrating import migrate
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.ledger import counter_rows
from pallas_gateway.ledger.counters import Counters
from pallas_gateway.ledger.protocol import CallEntry
from pallas_gateway.ledger.rules import Rules
from pallas_gateway.ledger.stored_counters import StoredCounters
from tests.support.fair_time import hastened
from tests.support.older_tables import migrations_up_to, write_as_of_0006
from tests.support.stored_threads import services, turns_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from alembic.config import Config
    from sqlalchemy import Connection, Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.ledger.rules import Rule

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2
CALLERS, AGENTS = ("key:ann", "key:bob", "key:ci-1"), ("echo", "search")
AGES = 1e9


def rules(*of: dict[str, Any]) -> Rules:
    return Rules(LimitsSettings.model_validate({"rules": of}))


def entry(caller: str = "key:ann", agent: str = "echo", *, parent: str | None = None) -> CallEntry:
    return CallEntry("c", agent, caller, caller, None, "mcp", parent)


class Replica:
    """The counters of one process, and the rules of its gateway."""

    def __init__(self, database: Database, of: Rules, lease_seconds: float, **options: Any) -> None:
        self.database = database
        self.rules = of
        options = {"release_seconds": 0, "answer_seconds": 60, **options}
        self.counters = StoredCounters(database, lease_seconds, is_open=lambda: True, **options)

    async def begin(self, asked: CallEntry) -> int | None:
        return await self.counters.begin(self._matching(asked), asked)

    async def is_admitted(self, asked: CallEntry) -> bool:
        try:
            await self.begin(asked)
        except CallLimitedError:
            return False
        return True

    async def charge(self, asked: CallEntry, tokens: int) -> Any:
        return await self.counters.charge(self._matching(asked), asked, tokens)

    async def end(self, lease: int) -> None:
        """End a call; returns when that is written."""
        self.counters.end(lease)
        await self.idle()

    async def idle(self) -> None:
        await self.counters._tasks.wait_until_idle()

    def _matching(self, asked: CallEntry) -> Sequence[Rule]:
        return self.rules.matching(asked.caller, asked.agent)


@asynccontextmanager
async def replicas(
    url: str, number: int, *of: dict[str, Any], lease_seconds: float = AGES, **options: Any
) -> AsyncGenerator[list[Replica]]:
    async with AsyncExitStack() as stack:
        made = [Replica(Database(Secret(url), Path("/")), rules(*of), lease_seconds, **options) for _ in range(number)]
        for one in made:
            stack.push_async_callback(one.database.close)
            stack.push_async_callback(one.counters.close)
        await made[0].database.write(lambda connection: connection.run_sync(migrate))
        yield made


async def rows(replica: Replica, table: Table) -> int:
    counting = select(func.count()).select_from(table)

    async def counted(sql: AsyncConnection) -> int:
        return (await sql.execute(counting)).scalar_one()

    return await replica.database.read(counted)


async def test_of_many_calls_at_once_at_two_processes_exactly_as_many_begin_as_a_rule_allows(database_url: str) -> None:
    wide, narrow = {"calls_per_minute": 100}, {"per": "agent", "calls_per_minute": 40, "agent": "echo"}
    async with replicas(database_url, 2, wide, narrow) as made:
        asked = [one.is_admitted(entry()) for _ in range(60) for one in made]
        assert sum(await asyncio.gather(*asked)) == 40
        # The refused calls took nothing of the first rule.
        others = [one.is_admitted(entry(agent="search")) for _ in range(60) for one in made]
        assert sum(await asyncio.gather(*others)) == 60


async def test_processes_that_lock_many_counters_in_any_order_never_block_each_other(database_url: str) -> None:
    per: dict[str, Any] = {"calls_per_minute": 1000, "calls_at_once": 1000, "tokens_per_day": 10**9}
    of = [{**per, "per": kind} for kind in ("caller", "agent", "caller_and_agent")]
    async with replicas(database_url, 4, *of) as made:

        async def call(replica: Replica, asked: CallEntry) -> None:
            lease = await replica.begin(asked)
            assert await replica.charge(asked, 1) is None
            assert lease is not None
            replica.counters.end(lease)

        calls = [call(one, entry(c, a)) for c in CALLERS for a in AGENTS for one in made for _ in range(10)]
        await asyncio.gather(*calls)
        for one in made:
            await one.idle()
            assert one.database.is_up
        assert await rows(made[0], tables.call_leases) == 0
        assert await rows(made[0], tables.counted_calls) == 3 * 240
        stored = await made[0].database.read(lambda sql: sql.execute(select(tables.counters)))
        assert sum(row.tokens for row in stored) == 3 * 240


async def test_leases_count_at_all_processes_until_their_call_ends(database_url: str) -> None:
    async with replicas(database_url, 2, {"calls_at_once": 2}) as (one, two):
        first, second = await one.begin(entry()), await two.begin(entry())
        assert first is not None
        assert second is not None
        assert not await one.is_admitted(entry())
        assert not await two.is_admitted(entry())
        assert await two.is_admitted(entry("key:bob"))
        await one.end(first)
        assert await two.is_admitted(entry())
        two.counters.end(second)
        assert await two.is_admitted(entry())  # the end is written with the next call of the same process


async def test_leases_of_a_killed_process_end_with_its_row(database_url: str) -> None:
    async with replicas(database_url, 2, {"calls_at_once": 1}, lease_seconds=60) as (killed, other):
        began = time()
        await killed.begin(entry())
        await killed.counters._renewing.cancel_all()
        assert began - 0.1 < await alive_until(killed) - 60 < time() + 0.1  # the database rounds
        assert not await other.is_admitted(entry())
        over = update(tables.processes).where(tables.processes.c.process == killed.counters._process)
        await other.database.write(lambda sql: sql.execute(over.values(alive_until=1)))
        assert await other.is_admitted(entry())
        await other.counters.remove_expired(0)
        assert await rows(other, tables.processes) == await rows(other, tables.call_leases) == 1


async def alive_until(replica: Replica) -> float:
    """When the leases of a process end, as the database has it."""
    until = select(tables.processes.c.alive_until).where(tables.processes.c.process == replica.counters._process)
    found = await replica.database.read(lambda sql: sql.execute(until))
    return float(found.scalar_one()) / 1000


async def test_a_lease_lasts_as_long_as_its_call(database_url: str) -> None:
    async with replicas(database_url, 1, {"calls_at_once": 1}, lease_seconds=0.04) as (one,):
        await one.begin(entry())
        first = await alive_until(one)

        async def is_later() -> bool:
            return await alive_until(one) > first + 0.08

        await eventually(is_later, what="renewals for two times of the lease")


async def test_an_orderly_stop_ends_the_leases_of_its_process(database_url: str) -> None:
    async with replicas(database_url, 2, {"calls_at_once": 1}) as (stopped, other):
        await stopped.begin(entry())
        await stopped.counters.close()
        assert await rows(other, tables.call_leases) == await rows(other, tables.processes) == 0
        assert await other.is_admitted(entry())


async def test_a_call_that_is_cancelled_while_it_is_admitted_keeps_no_lease(database_url: str) -> None:
    async with replicas(database_url, 1, {"calls_at_once": 1}) as (one,):
        await one.begin(entry("key:bob"))
        for steps in range(40):
            asking = asyncio.ensure_future(one.begin(entry()))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await one.end(await asking or 0)
            await one.idle()
            assert await rows(one, tables.call_leases) == 1


async def test_what_a_process_holds_is_what_the_database_has_after_an_outage(database_url: str) -> None:
    async with replicas(database_url, 2, {"calls_at_once": 2}) as (one, two):
        ended, running = await one.begin(entry()), await one.begin(entry())
        assert running is not None
        assert ended is not None
        one.database.is_up = False
        with pytest.raises(DatabaseUnavailableError):
            await one.begin(entry())
        one.counters.end(ended)
        alone = one.counters.hold(one.rules.all, entry())
        assert alone is not None
        one.database.is_up = True
        assert not await two.is_admitted(entry())  # as the database has it
        await one.charge(entry(), 0)
        await eventually(lambda: one.counters._renew_at > 0, what="the comparison of leases")
        await one.idle()
        assert not await two.is_admitted(entry())  # the call that began alone is counted now
        await one.end(alone)
        assert await two.is_admitted(entry())


async def test_a_transaction_that_hangs_is_given_up_and_never_counts(database_url: str) -> None:
    of = {"calls_per_minute": 5, "calls_at_once": 5}
    async with replicas(database_url, 2, of, answer_seconds=20) as (one, two):
        await one.end(await one.begin(entry("key:bob")) or 0)
        locked, release = asyncio.Event(), asyncio.Event()

        async def hold(sql: AsyncConnection) -> None:
            await sql.execute(select(tables.counters).with_for_update())
            locked.set()
            await release.wait()

        holding = asyncio.create_task(two.database.write(hold, seconds=60))
        await locked.wait()
        with pytest.raises(DatabaseUnavailableError):
            await hastened(one.begin(entry("key:bob")))
        with pytest.raises(DatabaseUnavailableError):  # at once
            await one.begin(entry("key:bob"))
        release.set()
        await holding
        await one.database._transactions.wait_until_idle()
        assert await rows(two, tables.call_leases) == 0
        assert await rows(two, tables.counted_calls) == 1
        await one.database.try_out()
        assert await one.is_admitted(entry())


async def test_callers_beyond_the_most_of_a_rule_share_one_counter(database_url: str) -> None:
    async with replicas(database_url, 2, {"calls_per_minute": 2}, most=2) as (one, two):
        for name in ("key:a", "key:b", "key:c", "key:d"):
            assert await one.is_admitted(entry(name))
        assert not await two.is_admitted(entry("key:e"))
        assert await two.is_admitted(entry("key:a"))
        assert await rows(one, tables.counters) == 3


async def test_addresses_take_no_places_of_callers_with_a_key(database_url: str) -> None:
    async with replicas(database_url, 1, {"calls_per_minute": 2}, most=2) as (one,):
        strangers = [replace(entry("anonymous"), account=f"anonymous:2001:db8:{number}::/64") for number in range(5)]
        assert [await one.is_admitted(stranger) for stranger in strangers] == [True] * 4 + [False]
        for name in ("key:a", "key:b"):
            assert [await one.is_admitted(entry(name)) for _ in range(3)] == [True, True, False]
        one.counters.use(one.rules)
        await one.counters.measure()
        assert one.counters.ratios() == {"rule-1": 1}


async def test_rows_that_no_longer_count_are_removed(database_url: str) -> None:
    limits = {"calls_per_minute": 5, "calls_at_once": 5, "tokens_per_day": 5}
    async with replicas(database_url, 1, limits) as (one,):
        leases = {name: await one.begin(entry(name)) for name in ("key:idle", "key:runs", "key:spent")}
        for name in ("key:idle", "key:spent"):
            await one.end(leases[name] or 0)
        await one.charge(entry("key:spent"), 5)
        await one.counters.remove_expired(0)
        assert await rows(one, tables.counters) == await rows(one, tables.counted_calls) == 3
        await executed(one, "UPDATE pallas_counted_calls SET began_at = began_at - 61000")
        await executed(one, "UPDATE pallas_counters SET touched_at = touched_at - 61000")
        await one.counters.remove_expired(0)
        assert await rows(one, tables.counters) == 2
        assert await rows(one, tables.counted_calls) == 0
        await executed(one, "UPDATE pallas_counters SET day = day - 1")
        await one.counters.remove_expired(0)
        assert await rows(one, tables.counters) == 1
        assert await one.is_admitted(entry("key:spent"))


async def test_no_call_stays_without_its_counter_when_time_passes_between_the_statements(database_url: str) -> None:
    def let_pass(sql: Connection, milliseconds: int) -> None:
        for table, name in ((tables.counted_calls, "began_at"), (tables.counters, "touched_at")):
            sql.execute(update(table).values({name: table.c[name] - milliseconds}))

    async with replicas(database_url, 1, {"calls_per_minute": 5}) as (one,):
        await one.begin(entry())
        await one.database.write(lambda sql: sql.run_sync(let_pass, 60_500))  # it counts 9.5 s more
        deleted = list[str]()

        def ten_seconds_pass(sql: Connection, *executed: Any) -> None:
            if "DELETE" in executed[1]:
                deleted.append(executed[1])
                if len(deleted) == 1:
                    let_pass(sql, 10_000)

        engine = one.database._engine.sync_engine
        event.listen(engine, "after_cursor_execute", ten_seconds_pass)
        await one.database.write(partial(counter_rows.clean, seconds=10))
        event.remove(engine, "after_cursor_execute", ten_seconds_pass)
        assert len(deleted) == 2
        assert await rows(one, tables.counted_calls) <= await rows(one, tables.counters)
        assert await one.is_admitted(entry())


async def test_a_budget_is_there_again_the_next_day(database_url: str) -> None:
    async with replicas(database_url, 2, {"tokens_per_day": 5}) as (one, two):
        assert await one.charge(entry(), 4) is None
        assert await two.charge(entry(), 1) is not None
        assert not await one.is_admitted(entry())
        await executed(one, "UPDATE pallas_counters SET day = day - 1")
        assert await two.is_admitted(entry())
        assert await one.charge(entry(), 4) is None
        assert await two.charge(entry(), 1) is not None


async def executed(replica: Replica, statement: str) -> None:
    await replica.database.write(lambda sql: sql.execute(text(statement)))


async def test_the_use_of_a_rule_is_that_of_its_busiest_counter(database_url: str) -> None:
    limits: list[dict[str, Any]] = [
        {"calls_per_minute": 4, "calls_at_once": 10},
        {"name": "day", "tokens_per_day": 10},
        {"calls_at_once": 9},
    ]
    async with replicas(database_url, 2, *limits) as (one, two):
        two.counters.use(two.rules)
        assert two.counters.ratios() == {}
        for name in ("key:ann", "key:ann", "key:bob"):
            await one.begin(entry(name))
        await one.charge(entry(), 7)
        await two.counters.measure()
        assert two.counters.ratios() == {"rule-1": 0.5, "day": 0.7, "rule-3": 2 / 9}
        two.counters.use(None)
        await two.counters.measure()
        assert two.counters.ratios() == {}


async def test_tables_of_version_0005_get_counters_and_keep_what_they_have(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config, id_ = migrations_up_to("0005", tmp_path), migrating._config, "1" * 32

    def older_config(connection: Connection | None = None) -> Config:
        changed = config(connection)
        changed.set_main_option("script_location", str(folder))
        return changed

    with monkeypatch.context() as older:
        older.setattr(migrating, "_config", older_config)
        async with services(database_url) as stored:
            assert await stored.states.use("ticket", 600)
    await write_as_of_0006(database_url, [id_], [("complete", "hello")])
    async with services(database_url) as stored:
        assert [turn.question.text for turn in await turns_of(stored.threads, id_)] == ["one"]
        assert not await stored.states.use("ticket", 600)
        limits = rules({"calls_per_minute": 1})
        assert await stored.counters.begin(limits.all, entry()) is None
        with pytest.raises(CallLimitedError):
            await stored.counters.begin(limits.all, entry())
    monkeypatch.setattr(migrating, "_config", older_config)
    with pytest.raises(DatabaseSchemaError, match=r"at version \d+, this gateway knows up to 0005"):
        async with services(database_url):
            pass


class Clock:
    now = 0.0
    wall = NOON

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


LIMITS = st.fixed_dictionaries(
    {
        "caller": st.sampled_from(["*", *CALLERS]),
        "agent": st.sampled_from(["*", *AGENTS]),
        "per": st.sampled_from(["caller", "agent", "caller_and_agent"]),
        "enforce": st.sampled_from([True, True, True, False]),
        "calls_per_minute": st.integers(1, 4),
    },
    optional={"calls_at_once": st.integers(1, 3), "tokens_per_day": st.integers(1, 30)},
)
ENTRIES = st.builds(entry, st.sampled_from(CALLERS), st.sampled_from(AGENTS), parent=st.sampled_from([None, None, "p"]))


class StoredAndInMemory(RuleBasedStateMachine):
    """Two processes on one database decide as one that counts in memory; time is moved by the test."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.made: list[Replica] = []

    @override
    def teardown(self) -> None:
        for one in self.made:
            self.runner.run(one.counters.close())
            self.runner.run(one.database.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize(of=st.lists(LIMITS, min_size=1, max_size=3))
    def begin(self, of: list[dict[str, Any]]) -> None:
        self.clock, compiled = Clock(), rules(*of)
        self.memory = Counters(lambda: self.clock.now, lambda: self.clock.wall)
        self.memory.use(compiled)
        url = Secret(f"sqlite:///{self.folder}/counters.db")
        self.made = [Replica(Database(url, self.folder), compiled, AGES) for _ in range(2)]
        for one in self.made:
            event.listen(one.database._engine.sync_engine, "connect", self._move_clock)
            self.runner.run(one.database.write(lambda connection: connection.run_sync(migrate)))

    def _move_clock(self, connection: Any, _: object) -> None:
        half_a_millisecond = 0.0005  # days as floats are not exact
        days = lambda _: 2440587.5 + (self.clock.wall + half_a_millisecond) / DAY  # noqa: E731
        connection.create_function("julianday", 1, days)

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 7.5, 20.0, 59.75, 60.0, 61.0, DAY]))
    def time_passes(self, seconds: float) -> None:
        self.clock.move(seconds)

    @rule(target=calls, asked=ENTRIES, at=st.integers(0, 1))
    def call(self, asked: CallEntry, at: int) -> Any:
        stored, lease = None, None
        refused: list[tuple[str, str]] = []
        try:
            lease = self.memory.begin(asked)
        except CallLimitedError as error:
            refused.append((str(error), error.rule))
        try:
            stored = self.runner.run(self.made[at].begin(asked))
        except CallLimitedError as error:
            refused.append((str(error), error.rule))
        assert not refused or refused == [refused[0]] * 2
        return at, stored, lease

    @rule(call=consumes(calls))
    def end(self, call: Any) -> None:
        at, stored, lease = call
        if stored is not None:
            self.runner.run(self.made[at].end(stored))
        if lease is not None:
            lease.end()

    @rule(asked=ENTRIES, tokens=st.integers(0, 20), at=st.integers(0, 1))
    def turn(self, asked: CallEntry, tokens: int, at: int) -> None:
        assert self.runner.run(self.made[at].charge(asked, tokens)) == self.memory.charge(asked, tokens)


TestStoredAndInMemory = StoredAndInMemory.TestCase
TestStoredAndInMemory.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
