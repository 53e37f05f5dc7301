"""How many calls run at once: the agent's own limit, then the gateway's, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import pytest

from pallas_gateway.calls.questions import Answer, Mode, Question
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.hosting.admission import Admission, Limit
from pallas_gateway.questions.asking import Asker, Questions
from tests.support.waiting import Gate, eventually, tick

LONG = 30.0
AT_ONCE = 0.0


def admission(
    *, own: int | None = None, gateway: int | Limit | None = None, queue_seconds: float = AT_ONCE
) -> Admission:
    shared = gateway if isinstance(gateway, Limit) else Limit(gateway)
    return Admission(own=Limit(own), gateway=shared, queue_seconds=queue_seconds)


@asynccontextmanager
async def waiting(admitting: Admission, gate: Gate, label: str = "waiter") -> AsyncGenerator[asyncio.Task[None]]:
    """A call that waits for its slot, and enters `gate` when it has one."""

    async def hold() -> None:
        async with admitting.slot(nested=False):
            await gate.enter(label)

    task = asyncio.create_task(hold())
    await tick()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def is_refused(admitting: Admission, *, nested: bool = False) -> bool:
    try:
        async with admitting.slot(nested=nested):
            return False
    except CallRefusedError as error:
        refusal = error
    return refusal.reason == "busy" and "try again" in str(refusal)


async def test_without_limits_everybody_is_admitted() -> None:
    free = admission()
    async with free.slot(nested=False), free.slot(nested=False), free.slot(nested=True):
        assert not await is_refused(free)


@pytest.mark.parametrize("limited", [{"own": 2}, {"gateway": 2}])
async def test_as_many_are_admitted_as_the_limit_says_and_the_next_is_refused(limited: dict[str, int]) -> None:
    two = admission(**limited)
    async with two.slot(nested=False):
        async with two.slot(nested=False):
            assert await is_refused(two)
        assert not await is_refused(two)


async def test_a_full_agent_is_waited_for_no_longer_than_the_queue_time() -> None:
    one = admission(own=1, queue_seconds=0.05)
    loop = asyncio.get_running_loop()
    async with one.slot(nested=False):
        began = loop.time()
        assert await is_refused(one)
    assert 0.04 <= loop.time() - began < 2


async def test_a_freed_slot_goes_to_the_one_who_waited_longest() -> None:
    one, gate = admission(own=1, queue_seconds=LONG), Gate()
    first_slot = one.slot(nested=False)
    await first_slot.__aenter__()
    async with waiting(one, gate, "first") as first, waiting(one, gate, "second") as second:
        assert gate.entered == []
        await first_slot.__aexit__(None, None, None)
        await gate.wait_for_entered(1)
        assert gate.entered == ["first"]
        gate.open()
        await asyncio.gather(first, second)
    assert gate.entered == ["first", "second"]


async def test_a_slot_is_free_again_after_a_failure() -> None:
    one = admission(own=1, gateway=1)
    with pytest.raises(ValueError, match="broken"):
        async with one.slot(nested=False):
            raise ValueError("broken")
    assert not await is_refused(one)


async def test_a_time_out_of_the_call_itself_is_not_taken_for_a_full_queue() -> None:
    with pytest.raises(TimeoutError, match="the call's own"):
        async with admission(own=1).slot(nested=False):
            raise TimeoutError("the call's own")


async def test_a_waiter_that_goes_away_holds_nothing() -> None:
    shared = Limit(1)
    full, gate = admission(own=1, gateway=shared, queue_seconds=LONG), Gate()
    await shared.take()
    async with waiting(full, gate) as waiter:
        waiter.cancel()
        await asyncio.wait({waiter})
    shared.release()
    assert not await is_refused(full)


async def test_a_refused_call_gives_back_its_agents_slot() -> None:
    shared = Limit(1)
    refused = admission(own=1, gateway=shared)
    await shared.take()
    assert await is_refused(refused)
    shared.release()
    assert not await is_refused(refused)


async def test_a_call_waiting_for_its_busy_agent_takes_no_slot_from_others() -> None:
    shared, gate = Limit(2), Gate()
    busy = admission(own=1, gateway=shared, queue_seconds=LONG)
    other = admission(own=1, gateway=shared)
    async with busy.slot(nested=False), waiting(busy, gate):
        assert gate.entered == []
        assert not await is_refused(other)


async def test_a_nested_call_takes_none_of_the_gateways_slots() -> None:
    full = admission(gateway=1)
    async with full.slot(nested=False):
        async with full.slot(nested=True):
            assert await is_refused(full)
        assert not await is_refused(full, nested=True)


async def test_a_nested_call_keeps_to_its_agents_own_limit() -> None:
    one = admission(own=1)
    async with one.slot(nested=False):
        assert await is_refused(one, nested=True)


async def test_a_slot_that_goes_to_a_waiter_as_it_goes_away_goes_to_the_next() -> None:
    one, gate = admission(own=1, queue_seconds=LONG), Gate()
    async with one.slot(nested=False) as slots, waiting(one, gate, "first") as first, waiting(one, gate, "second"):
        slots.pause()
        first.cancel()
        await gate.wait_for_entered(1)
        assert gate.entered == ["second"]


async def test_an_answered_call_takes_its_slot_back_at_once_and_new_calls_wait_until_the_limit_is_kept() -> None:
    one, gate = admission(own=1, queue_seconds=LONG), Gate()
    async with one.slot(nested=False) as answered:
        answered.pause()
        async with waiting(one, gate, "second") as second, waiting(one, gate, "third"):
            await gate.wait_for_entered(1)
            answered.resume()
            gate.let_through(1)
            await second
            await tick()
            assert gate.entered == ["second"]
            answered.pause()
            await gate.wait_for_entered(2)


async def test_paths_through_the_same_agents_do_not_wait_for_each_other_after_their_questions() -> None:
    class Answers:
        """Answers once both paths ask."""

        client_may_leave = False
        modes: Collection[Mode] = ["form"]

        def __init__(self) -> None:
            self.asked = 0
            self.both = asyncio.Event()

        async def put(self, question: Question) -> Answer:
            del question
            self.asked += 1
            if self.asked == 2:
                self.both.set()
            await self.both.wait()
            return Answer("accepted", {})

    asker, limits = Answers(), {"A": Limit(2), "B": Limit(2)}

    async def call(path: str, caller: Asker) -> None:
        questions = Questions(path[0], caller)
        admitting = Admission(own=limits[path[0]], gateway=Limit(None), queue_seconds=LONG)
        async with admitting.slot(nested=True) as slots:
            with questions.pauses.including(slots):
                if path[1:]:
                    await call(path[1:], questions)
                else:
                    await questions.ask(Question("form", "Go on?"))

    # One after the other: admission itself has a limit of time, which is not what is tested here.
    first = asyncio.create_task(call("ABA", asker))
    await eventually(lambda: asker.asked == 1)
    second = asyncio.create_task(call("ABA", asker))
    async with asyncio.timeout(LONG / 3):
        await asyncio.gather(first, second)
