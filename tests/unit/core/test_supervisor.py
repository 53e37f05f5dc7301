"""The lives of agents: started in dependency order, retried for ever, left all together; one's trouble is its own."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import override

import pytest

from pallas_gateway.core.admission import Admission, Limit
from pallas_gateway.core.agent_state import State
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.core.supervisor import StandbyRuntime, Supervisor, retry_seconds
from pallas_gateway.errors import AgentStartError
from pallas_gateway.limits import LifeLimits
from pallas_gateway.runtime.protocols import AgentSpec
from pallas_gateway.tasks import TaskOwner
from tests.support.hosted import pending
from tests.support.memory_runtime import (
    MemoryAgent,
    MemoryAgentRuntime,
    MemoryRuntime,
    a_call,
    a_spec,
    text_of,
)
from tests.support.waiting import Gate, eventually, tick

NO_KEY = "agent failed to start: no key"


@dataclass(frozen=True)
class Supervised:
    """Hosted agents, how they behave, and their supervisor."""

    memory: dict[str, MemoryAgent]
    agents: dict[str, HostedAgent]
    supervisor: Supervisor

    @property
    def states(self) -> dict[str, str]:
        return {name: agent.status.state.value for name, agent in self.agents.items()}

    async def until(self, **states: str) -> None:
        await eventually(lambda: states.items() <= self.states.items(), what=f"{states}")


def fleet(
    memory: Mapping[str, MemoryAgent],
    *,
    depends_on: Mapping[str, Sequence[str]] | None = None,
    after: asyncio.Task[None] | None = None,
    limits: LifeLimits | None = None,
) -> Supervised:
    needs = depends_on or {}
    agents = {name: pending(name, depends_on=needs.get(name, ())).agent for name in memory}
    return Supervised(
        dict(memory), agents, Supervisor(agents, MemoryRuntime(memory), a_spec, after=after, limits=limits)
    )


def failing(times: int, sentence: str = NO_KEY) -> MemoryAgent:
    return MemoryAgent(start_failures=[AgentStartError(sentence) for _ in range(times)])


QUICK = LifeLimits(first_retry_seconds=0.001, last_retry_seconds=0.002)


async def test_agents_start_beside_each_other_and_are_left_in_the_end() -> None:
    gate = Gate()
    some = fleet({name: MemoryAgent(starting=gate) for name in ("a", "b")})
    assert not some.supervisor.all_tried

    async with some.supervisor as supervisor:
        await gate.wait_for_entered(2)
        assert some.states == {"a": "starting", "b": "starting"}
        gate.open()
        await asyncio.wait_for(supervisor.wait_until_tried(), 5)
        assert some.states == {"a": "ready", "b": "ready"}
        assert supervisor.all_tried
        assert text_of(await RunningCall(some.agents["a"], a_call()).begin()) == "hello"

    assert some.states == {"a": "pending", "b": "pending"}
    assert [agent.leaves for agent in some.memory.values()] == [1, 1]


async def test_an_agent_waits_for_each_of_its_dependencies() -> None:
    gates = {"a": Gate(), "b": Gate()}
    memory = {name: MemoryAgent(starting=gate) for name, gate in gates.items()}
    some = fleet({**memory, "both": MemoryAgent()}, depends_on={"both": ["a", "b"]})
    async with some.supervisor:
        gates["b"].open()
        await some.until(b="ready")
        await tick()
        assert some.states["both"] == "pending"
        gates["a"].open()
        await some.until(both="ready")


async def test_an_agent_waits_for_a_slow_dependency_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    memory = {"slow": MemoryAgent(starting=Gate()), "needy": MemoryAgent()}
    some = fleet(memory, depends_on={"needy": ["slow"]}, limits=LifeLimits(dependency_seconds=0.02))
    async with some.supervisor:
        await some.until(slow="starting", needy="ready")
    assert [vars(record)["agent"] for record in caplog.records if "dependencies" in record.message] == ["needy"]


async def test_a_failed_agent_is_retried_until_it_is_well_and_each_change_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    some = fleet({"broken": failing(4)}, limits=QUICK)
    async with some.supervisor:
        await some.until(broken="ready")
        assert some.memory["broken"].starts == 5
        assert some.agents["broken"].status.reason is None
    lines = [record.message for record in caplog.records if record.name.startswith("pallas")]
    assert lines == ["agent starting", "agent failed", "agent ready", "agent stopping"]


async def test_a_retry_that_fails_for_another_reason_is_a_change() -> None:
    agent = MemoryAgent(start_failures=[AgentStartError("no key"), AgentStartError("no model")])
    agent.starting = Gate()
    some = fleet({"broken": agent}, limits=QUICK)
    async with some.supervisor:
        agent.starting.let_through(2)
        await agent.starting.wait_for_entered(3)
        assert some.agents["broken"].status.reason == "no model"
        assert some.states == {"broken": "failed"}  # a retry does not hide why it is needed


async def test_an_unforeseen_error_is_one_agents_and_logged_once_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    surprise = MemoryAgent(start_failures=[ValueError("unforeseen") for _ in range(3)])
    some = fleet({"surprise": surprise, "well": MemoryAgent()}, limits=QUICK)
    async with some.supervisor as supervisor:
        await asyncio.wait_for(supervisor.wait_until_tried(), 5)
        await some.until(surprise="ready", well="ready")
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert [vars(record)["agent"] for record in tracebacks] == ["surprise"]
    reasons = [vars(record)["reason"] for record in caplog.records if record.message == "agent failed"]
    assert reasons == ["unexpected ValueError: unforeseen"]


async def test_a_failed_agent_whose_files_changed_is_tried_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.supervisor")
    limits = LifeLimits(first_retry_seconds=3600, last_retry_seconds=3600, watch_seconds=0.001)
    edited, looks = asyncio.Event(), asyncio.Event()

    def may_be_mended() -> bool:
        looks.set()
        return edited.is_set()

    agent = MemoryAgent(start_failures=[AgentStartError(NO_KEY, may_be_mended=may_be_mended)])
    some = fleet({"broken": agent, "other": failing(1)}, limits=limits)
    async with some.supervisor:
        await asyncio.wait_for(looks.wait(), 10)
        assert some.states["broken"] == "failed"
        edited.set()
        await some.until(broken="ready")
        assert some.states["other"] == "failed"  # nothing of its changed
    changed = [vars(record)["agent"] for record in caplog.records if record.message == "files of failed agent changed"]
    assert changed == ["broken"]


async def test_no_agent_is_started_before_what_they_wait_for_and_its_failure_is_not_theirs() -> None:
    asking = Gate()

    async def ask() -> None:
        await asking.enter()
        raise ValueError("no answer")

    memory = {"a": MemoryAgent(), "b": MemoryAgent()}
    async with TaskOwner() as tasks:
        some = fleet(memory, after=tasks.spawn(ask(), name="preflight"))
        async with some.supervisor:
            await asking.wait_for_entered()
            await tick()
            assert [agent.starts for agent in memory.values()] == [0, 0]
            asking.open()
            await some.until(a="ready", b="ready")


@pytest.mark.parametrize(
    "stuck",
    [
        {"a": MemoryAgent(starting=Gate())},  # in its start
        {"a": MemoryAgent(starting=Gate()), "b": MemoryAgent()},  # and b waiting for it
        {"a": failing(1)},  # before its next try
    ],
    ids=["starting", "waiting", "retrying"],
)
async def test_stopping_does_not_wait_for_agents_that_are_not_up(stuck: dict[str, MemoryAgent]) -> None:
    some = fleet(stuck, depends_on={"b": ["a"]})
    async with asyncio.timeout(20):
        async with some.supervisor:
            await stuck["a"].until(lambda agent: agent.starts == 1)
            await tick()
    assert State.READY.value not in some.states.values()


def test_retries_pause_twice_as_long_each_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    pauses = [retry_seconds(failures, LifeLimits()) for failures in (1, 2, 3, 4, 5, 6, 100_000)]
    assert pauses == [1, 2, 4, 8, 15, 15, 15]


@pytest.mark.parametrize("failures", [1, 4, 100_000])
def test_retries_of_many_agents_do_not_come_in_step(failures: int) -> None:
    longest = min(15.0, 2.0 ** (min(failures, 10) - 1))
    pauses = {retry_seconds(failures, LifeLimits()) for _ in range(50)}
    assert len(pauses) > 1
    assert all(0.75 * longest <= pause <= longest for pause in pauses)


def use(agent: HostedAgent, text: str) -> "asyncio.Task[object]":
    return RunningCall(agent, a_call(text, agent=agent.name)).begin()


def take(some: Supervised, standby: StandbyRuntime) -> None:
    agent = some.agents["a"]
    admission = Admission(own=Limit(None), gateway=Limit(None), queue_seconds=0)
    agent.update(agent.settings, admission, standby.runtime)
    standby.adopt()


async def test_versions_are_left_each_after_its_own_last_call() -> None:
    memory, gates = MemoryAgent(), [Gate(), Gate(), Gate()]
    some = fleet({"a": memory})
    async with some.supervisor as supervisor:
        await some.until(a="ready")
        calls = []
        for number, gate in enumerate(gates):
            if number:
                take(some, await supervisor.start_beside(some.agents["a"], a_spec("a")))
            memory.answering = gate
            calls.append(use(some.agents["a"], f"of version {number}"))
            await gate.wait_for_entered()
        assert (memory.starts, memory.leaves) == (3, 0)
        for number in (1, 0):  # the second one ends first
            gates[number].open()
            await calls[number]
            await memory.until(lambda one, left=2 - number: one.leaves == left)  # type: ignore[misc]
        assert some.states == {"a": "ready"}
        gates[2].open()
        await calls[2]
    assert memory.leaves == 3


async def test_a_version_that_cannot_be_started_says_why_and_the_present_one_goes_on() -> None:
    some = fleet({"a": MemoryAgent()})
    async with some.supervisor as supervisor:
        await some.until(a="ready")
        some.memory["a"].start_failures += [AgentStartError(NO_KEY), ValueError("unforeseen")]
        for why in (NO_KEY, "unexpected ValueError: unforeseen"):
            with pytest.raises(AgentStartError, match=why):
                await supervisor.start_beside(some.agents["a"], a_spec("a"))
        assert (some.states, some.memory["a"].leaves) == ({"a": "ready"}, 0)


async def test_a_version_that_is_not_taken_is_left() -> None:
    some = fleet({"a": MemoryAgent()})
    async with some.supervisor as supervisor:
        await some.until(a="ready")
        before = some.agents["a"].runtime
        (await supervisor.start_beside(some.agents["a"], a_spec("a"))).drop()
        await some.memory["a"].until(lambda one: one.leaves == 1)
        assert some.agents["a"].runtime is before


async def test_stopping_ends_a_start_beside_and_tells_who_waits() -> None:
    memory = MemoryAgent()
    some = fleet({"a": memory})
    async with asyncio.timeout(5):
        async with some.supervisor as supervisor:
            await some.until(a="ready")
            memory.starting = Gate()
            waiting = asyncio.create_task(supervisor.start_beside(some.agents["a"], a_spec("a")))
            await memory.starting.wait_for_entered()
        with pytest.raises(AgentStartError, match="the gateway is stopping"):
            await waiting


async def test_an_agent_begun_anew_is_not_waited_for_in_its_earlier_life() -> None:
    gate = Gate()
    memory = {"slow": MemoryAgent(starting=gate), "needy": MemoryAgent()}
    some = fleet(memory, depends_on={"needy": ["slow"]})
    async with some.supervisor as supervisor, asyncio.timeout(5):
        waiting = asyncio.create_task(supervisor.wait_until_tried())
        await gate.wait_for_entered()
        supervisor.begin(some.agents["slow"])
        supervisor.begin(some.agents["needy"])  # which had only waited so far
        await gate.wait_for_entered(2)
        assert gate.cancelled == ["slow"]
        gate.open()
        await some.until(slow="ready", needy="ready")
        await waiting
    assert [agent.starts for agent in memory.values()] == [2, 1]


async def test_an_agent_that_ends_before_its_first_try_is_not_waited_for() -> None:
    gate = Gate()
    memory = {"slow": MemoryAgent(starting=gate), "waits": MemoryAgent(), "needy": MemoryAgent()}
    some = fleet(memory, depends_on={"waits": ["slow"], "needy": ["waits"]})
    async with some.supervisor as supervisor, asyncio.timeout(5):
        waiting = asyncio.create_task(supervisor.wait_until_tried())
        await gate.wait_for_entered()
        supervisor.end("waits")
        await some.until(needy="ready")
        supervisor.end("slow")
        await waiting
        assert supervisor.all_tried
        assert memory["waits"].starts == 0


async def test_agents_that_come_later_do_not_take_back_that_all_were_tried() -> None:
    some = fleet({"a": MemoryAgent()})
    async with some.supervisor as supervisor:
        await asyncio.wait_for(supervisor.wait_until_tried(), 5)
        some.memory["a"].starting = Gate()
        supervisor.begin(some.agents["a"])
        assert supervisor.all_tried


async def test_a_start_that_will_not_be_interrupted_does_not_come_up_any_more() -> None:
    entered, going_on = asyncio.Event(), asyncio.Event()

    class Stubborn(MemoryRuntime):
        @asynccontextmanager
        @override
        async def start(self, spec: AgentSpec, *, reread: bool = False) -> AsyncGenerator[MemoryAgentRuntime]:
            entered.set()
            while not going_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await going_on.wait()
            async with super().start(spec, reread=reread) as runtime:
                yield runtime

    some = fleet({"a": MemoryAgent()})
    async with Supervisor(some.agents, Stubborn(some.memory), a_spec) as supervisor:
        await entered.wait()
        leaving = supervisor.end("a")
        await tick()
        going_on.set()
        assert leaving is not None
        await asyncio.wait({leaving}, timeout=5)
        assert (some.states, some.memory["a"].leaves) == ({"a": "starting"}, 1)
