"""The states of calls that wait for their clients: which of them another process can resume."""

import asyncio

from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.questions import MODES
from pallas_gateway.core.waiting_calls import WaitingCall, WaitingCalls
from pallas_gateway.shared.memory import Memory
from tests.support.hosted import pending
from tests.support.memory_runtime import a_call, say


async def a_reply() -> Reply:
    return say("done")


def waiting() -> WaitingCall:
    call = WaitingCall(pending().agent, a_call(), MODES)
    call.checkpoint = lambda _: "place"  # type: ignore[method-assign,assignment]
    return call


async def test_a_state_has_the_place_of_its_call_unless_the_call_ends_while_it_asks() -> None:
    calls, goes_on, ends = WaitingCalls(UsedStates(Memory(), "a")), waiting(), waiting()
    goes_on.work = asyncio.create_task(a_reply())
    states = [calls.detach(call).split(".", 3)[3] for call in (goes_on, ends)]
    calls.end()
    assert states == ["place", ""]


async def test_the_state_of_a_call_that_was_ended_is_used_and_read_here_without_asking() -> None:
    used = UsedStates(Memory(), "a")
    calls = WaitingCalls(used)
    call = waiting()
    call.work = asyncio.create_task(a_reply())
    calls.detach(call)
    await calls.spend_state(call.call.call_id)
    await calls.spend_state("another")
    assert not await used.use(call.ticket, 60)
    await calls.attach(call, {})  # of its client
    assert (await call.work).stop_reason == "endTurn"
    call.give_up()
