"""How many calls run at once: the agent's own limit, then the gateway's. Waiting ends, and callers take turns."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.asking.asking import Asker, Questions
from pallas_gateway.calls.questions import Answer, Mode, Question
from pallas_gateway.core.admission import Admission, Limit
from pallas_gateway.errors import CallRefusedError
from tests.support.waiting import Gate, eventually, tick

LONG = 30.0
AT_ONCE = 0.0


def admission(
    *, own: int | None = None, gateway: int | Limit | None = None, queue_seconds: float = AT_ONCE
) -> Admission:
    shared = gateway if isinstance(gateway, Limit) else Limit(gateway)
    return Admission(own=Limit(own), gateway=shared, queue_seconds=queue_seconds)


@asynccontextmanager
async def waiting(
    admitting: Admission, gate: Gate, label: str = "waiter", *, account: str = "anna", nested: bool = False
) -> AsyncGenerator[asyncio.Task[None]]:
    """A call that waits for its slot, and enters `gate` when it has one."""

    async def hold() -> None:
        async with admitting.slot(account, nested=nested):
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
        async with admitting.slot("anna", nested=nested):
            return False
    except CallRefusedError as error:
        refusal = error
    return refusal.reason == "busy" and "try again" in str(refusal)


async def test_without_limits_everybody_is_admitted() -> None:
    free = admission()
    async with free.slot("anna", nested=False), free.slot("anna", nested=False), free.slot("anna", nested=True):
        assert not await is_refused(free)


@pytest.mark.parametrize("limited", [{"own": 2}, {"gateway": 2}])
async def test_as_many_are_admitted_as_the_limit_says_and_the_next_is_refused(limited: dict[str, int]) -> None:
    two = admission(**limited)
    async with two.slot("anna", nested=False):
        async with two.slot("anna", nested=False):
            assert await is_refused(two)
        assert not await is_refused(two)


async def test_a_full_agent_is_waited_for_no_longer_than_the_queue_time() -> None:
    one = admission(own=1, queue_seconds=0.05)
    loop = asyncio.get_running_loop()
    async with one.slot("anna", nested=False):
        began = loop.time()
        assert await is_refused(one)
    assert 0.04 <= loop.time() - began < 2


async def test_a_slot_is_free_again_after_a_failure() -> None:
    one = admission(own=1, gateway=1)
    with pytest.raises(ValueError, match="broken"):
        async with one.slot("anna", nested=False):
            raise ValueError("broken")
    assert not await is_refused(one)


async def test_a_time_out_of_the_call_itself_is_not_taken_for_a_full_queue() -> None:
    with pytest.raises(TimeoutError, match="the call's own"):
        async with admission(own=1).slot("anna", nested=False):
            raise TimeoutError("the call's own")


async def test_a_waiter_that_goes_away_holds_nothing() -> None:
    shared = Limit(1)
    full, gate = admission(own=1, gateway=shared, queue_seconds=LONG), Gate()
    await shared.acquire("anna")
    async with waiting(full, gate) as waiter:
        waiter.cancel()
        await asyncio.wait({waiter})
    shared.release()
    assert not await is_refused(full)


async def test_a_refused_call_gives_back_its_agents_slot() -> None:
    shared = Limit(1)
    refused = admission(own=1, gateway=shared)
    await shared.acquire("anna")
    assert await is_refused(refused)
    shared.release()
    assert not await is_refused(refused)


async def test_a_call_waiting_for_its_busy_agent_takes_no_slot_from_others() -> None:
    shared, gate = Limit(2), Gate()
    busy = admission(own=1, gateway=shared, queue_seconds=LONG)
    other = admission(own=1, gateway=shared)
    async with busy.slot("anna", nested=False), waiting(busy, gate):
        assert gate.entered == []
        assert not await is_refused(other)


async def test_a_nested_call_takes_none_of_the_gateways_slots() -> None:
    full = admission(gateway=1)
    async with full.slot("anna", nested=False):
        async with full.slot("anna", nested=True):
            assert await is_refused(full)
        assert not await is_refused(full, nested=True)


async def test_a_nested_call_keeps_to_its_agents_own_limit() -> None:
    one = admission(own=1)
    async with one.slot("anna", nested=False):
        assert await is_refused(one, nested=True)


async def test_an_answered_call_takes_its_slot_back_at_once_and_new_calls_wait_until_the_limit_is_kept() -> None:
    one, gate = admission(own=1, queue_seconds=LONG), Gate()
    async with one.slot("anna", nested=False) as answered:
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
        async with admitting.slot("anna", nested=True) as slots:
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


async def begin_of_turns() -> None:
    """Let each task run to its next wait, without time for anything else."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("queue", "nested"), [("own", False), ("own", True), ("gateway", False)])
async def test_callers_take_turns_in_the_queues_of_the_gateway_and_of_an_agent(queue: str, nested: bool) -> None:
    one, gate = admission(**{queue: 1}, queue_seconds=LONG), Gate()
    async with one.slot("greedy", nested=False) as first, AsyncExitStack() as stack:
        for number in range(3):
            label = f"greedy {number}"
            await stack.enter_async_context(waiting(one, gate, label, account="greedy", nested=nested))
        await stack.enter_async_context(waiting(one, gate, "anna", nested=nested))
        gate.open()
        first.pause()
        await gate.wait_for_entered(4)
    assert gate.entered == ["anna", "greedy 0", "greedy 1", "greedy 2"]


class Turns:
    """A plain model of a limit: every waiting call in the order of arrival, searched from the front each time."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.held = 0
        self.latest = ""
        self.ring: list[str] = []
        self.calls: list[tuple[str, int]] = []
        self.served: list[tuple[str, int]] = []

    def arrive(self, account: str, number: int) -> None:
        if account not in self.ring:
            self.ring.append(account)
        self.calls.append((account, number))
        self.serve()

    def leave(self, call: tuple[str, int]) -> None:
        self.calls.remove(call)
        self.ring = [account for account in self.ring if any(call[0] == account for call in self.calls)]

    def end(self) -> None:
        self.held -= 1
        self.serve()

    def serve(self) -> None:
        while self.calls and self.held < self.at_once:
            if self.latest in self.ring:
                self.ring.remove(self.latest)
                self.ring.append(self.latest)
            call = next(call for call in self.calls if call[0] == self.ring[0])
            self.leave(call)
            self.held += 1
            self.latest = call[0]
            self.served.append(call)


class Course:
    """The same operations on a limit and on its model."""

    def __init__(self, at_once: int) -> None:
        self.limit, self.model = Limit(at_once), Turns(at_once)
        self.served: list[tuple[str, int]] = []
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.paused = 0

    async def call(self, number: int) -> None:
        call = ("abcd"[number % 4], len(self.tasks))
        self.tasks[call] = asyncio.create_task(self._take(call))
        await begin_of_turns()
        self.model.arrive(*call)

    async def _take(self, call: tuple[str, int]) -> None:
        await self.limit.acquire(call[0])
        self.served.append(call)

    async def end(self, _: int = 0) -> None:
        if self.model.held:
            self.limit.release()
            self.model.end()

    async def cancel(self, number: int) -> None:
        if self.model.calls:
            call = self.model.calls[number % len(self.model.calls)]
            self.tasks[call].cancel()
            self.model.leave(call)

    async def cancel_before_it_is_served(self, number: int) -> None:
        await self.cancel(number)
        await self.end()  # its task has not run since

    async def cancel_as_it_is_served(self, _: int) -> None:
        before = len(self.model.served)
        await self.end()
        for call in self.model.served[before : before + 1]:
            self.tasks[call].cancel()
            self.model.served.remove(call)
            self.model.end()

    async def pause(self, _: int) -> None:
        if self.model.held:
            await self.end()
            self.paused += 1

    async def resume(self, _: int) -> None:
        if self.paused:
            self.paused -= 1
            self.limit.reacquire()
            self.model.held += 1


OPERATIONS = [
    *["call"] * 4,
    "end",
    "end",
    "cancel",
    "cancel_before_it_is_served",
    "cancel_as_it_is_served",
    "pause",
    "resume",
]


@given(
    at_once=st.integers(1, 3),
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 50)), min_size=20, max_size=60),
)
async def test_slots_are_passed_on_as_by_a_plain_model(at_once: int, operations: list[tuple[str, int]]) -> None:
    course = Course(at_once)
    for name, number in operations:
        await getattr(course, name)(number)
        await begin_of_turns()
        assert course.served == course.model.served
    for task in course.tasks.values():
        task.cancel()
    await asyncio.gather(*course.tasks.values(), return_exceptions=True)
