"""The in-memory runtime does what tests tell it to; that it keeps the ports' promises is the contract test's."""

import asyncio

import pytest

from pallas_gateway.calls.credentials import Credentials
from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.runtime.protocols import Downstream, ModelFacts
from tests.support.memory_runtime import (
    NOBODY,
    MemoryAgent,
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
from tests.support.waiting import Gate, eventually


async def test_an_agent_answers_what_its_function_says_and_shows_what_it_was_given() -> None:
    facts, tools = ModelFacts("big", frozenset({"image/png"})), (Downstream("tools", "http://127.0.0.1:9/mcp"),)
    agent = MemoryAgent(lambda call: say(call.message.text.upper()), model=facts, downstreams=tools)
    runtime = MemoryRuntime({"loud": agent})
    call, credentials = a_call("hi", agent="loud"), Credentials(Secret("t"))

    async with runtime.start(a_plan("loud")) as started, started.open(call, credentials, a_channel()) as instance:
        assert (started.model, started.downstreams) == (facts, tools)
        assert text_of(await instance.generate(call, timeout_seconds=60)) == "HI"

    assert (agent.calls, agent.credentials) == ([call], [credentials])
    assert (agent.starts, agent.leaves, agent.opened, agent.disposed) == (1, 1, 1, 1)
    assert runtime.plans == [a_plan("loud")]


async def test_starts_fail_as_often_as_they_are_told_to() -> None:
    agent = MemoryAgent(start_failures=[AgentStartError("no key"), ValueError("surprise")])
    runtime = MemoryRuntime({"echo": agent})

    for error in (AgentStartError, ValueError):
        with pytest.raises(error):
            await runtime.start(a_plan("echo")).__aenter__()
    async with runtime.start(a_plan("echo")):
        assert agent.starts == 3


async def test_starts_and_calls_wait_at_their_gates() -> None:
    agent = MemoryAgent(starting=(starting := Gate()), answering=(answering := Gate()))
    runtime = MemoryRuntime({"echo": agent})

    async def use() -> str:
        async with (
            runtime.start(a_plan("echo")) as started,
            started.open(a_call("hi"), NOBODY, a_channel()) as instance,
        ):
            return text_of(await instance.generate(a_call("hi"), timeout_seconds=60))

    using = asyncio.create_task(use())
    await starting.wait_for_entered()
    assert agent.opened == 0
    starting.open()
    await answering.wait_for_entered()
    assert agent.disposed == 0
    answering.open()

    assert await using == "hi"
    assert (starting.passed, answering.passed) == (["echo"], ["hi"])


async def test_whoever_waits_for_an_agent_sees_its_changes() -> None:
    agent = MemoryAgent(fail())
    async with MemoryRuntime({"echo": agent}).start(a_plan("echo")) as started:
        waiting = asyncio.create_task(agent.until(lambda agent: agent.disposed == 1))
        async with started.open(a_call(), NOBODY, a_channel()) as instance:
            reply = await instance.generate(a_call(), timeout_seconds=60)
        await waiting
    assert (text_of(reply), reply.failure) == ("The model could not answer: overloaded", "llm_error")


async def test_an_agent_tells_its_channel_what_its_function_tells_before_it_answers() -> None:
    agent = MemoryAgent(tells=tell_a_turn, answering=(gate := Gate()))
    outlet, call = RecordingOutlet(), a_call("hi")
    async with (
        MemoryRuntime({"echo": agent}).start(a_plan("echo")) as started,
        sending(channel := a_channel(outlet)),
        started.open(call, NOBODY, channel) as instance,
    ):
        answering = asyncio.create_task(instance.generate(call, timeout_seconds=60))
        await gate.wait_for_entered()
        await eventually(lambda: outlet.payloads, what="what it told")
        gate.open()
        assert text_of(await answering) == "hi"

    assert [event.message for event in outlet.events] == ["echo step 1 (llm)"]
    assert [payload["text"] for payload in outlet.payloads] == ["hi"]
