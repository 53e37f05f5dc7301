"""Usage over workers: changes of each worker reach the parent once, and each reads the usage of all."""

import asyncio
from typing import Any

import pytest

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.features.usage.usage_table import MOST_ROWS, UsageOfWorker, UsageOfWorkers
from pallas_gateway.process.workers.channel import AskedParent
from tests.support.channels import channel
from tests.support.waiting import eventually


def key(caller: str, agent: str = "echo") -> UsageKey:
    return UsageKey.of(f"key:{caller}", caller, agent)


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
