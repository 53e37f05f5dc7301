"""The table of usage: days, totals, and a limited number of accounts.

Of several workers, changes of each reach the parent once, and each reads the usage of all.
"""

import asyncio
from typing import Any

import pytest

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.features.usage.usage_table import (
    MOST_ROWS,
    OTHERS,
    UsageOfWorker,
    UsageOfWorkers,
    UsageRows,
    UsageTable,
)
from pallas_gateway.process.workers.channel import AskedParent
from tests.support.channels import channel
from tests.support.waiting import eventually

NOON = 1_790_000_000 // 86_400 * 86_400 + 43_200.0


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


def key(caller: str, agent: str = "echo") -> UsageKey:
    return UsageKey.of(f"key:{caller}", caller, agent)


async def test_a_caller_with_many_names_has_one_row_for_each_agent() -> None:
    table = UsageTable(Clock())
    for number in range(5):
        table.add(UsageKey(f"token:{number}", "token:issuer sub ann", "echo"), Used(calls=1))
    assert (await table.read()).total == {UsageKey("token:0", "token:issuer sub ann", "echo"): Used(calls=5)}


async def test_addresses_take_no_rows_of_callers_with_a_key() -> None:
    table = UsageTable(Clock(), most=2)
    for number in range(5):
        table.add(UsageKey("anonymous", f"anonymous:2001:db8:{number}::/64", "echo"), Used(calls=1))
    for name in ("key:a", "key:b", "key:c"):
        table.add(UsageKey(name, name, "echo"), Used(calls=1))
        own = await table.read(name)
        assert (len(own.today), own.is_whole) == ((0, False) if name == "key:c" else (1, True))
    assert (await table.read()).total[UsageKey(OTHERS, OTHERS, "echo")] == Used(calls=4)


async def test_the_day_ends_at_midnight_and_the_total_stays() -> None:
    clock = Clock()
    table = UsageTable(clock)
    table.add(key("anna"), Used(calls=1, input=10))
    clock.now += 43_199
    table.add(key("anna"), Used(calls=1))
    before = await table.read("anna")
    clock.now += 1
    after = await table.read("anna")
    table.add(key("anna"), Used(calls=1))
    later = await table.read("anna")

    assert before.today == before.total == {key("anna"): Used(calls=2, input=10)}
    assert (before.day < after.day, after.today) == (True, {})
    assert later.today == {key("anna"): Used(calls=1)}
    assert later.total == {key("anna"): Used(calls=3, input=10)}
    assert later.since == NOON


async def test_accounts_beyond_the_limit_share_a_row_that_none_of_them_sees() -> None:
    table = UsageTable(Clock(), most=2)
    for name in ("anna", "ben", "cleo", "dora", "anna"):
        table.add(key(name), Used(calls=1))
    everything = await table.read()
    anna, cleo = await table.read("anna"), await table.read("cleo")

    assert everything.total[UsageKey(OTHERS, OTHERS, "echo")] == Used(calls=2)
    assert len(everything.today) == 3
    assert (anna.today, anna.is_whole) == ({key("anna"): Used(calls=2)}, True)
    assert (cleo.today, cleo.is_whole) == ({}, False)


async def test_what_callers_share_at_a_worker_they_share_in_the_sums_of_all() -> None:
    worker, parent = UsageRows(most=1), UsageTable(Clock())
    for name in ("anna", "ben"):
        worker.add(key(name), Used(calls=1))
    for one, used in worker.rows.items():
        parent.add(one, used)
    ben = await parent.read("ben")
    assert (await parent.read()).today == {key("anna"): Used(calls=1), UsageKey(OTHERS, OTHERS, "echo"): Used(calls=1)}
    assert (ben.today, ben.is_whole) == ({}, False)


def test_long_accounts_stay_different_and_names_are_cut() -> None:
    one, other = (UsageKey.of("k" * 5000, "a" * 5000 + end, "echo") for end in "12")
    assert one != other
    assert len(one.caller) + len(one.account) < 300


async def test_a_worker_reads_its_latest_calls_and_those_that_others_have_reported() -> None:
    parent = {"usage": UsageOfWorkers()}
    async with channel(worker={}, parent=parent) as ends, channel(worker={}, parent=parent) as others:
        worker, other = UsageOfWorker(AskedParent(ends.worker)), UsageOfWorker(AskedParent(others.worker))
        worker.add(key("anna"), Used(calls=1, output=3, cost=0.5))
        other.add(key("anna"), Used(calls=1))
        before = await worker.read("anna")
        other.send_changes()
        other.send_changes()
        await other.read("nobody")
        worker.add(key("ben"), Used(refused=1))
        anna, everything = await worker.read("anna"), await worker.read()

    assert before.today == before.total == {key("anna"): Used(calls=1, output=3, cost=0.5)}
    assert anna.today == anna.total == {key("anna"): Used(calls=2, output=3, cost=0.5)}
    assert everything.today == {**anna.today, key("ben"): Used(refused=1)}
    assert anna.is_whole


async def test_all_of_many_rows_arrive_before_the_answer() -> None:
    async with channel(worker={}, parent={"usage": UsageOfWorkers()}) as ends:
        worker = UsageOfWorker(AskedParent(ends.worker))
        for number in range(3 * MOST_ROWS + 1):
            name = f"{number:04}" + "\N{GRINNING FACE}" * 500
            worker.add(UsageKey.of(name, name, "echo"), Used(calls=1))
        usage = await worker.read()
    assert len(usage.today) == len(usage.total) == 3 * MOST_ROWS + 1


async def test_reports_do_not_pile_up_while_the_parent_hangs_and_nothing_is_lost() -> None:
    async with channel(worker={}, parent={"usage": UsageOfWorkers()}) as ends:
        worker = UsageOfWorker(AskedParent(ends.worker))
        transport: Any = ends.writer.transport
        transport.pause_reading()
        for _ in range(50):
            for number in range(300):
                worker.add(key(f"{number:0100}"), Used(calls=1))
            worker.send_changes()
            await asyncio.sleep(0)
        assert 0 < ends.worker.unread < 400_000
        transport.resume_reading()
        await eventually(lambda: not ends.worker.unread, what="the parent to read")
        usage = await worker.read()
    assert [used.calls for used in usage.total.values()] == [50] * 300


async def test_without_its_parent_a_worker_refuses_to_answer() -> None:
    class Hanging:
        asked = False

        async def read(self, _account: str | None) -> None:
            self.asked = True
            await asyncio.Event().wait()

    hanging = Hanging()
    async with channel(worker={}, parent={"usage": hanging}) as ends:
        worker = UsageOfWorker(AskedParent(ends.worker))
        asked = asyncio.create_task(worker.read())
        await eventually(lambda: hanging.asked, what="the question")
        ends.writer.close()
        with pytest.raises(AgentUnavailableError):
            await asked
        with pytest.raises(AgentUnavailableError):
            await worker.read("anna")
