"""One hosted agent: its states, the path of every call, and what is counted on the way."""

import asyncio
import logging
from dataclasses import replace

import pytest

from pallas_gateway.calls.call import Call, Reply, TurnUsage, Usage
from pallas_gateway.calls.events.events import Admitted, Emitter, StepBegan, TurnEnded
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.core.agent_state import State, Status
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.errors import REFUSALS, AgentUnavailableError, CallRefusedError
from pallas_gateway.runtime.protocols import Downstream, ModelFacts
from pallas_gateway.telemetry.metrics import HALTS, OUTCOMES
from tests.support.hosted import pending, ready
from tests.support.memory_runtime import (
    MemoryAgent,
    MemoryAgentRuntime,
    MemoryRuntime,
    a_call,
    a_spec,
    fail,
    say,
    tell_a_turn,
    text_of,
    unread,
)
from tests.support.waiting import Gate, cancelled, tick

SEEING = ModelFacts("eyes", frozenset({"image/png", "image/webp"}))


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str | None]]:
    records = [record for record in caplog.records if record.name == "pallas.agents"]
    return [(record.levelname, record.message, vars(record).get("reason")) for record in records]


def test_an_agent_begins_pending_and_says_so_in_the_metrics() -> None:
    hosting = pending()
    assert hosting.agent.status == Status(State.PENDING)
    assert hosting.agent.runtime is None
    assert hosting.agent.model is None
    assert hosting.states == {"pending": 1, "starting": 0, "ready": 0, "failed": 0}
    assert (hosting.metric("calls_in_flight"), hosting.metric("instances_live")) == (0, 0)


@pytest.mark.parametrize("state", list(State))
def test_the_metrics_show_exactly_the_state_an_agent_is_in(state: State) -> None:
    hosting = pending()
    hosting.agent.set_state(state)
    assert hosting.states == {one.value: float(one is state) for one in State}


def test_each_change_of_state_is_logged_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.agents")
    hosting = pending()
    agent = hosting.agent
    for _ in range(2):
        agent.set_state(State.STARTING)
    for reason in ("no key", "no key", "no model at 0x7f1a", "no model at 0x99bc"):
        agent.set_state(State.FAILED, reason=reason)
    for _ in range(2):
        agent.set_state(State.READY, runtime=MemoryAgentRuntime(MemoryAgent()))

    assert logged(caplog) == [
        ("INFO", "agent starting", None),
        ("ERROR", "agent failed", "no key"),
        ("ERROR", "agent failed", "no model at 0x7f1a"),
        ("INFO", "agent ready", None),
    ]
    counts = {state.value: hosting.metric("agent_state_changes_total", state=state.value) for state in State}
    assert counts == {"pending": 0, "starting": 1, "failed": 1, "ready": 1}


def test_a_state_began_when_it_was_entered_first() -> None:
    agent = pending().agent
    agent.set_state(State.FAILED, reason="no key")
    since = agent.status.since
    agent.set_state(State.FAILED, reason="no model")
    assert (agent.status.since, agent.status.reason) == (since, "no model")
    agent.set_state(State.READY, runtime=MemoryAgentRuntime(MemoryAgent()))
    assert agent.status.since > since


async def test_a_ready_agent_knows_its_model_until_it_is_left() -> None:
    async with ready(MemoryAgent(model=SEEING)) as hosting:
        assert hosting.agent.model == SEEING
        hosting.agent.leave("the gateway is stopping")
        assert hosting.agent.model is None
        assert hosting.states["ready"] == 0
        with pytest.raises(AgentUnavailableError, match="the gateway is stopping"):
            await hosting.answer(a_call())


@pytest.mark.parametrize(("state", "reason"), [(State.READY, None), (State.FAILED, "no key")])
async def test_a_call_waits_for_an_agents_first_start(state: State, reason: str | None) -> None:
    hosting = pending(queue_seconds=60)
    async with hosting.tasks, MemoryRuntime({"echo": MemoryAgent()}).start(a_spec("echo")) as started:
        answering = asyncio.create_task(hosting.answer(a_call()))
        hosting.agent.set_state(State.STARTING)
        await tick()
        assert not answering.done()
        if state is State.READY:
            hosting.agent.set_state(state, runtime=started)
            assert (await answering).failure is None
        else:
            hosting.agent.set_state(state, reason=reason)
            with pytest.raises(AgentUnavailableError, match="no key"):
                await answering


async def test_an_agent_that_has_left_is_not_waited_for() -> None:
    hosting = pending(queue_seconds=60)
    hosting.agent.leave("the gateway is stopping")
    with pytest.raises(AgentUnavailableError, match="the gateway is stopping"):
        await asyncio.wait_for(hosting.answer(a_call()), 20)


async def test_an_answered_call_is_counted_with_its_turns_and_tokens() -> None:
    big = TurnUsage("big", Usage(input=10, output=5, cache_read=4, reasoning=2))
    small = TurnUsage("small", Usage(input=1, output=1))
    agent = MemoryAgent(lambda call: say("done", turns=(big, small, big)))

    async with ready(agent) as hosting:
        reply = await hosting.answer(a_call())

    assert text_of(reply) == "done"
    assert hosting.outcomes() == {"ok": 1}
    assert hosting.metric("send_message_duration_seconds_count") == 1
    assert [hosting.metric("llm_turns_total", model=model) for model in ("big", "small")] == [2, 1]
    kinds = {kind: hosting.metric("llm_tokens_total", model="big", kind=kind) for kind in Usage().as_dict()}
    assert kinds == {"input": 20, "output": 10, "cache_read": 8, "cache_write": 0, "reasoning": 4}
    assert (agent.opened, agent.disposed) == (1, 1)


async def test_a_cache_hit_is_a_cache_read_from_a_provider_that_caches_by_itself() -> None:
    usage = Usage(input=10, cache_read=4)
    turns = (TurnUsage("asked", usage), TurnUsage("automatic", usage, caches_by_itself=True))
    async with ready(MemoryAgent(lambda call: say("done", turns=turns))) as hosting:
        await hosting.answer(a_call())

    def tokens(model: str) -> list[float | None]:
        return [hosting.metric("llm_tokens_total", model=model, kind=kind) for kind in ("cache_read", "cache_hit")]

    assert tokens("asked") == [4, None]
    assert tokens("automatic") == [4, 4]


async def test_an_agent_is_counted_from_0_before_its_first_call() -> None:
    hosting = pending()
    for outcome in OUTCOMES:
        assert hosting.metric("send_message_total", outcome=outcome) == 0
    for reason in HALTS:
        assert hosting.metric("agent_loop_aborted_total", reason=reason) == 0
    for reason in REFUSALS:
        assert hosting.metric("calls_refused_total", reason=reason) == 0
    assert hosting.metric("send_message_duration_seconds_count") == 0

    async with ready(MemoryAgent(downstreams=(Downstream("tools", "http://tools"),))) as hosting:
        for outcome in OUTCOMES:
            assert hosting.metric("tool_calls_total", server="tools", operation="tool", outcome=outcome) == 0


async def test_a_failed_call_is_an_error_but_not_a_refusal_and_what_it_spent_is_counted() -> None:
    turn = TurnUsage("big", Usage(input=10))
    agent = MemoryAgent(fail("The model could not answer: overloaded", turns=[turn]))
    async with ready(agent) as hosting:
        reply = await hosting.answer(a_call())

    assert (text_of(reply), reply.failure) == ("The model could not answer: overloaded", "llm_error")
    assert hosting.outcomes() == {"error": 1}
    assert hosting.metric("llm_turns_total", model="big") == 1
    assert hosting.metric("llm_tokens_total", model="big", kind="input") == 10
    assert hosting.metric("calls_refused_total", reason="llm_error") is None
    assert hosting.metric("send_message_duration_seconds_count") == 1
    assert (agent.opened, agent.disposed) == (1, 1)


async def test_an_unforeseen_error_is_an_error_and_leaves_nothing() -> None:
    def surprise(call: Call) -> Reply:
        raise ValueError("unforeseen")

    agent = MemoryAgent(surprise)
    async with ready(agent) as hosting:
        with pytest.raises(ValueError, match="unforeseen"):
            await hosting.answer(a_call())

    assert hosting.outcomes() == {"error": 1}
    assert (agent.opened, agent.disposed, hosting.calls.started) == (1, 1, 0)


def test_a_call_refused_for_its_arguments_is_counted_and_logged_as_its_callers_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pallas.calls")
    hosting, call = pending(), a_call()
    hosting.agent.refuse(call, CallRefusedError("no message", reason="bad_input"))
    assert hosting.outcomes() == {"error": 1}
    assert hosting.metric("calls_refused_total", reason="bad_input") == 1
    assert hosting.metric("send_message_duration_seconds_count") == 1
    [record] = caplog.records
    assert (record.levelname, record.message, vars(record)["call_id"]) == ("INFO", "call refused", call.call_id)
    assert (vars(record)["reason"], vars(record)["error"]) == ("bad_input", "no message")


async def test_a_cancelled_call_leaves_nothing_and_what_it_has_spent_is_counted() -> None:
    spent = TurnUsage("big", Usage(input=10, output=2))
    agent = MemoryAgent(turns_so_far=[spent, spent], answering=(gate := Gate()))
    async with ready(agent) as hosting:
        answering = hosting.begin(a_call("wait"))
        await gate.wait_for_entered()
        await cancelled(answering)

        await agent.until(lambda agent: agent.disposed == 1)
        await hosting.tasks.wait_until_idle()

        assert gate.cancelled == ["wait"]
        assert hosting.outcomes() == {"error": 1}
        assert (hosting.metric("calls_in_flight"), hosting.metric("instances_live")) == (0, 0)
        assert hosting.calls.started == 0
    assert hosting.metric("llm_turns_total", model="big") == 2
    assert hosting.metric("llm_tokens_total", model="big", kind="input") == 20


async def test_a_call_tells_its_client_that_it_is_admitted_and_what_it_does() -> None:
    sink, options = unread(StreamOptions(progress=True))
    async with ready(MemoryAgent(tells=tell_a_turn)) as hosting:
        await hosting.agent.answer(RunningCall(hosting.agent, a_call("hi"), sink, options))
    sink.close()

    turn = TurnEnded(Emitter("echo", None), 1, "hi", stop_reason="endTurn")
    assert [event async for event in sink.events()] == [Admitted(), StepBegan("echo", 1, "llm"), turn]


@pytest.mark.parametrize(("nesting", "refused"), [(0, False), (2, False), (3, True)])
async def test_calls_nested_deeper_than_the_limit_are_refused(nesting: int, refused: bool) -> None:
    async with ready(max_nesting=2) as hosting:
        call = a_call(nesting=nesting)
        if not refused:
            assert text_of(await hosting.answer(call)) == "hello"
            return
        with pytest.raises(CallRefusedError, match="3 calls deep; the limit is 2") as raised:
            await hosting.answer(call)
    assert raised.value.reason == "nesting_too_deep"
    assert hosting.metric("calls_refused_total", reason="nesting_too_deep") == 1


async def test_a_call_that_only_says_it_is_nested_waits_like_any_other() -> None:
    async with ready(gateway_calls=0) as hosting:
        with pytest.raises(CallRefusedError) as raised:
            await hosting.answer(replace(a_call(), nesting=1))
    assert raised.value.reason == "busy"


async def test_a_nested_call_is_answered_when_the_gateway_is_full() -> None:
    async with ready(gateway_calls=0) as hosting:
        assert text_of(await hosting.answer(a_call("nested", nesting=1))) == "nested"
