"""States of which each is accepted once, in one process and among workers."""

from __future__ import annotations

import asyncio
from typing import override

from pallas_gateway.questions.used_states import OwnStates, UsedStates
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.workers.worker_side import SharedStates
from tests.support.channels import channel
from tests.support.waiting import eventually


async def test_a_state_is_used_once_unless_it_is_given_back_or_has_expired() -> None:
    own = OwnStates()
    assert await own.use("one", 60)
    assert not await own.use("one", 60)
    await own.give_back("one")
    await own.give_back("unknown")
    assert await own.use("one", 60)

    states = UsedStates()
    assert states.note("one", 0)
    await eventually(lambda: states.note("one", 60), what="the end of the state")


class HeldStates(OwnStates):
    """Those of a parent that answers once `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.asked: list[str] = []

    @override
    async def use(self, ticket: str, seconds: float) -> bool:
        self.asked.append(ticket)
        is_first = await super().use(ticket, seconds)
        await self.may_answer.wait()
        return is_first


async def test_the_parent_decides_which_request_uses_a_state() -> None:
    async with channel(worker={}, parent={"states": OwnStates()}) as ends:
        states = SharedStates(ends.worker, TaskOwner())
        assert await asyncio.gather(*(states.use(one, 60) for one in ("one", "two", "one"))) == [True, True, False]
        await states.give_back("one")
        assert await states.use("one", 60)


async def test_a_state_whose_request_ends_before_the_parents_answer_is_given_back_if_it_was_not_used_before() -> None:
    parent = HeldStates()
    async with channel(worker={}, parent={"states": parent}) as ends:
        states = SharedStates(ends.worker, TaskOwner())
        using = [asyncio.create_task(states.use(ticket, 60)) for ticket in ("one", "two", "two")]
        await eventually(lambda: len(parent.asked) == 3, what="the questions")
        using[0].cancel()
        using[2].cancel()
        await asyncio.wait({using[0], using[2]})
        parent.may_answer.set()
        assert await using[1]
        assert await states.use("one", 60)
        assert not await states.use("two", 60)


async def test_a_worker_without_a_parent_uses_no_state() -> None:
    parent = HeldStates()
    async with channel(worker={}, parent={"states": parent}) as ends:
        states = SharedStates(ends.worker, TaskOwner())
        using = asyncio.create_task(states.use("one", 60))
        await eventually(lambda: parent.asked, what="the question")
        ends.writer.close()
        assert not await using
        assert not await states.use("two", 60)
