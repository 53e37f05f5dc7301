"""One hosted agent: its states, the path of every call, and what is counted on the way."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from pallas_gateway.agents.admission import Admission, Limit
from pallas_gateway.agents.agent_state import HostContext, State, Status
from pallas_gateway.agents.fitting import fit_to_model
from pallas_gateway.agents.hosted_agent import HostedAgent
from pallas_gateway.calls.call import Call, Image, Message, Reply, TurnUsage, Usage
from pallas_gateway.calls.channel import StreamOptions
from pallas_gateway.calls.nesting import RunningCalls
from pallas_gateway.config.model.schema import AgentSettings
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.secret import Secret
from pallas_gateway.runtime.protocols import Downstream, ModelFacts
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import HALTS, OUTCOMES, REFUSALS, Metrics
from tests.support.memory_runtime import (
    NEVER,
    MemoryAgent,
    MemoryAgentRuntime,
    MemoryRuntime,
    RecordingOutlet,
    a_call,
    a_channel,
    a_plan,
    fail,
    say,
    tell_a_turn,
    text_of,
)
from tests.support.sending import sending
from tests.support.waiting import Gate, eventually, tick

IMAGE, GIF = Image("iVBORw0KGgo=", "image/png"), Image("R0lGODlh", "image/gif")
BLIND = ModelFacts("blind")
SEEING = ModelFacts("eyes", frozenset({"image/png", "image/webp"}))


@dataclass(frozen=True)
class Hosting:
    """A hosted agent, not started, and all it shares with others."""

    agent: HostedAgent
    tasks: TaskOwner
    running: RunningCalls
    metrics: Metrics

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"pallas_{name}", {"agent": "echo", **labels})

    def outcomes(self) -> dict[str, float]:
        counted = {outcome: self.metric("send_message_total", outcome=outcome) for outcome in ("ok", "error")}
        return {outcome: count for outcome, count in counted.items() if count}

    @property
    def states(self) -> dict[str, float]:
        return {state.value: self.metric("agent_state", state=state.value) or 0.0 for state in State}


def pending(
    *,
    settings: AgentSettings | None = None,
    admission: Admission | None = None,
    max_nesting: int = 8,
    heartbeat_seconds: float = NEVER,
) -> Hosting:
    tasks, running, metrics = TaskOwner(), RunningCalls(), Metrics(CollectorRegistry())
    agent = HostedAgent(
        "echo",
        settings or AgentSettings(module="agents.echo"),
        admission or Admission(own=Limit(None), gateway=Limit(None), queue_seconds=0),
        HostContext(running, tasks, metrics, max_nesting, heartbeat_seconds),
    )
    return Hosting(agent, tasks, running, metrics)


@asynccontextmanager
async def ready(
    agent: MemoryAgent | None = None,
    *,
    settings: AgentSettings | None = None,
    admission: Admission | None = None,
    max_nesting: int = 8,
) -> AsyncGenerator[Hosting]:
    hosting = pending(settings=settings, admission=admission, max_nesting=max_nesting)
    runtime = MemoryRuntime({"echo": agent or MemoryAgent()})
    async with hosting.tasks, runtime.start(a_plan("echo")) as started:
        hosting.agent.enter(State.READY, runtime=started)
        yield hosting


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str | None]]:
    records = [record for record in caplog.records if record.name == "pallas.agents"]
    return [(record.levelname, record.message, vars(record).get("reason")) for record in records]


# State


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
    hosting.agent.enter(state)
    assert hosting.states == {one.value: float(one is state) for one in State}


def test_each_change_of_state_is_logged_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.agents")
    hosting = pending()
    agent = hosting.agent
    for _ in range(2):
        agent.enter(State.STARTING)
    for reason in ("no key", "no key", "no model at 0x7f1a", "no model at 0x99bc"):
        agent.enter(State.FAILED, reason=reason)
    for _ in range(2):
        agent.enter(State.READY, runtime=MemoryAgentRuntime(MemoryAgent()))

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
    agent.enter(State.FAILED, reason="no key")
    since = agent.status.since
    agent.enter(State.FAILED, reason="no model")
    assert (agent.status.since, agent.status.reason) == (since, "no model")
    agent.enter(State.READY, runtime=MemoryAgentRuntime(MemoryAgent()))
    assert agent.status.since > since


async def test_a_ready_agent_knows_its_model_until_it_is_left() -> None:
    async with ready(MemoryAgent(model=SEEING)) as hosting:
        assert hosting.agent.model == SEEING
        hosting.agent.leave("the gateway is stopping")
        assert hosting.agent.model is None
        assert hosting.states["ready"] == 0
        with pytest.raises(AgentUnavailableError, match="the gateway is stopping"):
            await hosting.agent.answer(a_call(), a_channel())


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        (State.PENDING, None, "Agent 'echo' cannot take calls: the agent is pending; try again in a moment"),
        (State.STARTING, None, "Agent 'echo' cannot take calls: the agent is starting; try again in a moment"),
        (State.FAILED, "no key", "Agent 'echo' cannot take calls: no key"),
    ],
)
async def test_an_agent_that_is_not_ready_refuses_calls_and_says_why(
    state: State, reason: str | None, says: str
) -> None:
    hosting = pending()
    hosting.agent.enter(state, reason=reason)

    with pytest.raises(AgentUnavailableError) as raised:
        await hosting.agent.answer(a_call(), a_channel())

    assert str(raised.value) == says
    assert hosting.outcomes() == {"error": 1}
    assert hosting.metric("calls_refused_total", reason="agent_unavailable") == 1


@pytest.mark.parametrize(("state", "reason"), [(State.READY, None), (State.FAILED, "no key")])
async def test_a_call_waits_for_an_agents_first_start(state: State, reason: str | None) -> None:
    hosting = pending(admission=Admission(own=Limit(None), gateway=Limit(None), queue_seconds=60))
    async with hosting.tasks, MemoryRuntime({"echo": MemoryAgent()}).start(a_plan("echo")) as started:
        answering = asyncio.create_task(hosting.agent.answer(a_call(), a_channel()))
        hosting.agent.enter(State.STARTING)
        await tick()
        assert not answering.done()
        if state is State.READY:
            hosting.agent.enter(state, runtime=started)
            assert (await answering).failure is None
        else:
            hosting.agent.enter(state, reason=reason)
            with pytest.raises(AgentUnavailableError, match="no key"):
                await answering


async def test_an_agent_that_has_left_is_not_waited_for() -> None:
    hosting = pending(admission=Admission(own=Limit(None), gateway=Limit(None), queue_seconds=60))
    hosting.agent.leave("the gateway is stopping")
    with pytest.raises(AgentUnavailableError, match="the gateway is stopping"):
        await asyncio.wait_for(hosting.agent.answer(a_call(), a_channel()), 20)


# Answers


async def test_an_answered_call_is_counted_with_its_turns_and_tokens() -> None:
    big = TurnUsage("big", Usage(input=10, output=5, cache_read=4, reasoning=2))
    small = TurnUsage("small", Usage(input=1, output=1))
    agent = MemoryAgent(lambda call: say("done", turns=(big, small, big)))

    async with ready(agent) as hosting:
        reply = await hosting.agent.answer(a_call(), a_channel())

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
        await hosting.agent.answer(a_call(), a_channel())

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


@pytest.mark.parametrize("stop_reason", ["endTurn", "maxIterations"])
async def test_a_partial_answer_is_an_answer(stop_reason: str) -> None:
    async with ready(MemoryAgent(lambda call: say("so far", stop_reason=stop_reason))) as hosting:
        assert (await hosting.agent.answer(a_call(), a_channel())).stop_reason == stop_reason
    assert hosting.outcomes() == {"ok": 1}


async def test_a_failed_call_is_an_error_but_not_a_refusal_and_what_it_spent_is_counted() -> None:
    turn = TurnUsage("big", Usage(input=10))
    agent = MemoryAgent(fail("The model could not answer: overloaded", turns=[turn]))
    async with ready(agent) as hosting:
        reply = await hosting.agent.answer(a_call(), a_channel())

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
            await hosting.agent.answer(a_call(), a_channel())

    assert hosting.outcomes() == {"error": 1}
    assert (agent.opened, agent.disposed, len(hosting.running)) == (1, 1, 0)


async def test_each_halted_loop_is_counted_and_the_call_is_a_success() -> None:
    agent = MemoryAgent(lambda call: say("stopped", halted=("repeat", "oscillation", "repeat")))
    async with ready(agent) as hosting:
        await hosting.agent.answer(a_call(), a_channel())

    reasons = ("repeat", "oscillation", "deadline")
    assert [hosting.metric("agent_loop_aborted_total", reason=reason) for reason in reasons] == [2, 1, 0]
    assert hosting.outcomes() == {"ok": 1}


async def test_a_refused_call_is_an_error_with_its_reason_and_costs_no_instance() -> None:
    agent, admission = MemoryAgent(), Admission(own=Limit(0), gateway=Limit(None), queue_seconds=0)
    async with ready(agent, admission=admission) as hosting:
        with pytest.raises(CallRefusedError, match="busy"):
            await hosting.agent.answer(a_call(), a_channel())

    assert hosting.outcomes() == {"error": 1}
    assert hosting.metric("calls_refused_total", reason="busy") == 1
    assert agent.opened == 0


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


async def test_a_running_call_is_in_flight_holds_an_instance_and_then_nothing() -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with ready(agent) as hosting:
        calls = [a_call("one"), a_call("two")]
        answering = [asyncio.create_task(hosting.agent.answer(call, a_channel())) for call in calls]
        await gate.wait_for_entered(2)
        assert (hosting.metric("calls_in_flight"), hosting.metric("instances_live")) == (2, 2)
        assert len(hosting.running) == 2

        gate.open()
        await asyncio.gather(*answering)

        assert (hosting.metric("calls_in_flight"), hosting.metric("instances_live")) == (0, 0)
        assert len(hosting.running) == 0


async def test_the_callers_bearer_reaches_its_own_instance_only() -> None:
    agent = MemoryAgent()
    async with ready(agent) as hosting:
        for bearer in (Secret("anns"), None):
            await hosting.agent.answer(Call("echo", Message("user", "hi"), caller=Caller(bearer=bearer)), a_channel())
    assert [credentials.bearer for credentials in agent.credentials] == [Secret("anns"), None]


async def test_the_configured_deadline_is_the_calls() -> None:
    settings = AgentSettings(module="agents.echo", call_timeout_seconds=0.02)
    async with ready(MemoryAgent(answering=Gate()), settings=settings) as hosting:
        reply = await hosting.agent.answer(a_call(), a_channel())
    assert text_of(reply).startswith("[Stopped")
    assert hosting.metric("agent_loop_aborted_total", reason="deadline") == 1
    assert hosting.outcomes() == {"ok": 1}


async def test_a_cancelled_call_leaves_nothing() -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with ready(agent) as hosting:
        answering = hosting.agent.begin(a_call("wait"), a_channel())
        await gate.wait_for_entered()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering

        await agent.until(lambda agent: agent.disposed == 1)
        await hosting.tasks.wait_until_idle()

        assert gate.cancelled == ["wait"]
        assert hosting.outcomes() == {"error": 1}
        assert (hosting.metric("calls_in_flight"), hosting.metric("instances_live")) == (0, 0)
        assert len(hosting.running) == 0


async def test_what_a_cancelled_call_has_spent_is_counted() -> None:
    spent = TurnUsage("big", Usage(input=10, output=2))
    agent = MemoryAgent(turns_so_far=[spent, spent], answering=(gate := Gate()))
    async with ready(agent) as hosting:
        answering = hosting.agent.begin(a_call("wait"), a_channel())
        await gate.wait_for_entered()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering

    assert hosting.metric("llm_turns_total", model="big") == 2
    assert hosting.metric("llm_tokens_total", model="big", kind="input") == 20


async def test_one_calls_failure_is_not_anothers() -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with ready(agent) as hosting:
        surviving = asyncio.create_task(hosting.agent.answer(a_call("stay"), a_channel()))
        await gate.wait_for_entered()
        agent.answering, agent.answer = None, fail()
        assert (await hosting.agent.answer(a_call("fail"), a_channel())).failure == "llm_error"
        agent.answer = lambda call: say("still here")
        gate.open()
        assert text_of(await surviving) == "still here"


async def test_a_call_that_was_begun_is_one_the_gateway_waits_for() -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with ready(agent) as hosting:
        work = hosting.agent.begin(a_call("wait"), a_channel())
        await gate.wait_for_entered()
        idle = asyncio.create_task(hosting.tasks.wait_until_idle())
        await tick()
        assert not idle.done()
        gate.open()
        await asyncio.wait_for(idle, 20)
        assert text_of(work.result()) == "wait"


# What its client is told


async def test_a_call_tells_its_client_through_the_agents_channel_and_nothing_after_it() -> None:
    outlet = RecordingOutlet()
    async with ready(MemoryAgent(tells=tell_a_turn)) as hosting:
        async with sending(channel := hosting.agent.channel(outlet, StreamOptions(progress=True))):
            await hosting.agent.answer(a_call("hi"), channel)
        tell_a_turn(a_call("too late"), channel)
        await tick()

    assert [event.message for event in outlet.events] == ["echo step 1 (llm)"]
    assert [payload["text"] for payload in outlet.payloads] == ["hi"]


async def test_a_client_that_asked_for_no_progress_gets_none_but_the_assistant_stream() -> None:
    outlet = RecordingOutlet()
    async with (
        ready(MemoryAgent(tells=tell_a_turn)) as hosting,
        sending(channel := hosting.agent.channel(outlet, StreamOptions())),
    ):
        await hosting.agent.answer(a_call("hi"), channel)
    assert (outlet.events, len(outlet.payloads)) == ([], 1)


async def test_heartbeats_are_the_agents_and_are_counted() -> None:
    hosting, outlet = pending(heartbeat_seconds=0.001), RecordingOutlet()
    async with hosting.tasks, sending(hosting.agent.channel(outlet, StreamOptions(progress=True))):
        await eventually(lambda: len(outlet.events) >= 2, what="two heartbeats")
    assert {event.message for event in outlet.events} == {"echo working (0s)"}
    assert hosting.metric("heartbeats_total") == len(outlet.events)


# What a call may be


@pytest.mark.parametrize(("nesting", "refused"), [(0, False), (2, False), (3, True)])
async def test_calls_nested_deeper_than_the_limit_are_refused(nesting: int, refused: bool) -> None:
    async with ready(max_nesting=2) as hosting:
        call = a_call(nesting=nesting)
        if not refused:
            assert text_of(await hosting.agent.answer(call, a_channel())) == "hello"
            return
        with pytest.raises(CallRefusedError, match="3 calls deep; the limit is 2") as raised:
            await hosting.agent.answer(call, a_channel())
    assert raised.value.reason == "nesting_too_deep"
    assert hosting.metric("calls_refused_total", reason="nesting_too_deep") == 1


async def test_a_nested_call_is_answered_when_the_gateway_is_full() -> None:
    admission = Admission(own=Limit(None), gateway=Limit(0), queue_seconds=0)
    async with ready(admission=admission) as hosting:
        assert text_of(await hosting.agent.answer(a_call("nested", nesting=1), a_channel())) == "nested"


def test_a_model_gets_every_image_of_the_types_it_takes() -> None:
    call = Call("echo", Message("user", "see", (IMAGE,)), (Message("user", "before", (IMAGE,)),))
    assert fit_to_model(call, SEEING) == call


@pytest.mark.parametrize(
    ("images", "model", "says"),
    [
        ((IMAGE,), BLIND, "image 0 (image/png). It takes no images; send text only."),
        ((IMAGE, GIF), SEEING, "image 1 (image/gif). It takes image/png, image/webp."),
    ],
)
def test_an_image_of_the_turn_that_the_model_does_not_take_refuses_the_call(
    images: tuple[Image, ...], model: ModelFacts, says: str
) -> None:
    call = Call("echo", Message("user", "see", images))
    with pytest.raises(CallRefusedError) as raised:
        fit_to_model(call, model)
    assert str(raised.value) == f"Agent 'echo' uses the model '{model.name}', which does not take {says}"
    assert raised.value.reason == "images_unsupported"


@pytest.mark.parametrize(("model", "kept"), [(BLIND, ()), (SEEING, (IMAGE,))])
def test_images_in_history_that_the_model_does_not_take_are_dropped(
    model: ModelFacts, kept: tuple[Image, ...], caplog: pytest.LogCaptureFixture
) -> None:
    history = (Message("user", "before", (IMAGE, GIF)), Message("assistant", "ok"))
    call = Call("echo", Message("user", "see"), history)

    fitted = fit_to_model(call, model)

    assert fitted.history == (Message("user", "before", kept), Message("assistant", "ok"))
    assert fitted.call_id == call.call_id
    [record] = [record for record in caplog.records if record.name == "pallas.agents"]
    assert (record.levelname, record.message) == (
        "WARNING",
        "images in history dropped, the model does not take them",
    )
    assert vars(record)["images"] == 2 - len(kept)
