"""What the floors above ask of a runtime, asked of the in-memory one and of fast-agent alike."""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from fast_agent.core.harness import AgentHarness

from pallas_gateway.calls.call import Message, Reply
from pallas_gateway.calls.events.events import Emitter, StepBegan, TurnEnded
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.protocols import AgentRuntime, ModelFacts, Runtime
from pallas_gateway.runtime.runtime import FastAgentRuntime
from pallas_gateway.runtime.started_agent import StartedAgent
from tests.support.gateway import Agent, module_source, write_project
from tests.support.memory_runtime import (
    NOBODY,
    MemoryAgent,
    MemoryRuntime,
    a_call,
    a_spec,
    fail,
    tell_a_turn,
    text_of,
    unread,
)
from tests.support.waiting import Gate, cancelled, eventually

HELD = """
from fast_agent import FastAgent
from fast_agent.agents import McpAgent
from tests.support.waiting import Gate

gate = Gate()
fast = FastAgent("held", parse_cli_args=False)


class Held(McpAgent):
    async def generate_impl(self, messages, request_params=None, tools=None):
        await gate.enter(messages[-1].all_text())
        return await super().generate_impl(messages, request_params, tools)


@fast.custom(Held, name="held", default=True)
async def agent(): ...
"""
FAILING = """
from fast_agent import FastAgent
from fast_agent.agents import McpAgent

fast = FastAgent("failing", parse_cli_args=False)


class Failing(McpAgent):
    async def generate_impl(self, messages, request_params=None, tools=None):
        raise ValueError("out of paper")


@fast.custom(Failing, name="failing", default=True)
async def agent(): ...
"""
START_FAILURES = {
    "missing": "module_missing",
    "unimportable": "import_failed",
    "fastless": "no_fast",
    "unstartable": "start_failed",
}


@dataclass(frozen=True)
class Subject:
    """A runtime with the agents `echo`, `other`, `held`, `failing` and one for each way a start can fail."""

    runtime: Runtime
    package: str
    held_at: Callable[[], Gate]
    edit: Callable[[], object]

    def start(self, name: str) -> AbstractAsyncContextManager[AgentRuntime]:
        return self.runtime.start(a_spec(name, f"{self.package}.{name}"))


type Make = Callable[[Path], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def in_memory(folder: Path) -> AsyncGenerator[Subject]:
    del folder
    gate, passthrough = Gate(), ModelFacts("passthrough")
    agents = {
        "echo": MemoryAgent(model=passthrough, tells=tell_a_turn),
        "other": MemoryAgent(model=passthrough),
        "held": MemoryAgent(answering=gate),
        "failing": MemoryAgent(fail("The agent failed: out of paper", reason="runtime_error")),
    }
    for name, reason in START_FAILURES.items():
        if name != "missing":
            failure = AgentStartError(f"'{name}' cannot be started", reason=reason)
            agents[name] = MemoryAgent(start_failures=[failure])

    def edit() -> None:
        agents["echo"].edited = True

    yield Subject(MemoryRuntime(agents), "agents", lambda: gate, edit)


@asynccontextmanager
async def on_fast_agent(folder: Path) -> AsyncGenerator[Subject]:
    agents = {
        "echo": Agent(),
        "other": Agent(),
        "held": Agent(source=HELD),
        "failing": Agent(source=FAILING),
        "unimportable": Agent(source="raise ValueError('no key')"),
        "fastless": Agent(source="quick = 1"),
        "unstartable": Agent(model="nobody.knows-this"),
    }
    project = write_project(folder, agents)
    package, another = project.package, module_source("echo", Agent()) + "# edited"
    async with FastAgentRuntime(config_file=None) as runtime:
        edit = partial(project.write_module, "echo", another)
        yield Subject(runtime, package, lambda: _gate_of(f"{package}.held"), edit)


def _gate_of(module: str) -> Gate:
    gate = importlib.import_module(module).gate
    assert isinstance(gate, Gate)
    return gate


@pytest.fixture(params=[in_memory, on_fast_agent], ids=["memory", "fast-agent"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


async def until_disposed(agent: AgentRuntime) -> None:
    await eventually(lambda: agent.instances_live == 0, what="every instance disposed of")


async def test_an_agent_starts_answers_and_disposes_of_its_instance(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("echo") as agent:
        assert replace(agent.model, max_output_tokens=None, context_window=None) == ModelFacts("passthrough")
        assert agent.downstreams == ()
        assert agent.instances_live == 0
        history = [Message("user", "earlier"), Message("assistant", "indeed")]
        call = a_call("hello", history=history)

        async with agent.open(call, NOBODY, *unread()) as instance:
            reply = await instance.generate(call, timeout_seconds=60)
            assert agent.instances_live == 1

        assert (text_of(reply), reply.stop_reason) == ("hello", "endTurn")
        assert instance.turns == reply.turns
        assert instance.iterations == reply.iterations
        assert tuple(one.name for one in instance.tool_uses) == reply.tools
        assert all(one.ok is not None and one.seconds is not None for one in instance.tool_uses)
        await until_disposed(agent)


async def test_an_agent_is_current_until_its_plan_or_its_file_is_another(make: Make, folder: Path) -> None:
    async with make(folder) as subject:
        spec = a_spec("echo", f"{subject.package}.echo")
        async with subject.runtime.start(spec) as agent:
            assert agent.is_current(spec)
            assert not agent.is_current(replace(spec, max_iterations=3))
            subject.edit()
            assert not agent.is_current(spec)
            async with subject.runtime.start(spec, reread=True) as successor:
                assert successor.is_current(spec)


async def test_two_instances_share_nothing(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("echo") as agent:
        # passthrough keeps this answer for as long as its instance lives
        first, second = a_call("***FIXED_RESPONSE of the first"), a_call("hello")
        async with agent.open(first, NOBODY, *unread()) as one, agent.open(second, NOBODY, *unread()) as another:
            await one.generate(first, timeout_seconds=60)
            assert agent.instances_live == 2
            assert text_of(await another.generate(second, timeout_seconds=60)) == "hello"
        third = a_call("hello again")
        async with agent.open(third, NOBODY, *unread()) as later:
            assert text_of(await later.generate(third, timeout_seconds=60)) == "hello again"
        await until_disposed(agent)


async def test_what_an_agent_does_is_told_to_its_sink(make: Make, folder: Path) -> None:
    call, (sink, options) = a_call("hello"), unread(StreamOptions(progress=True))
    async with make(folder) as subject, subject.start("echo") as agent:
        async with agent.open(call, NOBODY, sink, options) as instance:
            await instance.generate(call, timeout_seconds=60)
        await until_disposed(agent)
    sink.close()

    [step, turn] = [event async for event in sink.events()]
    assert step == StepBegan("echo", 1, "llm")
    assert isinstance(turn, TurnEnded)
    assert (turn.emitter, turn.iteration) == (Emitter("echo", None), 1)
    assert (turn.text, [*turn.tool_calls], turn.stop_reason) == ("hello", [], "endTurn")


async def test_a_failing_call_is_a_reply_of_one_sentence_and_leaves_no_instance(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("failing") as agent:
        call = a_call(agent="failing")
        async with agent.open(call, NOBODY, *unread()) as instance:
            reply = await instance.generate(call, timeout_seconds=60)

        assert text_of(reply) == "The agent failed: out of paper"
        assert (reply.failure, reply.stop_reason) == ("runtime_error", "runtime_error")
        await until_disposed(agent)


async def test_a_call_past_its_deadline_is_a_partial_answer(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("held") as agent:
        call = a_call(agent="held")
        async with agent.open(call, NOBODY, *unread()) as instance:
            reply = await instance.generate(call, timeout_seconds=0.05)

        assert text_of(reply).startswith("[Stopped: ")
        assert (reply.stop_reason, reply.failure, reply.halted) == ("endTurn", None, ("deadline",))
        await until_disposed(agent)


async def test_an_error_inside_the_block_leaves_no_instance(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("echo") as agent:
        with pytest.raises(RuntimeError, match="not mine"):
            async with agent.open(a_call(), NOBODY, *unread()):
                raise RuntimeError("not mine")
        await until_disposed(agent)


async def test_a_cancelled_call_leaves_no_instance(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("held") as agent:
        gate, call = subject.held_at(), a_call("wait", agent="held")

        async def ask() -> None:
            async with agent.open(call, NOBODY, *unread()) as instance:
                await instance.generate(call, timeout_seconds=60)

        asking = asyncio.create_task(ask())
        await gate.wait_for_entered()
        await cancelled(asking)

        await gate.wait_for_cancelled()
        await until_disposed(agent)


async def test_a_call_cancelled_before_it_has_its_instance_leaves_none(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("echo") as agent:

        async def ask() -> None:
            async with agent.open(a_call(), NOBODY, *unread()):
                await asyncio.Event().wait()

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)  # far enough to have begun, not far enough to have an instance of fast-agent
        await cancelled(asking)

        await until_disposed(agent)


@pytest.mark.parametrize(("name", "reason"), START_FAILURES.items())
async def test_a_start_that_fails_says_why(make: Make, folder: Path, name: str, reason: str) -> None:
    async with make(folder) as subject:
        with pytest.raises(AgentStartError) as raised:
            async with subject.start(name):
                raise AssertionError("it started")

    assert raised.value.reason == reason
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_leaving_one_agent_does_not_disturb_another(make: Make, folder: Path) -> None:
    async with make(folder) as subject, subject.start("echo") as staying:
        for _ in range(2):  # and it can be started and left again
            async with subject.start("other") as leaving:
                assert leaving.instances_live == 0
            async with staying.open(a_call("still here?"), NOBODY, *unread()) as instance:
                reply = await instance.generate(a_call("still here?"), timeout_seconds=60)
            assert text_of(reply) == "still here?"
        await until_disposed(staying)


@pytest.mark.parametrize("block_fails", [False, True])
async def test_leaving_an_agent_ends_its_running_calls_with_a_sentence(folder: Path, *, block_fails: bool) -> None:
    # Only of fast-agent: what runs on after the drain must not keep the process from ending.
    async with on_fast_agent(folder) as subject:
        with pytest.raises(ZeroDivisionError) if block_fails else nullcontext():
            async with subject.start("held") as agent:
                call = a_call(agent="held")

                async def ask() -> Reply:
                    async with agent.open(call, NOBODY, *unread()) as instance:
                        return await instance.generate(call, timeout_seconds=60)

                asking = asyncio.create_task(ask())
                await subject.held_at().wait_for_entered()
                if block_fails:
                    raise ZeroDivisionError
        reply = await asyncio.wait_for(asking, 20)
        assert text_of(reply) == "The agent stopped by itself before it answered."
        assert reply.failure == "runtime_error"
        assert agent.instances_live == 0


async def test_a_start_that_is_cancelled_half_way_leaves_the_harness(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering, left = Gate(), list[object]()

    async def enter(_: AgentHarness) -> None:
        await entering.enter()

    async def leave(harness: AgentHarness, *_: object) -> None:
        left.append(harness)

    monkeypatch.setattr(AgentHarness, "__aenter__", enter)
    monkeypatch.setattr(AgentHarness, "__aexit__", leave)
    async with on_fast_agent(folder) as subject:
        starting = asyncio.ensure_future(subject.start("echo").__aenter__())
        await entering.wait_for_entered()
        await cancelled(starting)
    assert len(left) == 1


async def test_what_cannot_be_closed_keeps_nothing_else_of_an_agent_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_close() -> None:
        raise ZeroDivisionError

    async with on_fast_agent(folder) as subject:
        starting = subject.start("echo")
        agent = await starting.__aenter__()
        assert isinstance(agent, StartedAgent)
        monkeypatch.setattr(agent._answers, "cancel_all", fail_to_close)
        with pytest.raises(ZeroDivisionError):
            await starting.__aexit__(None, None, None)
        assert agent._offers._clients._is_closed
