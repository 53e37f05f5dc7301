"""The watch of the database: one statement a second, and what it knows of the changes that were applied."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pallas_gateway.features.definitions.records import Snapshot
from pallas_gateway.features.definitions.watch import AgentWatch
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from tests.support.waiting import Changes, eventually, tick


class FakeSource:
    """Agents that change by their number alone; `error` is raised instead of any answer."""

    def __init__(self) -> None:
        self.present = 0
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.changes = Changes()

    async def number(self) -> int:
        self._ask("number")
        return self.present

    async def snapshot(self) -> Snapshot:
        self._ask("snapshot")
        return Snapshot(self.present)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.changes.announce()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def watching(source: FakeSource, seconds: float = 0.001) -> AsyncIterator[AgentWatch]:
    watch = AgentWatch(source, seconds=seconds)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()


async def test_agents_are_read_only_when_their_number_is_another_one() -> None:
    source = FakeSource()
    async with watching(source) as watch:
        await source.changes.until(lambda: len(source.asked) >= 5, 20, what="looks")
        assert source.asked.count("snapshot") == 1
        watch.changed.clear()
        source.present = 3
        await eventually(watch.changed.is_set, what="the change")
        assert watch.snapshot == Snapshot(3)


async def test_a_lower_number_is_a_change_too() -> None:
    """The database was restored from a backup."""
    source = FakeSource()
    source.present = 7
    watch = AgentWatch(source)
    await watch.look()
    source.present = 2
    await watch.look()
    assert watch.snapshot == Snapshot(2)


@pytest.mark.parametrize("error", [DatabaseUnavailableError(), KeyError("a column")])
async def test_a_database_that_is_away_is_logged_once_and_asked_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pallas.agents")
    source = FakeSource()
    async with watching(source) as watch:
        await eventually(watch.changed.is_set, what="the first look")
        source.error, before = error, len(source.asked)
        await source.changes.until(lambda: len(source.asked) > before + 3, 20, what="failed looks")
        assert (watch.is_away, watch.snapshot) == (True, Snapshot(0))
        source.error, source.present = None, 1
        await eventually(lambda: watch.snapshot == Snapshot(1), what="the change")
        assert not watch.is_away
    said = [record.message for record in caplog.records if "unexpected" not in record.message]
    assert said == ["agents of the database not read", "agents of the database read again"]
    assert len(caplog.records) == (2 if isinstance(error, DatabaseUnavailableError) else 3)


async def test_a_change_of_this_process_is_read_at_once_and_awaited_until_it_is_applied() -> None:
    source = FakeSource()
    async with watching(source, seconds=3600) as watch:
        await watch.look()
        watch.applied(0)
        source.present = 1
        waiting = asyncio.create_task(watch.until_applied())
        await eventually(lambda: watch.snapshot == Snapshot(1), what="the change")
        await tick()
        assert not waiting.done()
        watch.applied(1)
        assert await waiting


async def test_a_database_that_is_away_is_not_waited_for() -> None:
    source = FakeSource()
    source.error = DatabaseUnavailableError()
    assert not await AgentWatch(source).until_applied()
