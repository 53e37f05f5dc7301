"""A spare instance is used once, while it could have been made now, or thrown away."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import date
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pallas_gateway.runtime import warm_instance
from pallas_gateway.runtime.warm_instance import Spare
from pallas_gateway.tasks import TaskOwner

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
        self.tasks = TaskOwner()

    async def create(self, name: str) -> Any:
        await self.may_go_on.wait()
        self.made.append(Session(name))
        return self.made[-1]


@pytest.fixture
async def maker() -> AsyncGenerator[Maker]:
    it = Maker()
    async with it.tasks:
        yield it


async def test_it_is_made_in_nobodys_context_and_had_once(maker: Maker) -> None:
    spare = Spare(maker.create, maker.tasks)
    somebody.set("a caller")

    assert spare.take() is None
    spare.make()
    await maker.tasks.wait_until_idle()

    [made] = maker.made
    assert made.made_for == "nobody"
    assert cast("Any", spare.take()) is made
    assert spare.take() is None
    assert not made.is_deleted


async def test_one_is_enough(maker: Maker) -> None:
    spare = Spare(maker.create, maker.tasks)

    for _ in range(3):
        spare.make()
    await maker.tasks.wait_until_idle()
    spare.make()
    await maker.tasks.wait_until_idle()

    assert len(maker.made) == 1


async def test_an_old_one_is_thrown_away(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Spare(maker.create, maker.tasks)
    spare.make()
    await maker.tasks.wait_until_idle()
    monkeypatch.setattr(warm_instance, "FRESH_SECONDS", -1)

    assert spare.take() is None
    await maker.tasks.wait_until_idle()
    assert maker.made[0].is_deleted


async def test_one_of_yesterday_is_thrown_away(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_instance, "_today", lambda: date(2026, 1, 1))
    spare = Spare(maker.create, maker.tasks)
    spare.make()
    await maker.tasks.wait_until_idle()
    monkeypatch.setattr(warm_instance, "_today", lambda: date(2026, 1, 2))

    assert spare.take() is None
    await maker.tasks.wait_until_idle()
    assert maker.made[0].is_deleted


@pytest.mark.parametrize("instruction", ["Obey {{file:rules.md}}", "Obey {{url:https://example.com/rules}}"])
async def test_none_is_made_where_instructions_are_read_for_each_instance(maker: Maker, instruction: str) -> None:
    spare = Spare(maker.create, maker.tasks)
    spare.only_if_alike([agent("Be kind."), agent(instruction)])

    spare.make()
    await maker.tasks.wait_until_idle()

    assert maker.made == []


async def test_closing_leaves_none_behind(maker: Maker) -> None:
    ready, late = Spare(maker.create, maker.tasks), Spare(maker.create, maker.tasks)
    ready.make()
    await maker.tasks.wait_until_idle()
    maker.may_go_on.clear()
    late.make()

    await ready.close()
    await late.close()
    maker.may_go_on.set()
    await maker.tasks.wait_until_idle()
    ready.make()

    assert [made.is_deleted for made in maker.made] == [True, True]
    assert ready.take() is late.take() is None


async def test_one_that_cannot_be_made_is_tried_again(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("no room")]

    async def create(name: str) -> Any:
        if failures:
            raise failures.pop()
        return await maker.create(name)

    spare = Spare(create, maker.tasks)
    spare.make()
    await maker.tasks.wait_until_idle()
    spare.make()
    await maker.tasks.wait_until_idle()

    assert cast("Any", spare.take()) is maker.made[0]
    assert [record.getMessage() for record in caplog.records] == ["background task failed"]


def agent(instruction: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(instruction=instruction))
