"""States of which each is accepted once, in one process and among workers."""

from __future__ import annotations

import asyncio

from pallas_gateway.questions.used_states import OwnStates, UsedStates
from pallas_gateway.workers.worker_messages import GivenBack, Used, UsedBefore, WorkerMessage, line_of, message_of
from pallas_gateway.workers.worker_side import SharedStates
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


async def test_the_parent_decides_which_worker_uses_a_state() -> None:
    sent: list[WorkerMessage] = []
    states = SharedStates(lambda message: sent.append(message_of(line_of(message))))
    using = asyncio.gather(*(states.use(ticket, 60) for ticket in ("one", "two", "one")))
    await asyncio.sleep(0)
    assert sent == [Used("one", 60), Used("two", 60)]
    for answer in (UsedBefore("one", before=False), UsedBefore("two", before=True), UsedBefore("three", before=True)):
        states.answered(answer.ticket, is_first=not answer.before)
    assert await using == [True, False, False]
    await states.give_back("one")
    assert sent[2:] == [GivenBack("one")]


async def test_a_state_whose_request_ends_before_the_parents_answer_is_given_back() -> None:
    sent: list[WorkerMessage] = []
    states = SharedStates(sent.append)
    using = [asyncio.create_task(states.use(ticket, 60)) for ticket in ("one", "two")]
    await asyncio.sleep(0)
    for one in using:
        one.cancel()
    await asyncio.wait(using)
    states.answered("one", is_first=True)
    states.answered("two", is_first=False)
    await eventually(lambda: GivenBack("one") in sent, what="the state that is given back")
    assert sent == [Used("one", 60), Used("two", 60), GivenBack("one")]


async def test_a_worker_without_a_parent_uses_no_state() -> None:
    states = SharedStates(lambda _: None)
    using = asyncio.create_task(states.use("one", 60))
    await asyncio.sleep(0)
    states.end()
    assert not await using
    assert not await states.use("two", 60)
