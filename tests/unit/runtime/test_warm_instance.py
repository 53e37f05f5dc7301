"""A warm instance is used once, while it could have been made now, or thrown away."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import date
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pallas_gateway.runtime.warm_instance import WarmInstance
from pallas_gateway.tasks import TaskOwner
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

somebody: ContextVar[str] = ContextVar("somebody", default="nobody")


class Session:
    """Stands for a harness session; knows in whose context it was made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made_for = somebody.get()
        self.is_deleted = False

    async def delete(self) -> None:
        self.is_deleted = True


class Maker:
    def __init__(self) -> None:
        self.made: list[Session] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.begun = asyncio.Event()
        self.tasks = TaskOwner()
        self.warm: list[WarmInstance] = []

    def instance(self, **options: Any) -> WarmInstance:
        self.warm.append(WarmInstance(self.create, self.tasks, **options))
        return self.warm[-1]

    async def settled(self) -> None:
        await eventually(lambda: not any(one._is_making for one in self.warm), what="the instances")
        await self.tasks.wait_until_idle()

    async def create(self, name: str) -> Any:
        self.begun.set()
        await self.may_go_on.wait()
        self.made.append(Session(name))
        return self.made[-1]


@pytest.fixture
async def maker() -> AsyncGenerator[Maker]:
    it = Maker()
    async with it.tasks:
        yield it


async def test_it_is_made_in_nobodys_context_and_had_once(maker: Maker) -> None:
    warm = maker.instance()
    somebody.set("a caller")

    assert warm.take() is None
    warm.make_soon()
    await maker.settled()

    [made] = maker.made
    assert made.made_for == "nobody"
    assert cast("Any", warm.take()) is made
    assert warm.take() is None
    assert not made.is_deleted


async def test_one_is_enough(maker: Maker) -> None:
    warm = maker.instance()

    for _ in range(3):
        warm.make_soon()
    await maker.settled()
    warm.make_soon()
    await maker.settled()

    assert len(maker.made) == 1


async def test_an_old_one_is_thrown_away(maker: Maker) -> None:
    warm = maker.instance(fresh_seconds=-1)
    warm.make_soon()
    await maker.settled()

    assert warm.take() is None
    await maker.settled()
    assert maker.made[0].is_deleted


async def test_one_of_yesterday_is_thrown_away(maker: Maker) -> None:
    days = iter((date(2026, 1, 1), date(2026, 1, 2)))
    warm = maker.instance(today=lambda: next(days))
    warm.make_soon()
    await maker.settled()

    assert warm.take() is None
    await maker.settled()
    assert maker.made[0].is_deleted


@pytest.mark.parametrize("instruction", ["Obey {{file:rules.md}}", "Obey {{url:https://example.com/rules}}"])
async def test_none_is_made_where_instructions_are_read_for_each_instance(maker: Maker, instruction: str) -> None:
    warm = maker.instance()
    warm.only_if_alike([agent("Be kind."), agent(instruction)])

    warm.make_soon()
    await maker.settled()

    assert maker.made == []


async def test_closing_leaves_none_behind(maker: Maker) -> None:
    ready, late = maker.instance(), maker.instance()
    ready.make_soon()
    await maker.settled()
    maker.may_go_on.clear()
    maker.begun.clear()
    late.make_soon()
    await maker.begun.wait()

    await ready.close()
    await late.close()
    maker.may_go_on.set()
    await maker.settled()
    ready.make_soon()

    assert [made.is_deleted for made in maker.made] == [True, True]
    assert ready.take() is late.take() is None


async def test_one_that_cannot_be_made_is_tried_again(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("no room")]

    async def create(name: str) -> Any:
        if failures:
            raise failures.pop()
        return await maker.create(name)

    warm = WarmInstance(create, maker.tasks)
    maker.warm.append(warm)
    warm.make_soon()
    await maker.settled()
    warm.make_soon()
    await maker.settled()

    assert cast("Any", warm.take()) is maker.made[0]
    assert [record.getMessage() for record in caplog.records] == ["background task failed"]


def agent(instruction: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(instruction=instruction))
