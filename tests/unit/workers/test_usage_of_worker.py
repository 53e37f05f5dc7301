"""Usage over workers: changes of each worker reach the parent once, and each reads the usage of all."""

from __future__ import annotations

import asyncio

import pytest

from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.ledger.usage import UsageKey, UsageTable, Used
from pallas_gateway.workers.usage_of_worker import UsageOfWorker
from pallas_gateway.workers.usage_rows import MOST_ROWS, UsageAnswer, UsageAsked, UsageChanges, answers_of, counted
from pallas_gateway.workers.worker_messages import LONGEST_LINE, WorkerMessage, line_of, message_of


class Parent:
    """Takes the messages of workers as lines, and answers them at once."""

    def __init__(self, *, answers: bool = True) -> None:
        self.table = UsageTable()
        self.lines: list[bytes] = []
        self.worker = UsageOfWorker(self.take)
        self.other = UsageOfWorker(self.take)
        self.answers = answers
        self.asking = asyncio.Event()

    def take(self, message: WorkerMessage) -> None:
        line = line_of(message)
        self.lines.append(line)
        match message_of(line):
            case UsageChanges(day, rows):
                self.table.add_of_day(day, counted(rows))
            case UsageAsked(number, account):
                self.asking.set()
                if self.answers:
                    asyncio.get_running_loop().create_task(self.answer(number, account))

    async def answer(self, number: int, account: str | None) -> None:
        usage = await self.table.read(account)
        for answer in answers_of(number, usage):
            line = line_of(answer)
            self.lines.append(line)
            decoded = message_of(line)
            assert isinstance(decoded, UsageAnswer)
            self.worker.take(decoded)


def key(caller: str, agent: str = "echo") -> UsageKey:
    return UsageKey.of(f"key:{caller}", caller, agent)


async def test_a_worker_reads_its_latest_calls_and_those_that_others_have_reported() -> None:
    parent = Parent()
    parent.worker.add(key("anna"), Used(calls=1, output=3, cost=0.5))
    parent.other.add(key("anna"), Used(calls=1))
    before = await parent.worker.read("anna")
    parent.other.send_changes()
    parent.other.send_changes()
    parent.worker.add(key("ben"), Used(refused=1))
    anna, everything = await parent.worker.read("anna"), await parent.worker.read()

    assert before.today == before.total == {key("anna"): Used(calls=1, output=3, cost=0.5)}
    assert anna.today == anna.total == {key("anna"): Used(calls=2, output=3, cost=0.5)}
    assert everything.today == {**anna.today, key("ben"): Used(refused=1)}
    assert anna.is_whole


async def test_many_long_names_go_in_lines_that_can_be_read() -> None:
    parent = Parent()
    for number in range(3 * MOST_ROWS):
        name = f"{number:04}" + "\N{GRINNING FACE}" * 500
        parent.worker.add(UsageKey.of(name, name, "echo"), Used(calls=1))
    usage = await parent.worker.read()

    assert len(usage.today) == len(usage.total) == 3 * MOST_ROWS
    assert max(map(len, parent.lines)) < LONGEST_LINE
    assert len(parent.lines) > 9


async def test_without_its_parent_a_worker_says_that_it_stops() -> None:
    parent = Parent(answers=False)
    asked = asyncio.create_task(parent.worker.read())
    await parent.asking.wait()
    parent.worker.end()
    with pytest.raises(AgentUnavailableError):
        await asked
    with pytest.raises(AgentUnavailableError):
        await parent.worker.read("anna")


async def test_an_answer_to_a_request_that_has_left_is_dropped() -> None:
    parent = Parent(answers=False)
    asked = asyncio.create_task(parent.worker.read())
    await parent.asking.wait()
    asked.cancel()
    await asyncio.wait({asked})
    await parent.answer(1, None)
    parent.answers = True
    assert (await parent.worker.read()).today == {}
