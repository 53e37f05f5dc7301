"""A call as events: all that the served agent says, once and in order, whatever its model and the gateway add."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from mcp_types import TextContent

from pallas_gateway.calls.assistant_stream import (
    LONGEST_RESULT,
    Emitter,
    FromPeer,
    ToolCall,
    ToolResult,
    ToolsEnded,
    TurnEnded,
)
from pallas_gateway.calls.call import Call, Reply
from pallas_gateway.errors import CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.events.call_events import (
    Admitted,
    Event,
    EventChannel,
    Replied,
    TextDelta,
    ToolCalled,
    ToolResulted,
    text_of,
)
from pallas_gateway.events.channel import EventSink
from pallas_gateway.hosting.event_stream import begun
from pallas_gateway.hosting.hosted_agent import HostedAgent
from pallas_gateway.hosting.running_calls import RunningCalls
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry import redaction
from tests.support.hosted import ready
from tests.support.memory_runtime import MemoryAgent, a_call, fail, say
from tests.support.waiting import Gate

HARPER, SCOUT = Emitter("harper", None), Emitter("harper", None, is_served=False)
SEARCH = ToolCall("c-1", "web", "search", {"q": "cats"})
Step = Callable[[EventChannel], None]


def live(iteration: int, *texts: str, by: Emitter = HARPER) -> Step:
    """What a model says piece by piece."""

    def step(channel: EventChannel) -> None:
        for text in texts:
            channel.live_text(by, iteration, text)

    return step


def turn(
    iteration: int, text: str, *calls: ToolCall, by: Emitter | None = HARPER, stop_reason: str = "endTurn"
) -> Step:
    """The end of an LLM turn."""
    event = TurnEnded(by or HARPER, iteration, text, calls, stop_reason)
    return lambda channel: channel.event(event if by else FromPeer(event.payload()))


def tools(iteration: int, *outcomes: ToolResult, by: Emitter = HARPER) -> Step:
    """The end of a round of tools."""
    return lambda channel: channel.event(ToolsEnded(by, iteration, outcomes))


def told(*steps: Step, reply: Reply, is_live: bool = True) -> list[Event]:
    """The events of a call that tells `steps` and comes to `reply`, read at its end."""
    return asyncio.run(_told(steps, reply, is_live=is_live))


async def _told(steps: tuple[Step, ...], reply: Reply, *, is_live: bool) -> list[Event]:
    channel = EventChannel(live=is_live)
    for step in steps:
        step(channel)
    channel.close()
    return [*[event async for event in channel.events()], *channel.ending(reply)]


def text_in(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def blocks(*texts: str) -> Reply:
    return Reply(tuple(TextContent(type="text", text=text) for text in texts), "endTurn")


STOPPED = "[Stopped: out of time.]"
STORIES: dict[str, tuple[list[Step], Reply, str]] = {
    "one turn, live": ([live(1, "It ", "is ", "3."), turn(1, "It is 3.")], say("It is 3."), "It is 3."),
    "one turn, at once": ([turn(1, "It is 3.")], say("It is 3."), "It is 3."),
    "one turn, of which a part came live": ([live(1, "It "), turn(1, "It is 3.")], say("It is 3."), "It is 3."),
    "nothing but an answer, as of a workflow": ([], say("It is 3."), "It is 3."),
    "nothing at all": ([turn(1, "")], say(""), ""),
    "words before a tool": (
        [live(1, "Let me see."), turn(1, "Let me see.", SEARCH), live(2, "3."), turn(2, "3.")],
        say("3."),
        "Let me see.\n\n3.",
    ),
    "a tool without words": ([turn(1, "", SEARCH), live(2, "3."), turn(2, "3.")], say("3."), "3."),
    "the same words again": ([turn(1, "3", SEARCH), turn(2, "3")], say("3"), "3\n\n3"),
    "words that begin like those before": ([turn(1, "3", SEARCH), turn(2, "34")], say("34"), "3\n\n34"),
    "nothing after the tool": ([turn(1, "Here you are.", SEARCH), turn(2, "")], say(""), "Here you are."),
    "a limit": (
        [live(1, "So far"), turn(1, "So far")],
        blocks("So far", "[Stopped: the limit.]"),
        "So far\n[Stopped: the limit.]",
    ),
    "a loop that was halted": (
        [turn(1, "Again.", SEARCH), turn(2, "Again.", SEARCH)],
        say("I stopped: a tool repeats."),
        "Again.\n\nAgain.\n\nI stopped: a tool repeats.",
    ),
    "a deadline within a turn": (
        [turn(1, "Let me see.", SEARCH), live(2, "It i")],
        blocks("Let me see.", STOPPED),
        f"Let me see.\n\nIt i\n\n{STOPPED}",
    ),
    "a deadline of a workflow": ([], blocks("A draft.", STOPPED), f"A draft.\n{STOPPED}"),
    "a second try of the provider": (
        [live(1, "It", "It ", "is 3."), turn(1, "It is 3.")],
        say("It is 3."),
        "ItIt is 3.",
    ),
    "a model whose live text was something else": (
        [live(1, "Hmm."), turn(1, "It is 3.")],
        say("It is 3."),
        "Hmm.\n\nIt is 3.",
    ),
    "an answer that a hook has changed": ([live(1, "3"), turn(1, "3")], say("Three."), "3\n\nThree."),
    "an agent inside it, of the same name": (
        [live(1, "psst", by=SCOUT), turn(1, "psst", by=SCOUT), live(1, "3."), turn(1, "3.")],
        say("3."),
        "3.",
    ),
    "a peer": ([turn(1, "psst", by=None), turn(1, "3.")], say("3."), "3."),
    "a turn that failed in an agent that goes on": (
        [turn(1, "Error code: 500", stop_reason="error"), turn(2, "3.")],
        say("3."),
        "3.",
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_all_that_the_served_agent_says_is_said_once_and_in_order(story: str) -> None:
    steps, reply, text = STORIES[story]
    events = told(*steps, reply=reply)
    assert text_in(events) == text
    assert events[-1] == Replied(reply)
    assert not any(isinstance(one, TextDelta) and isinstance(other, TextDelta) for one, other in pairwise(events[:-2]))


def test_the_sentence_of_a_deadline_that_came_before_any_word_is_no_text_of_the_agent() -> None:
    reply = say(STOPPED, halted=["deadline"])
    assert told(turn(1, "", SEARCH), reply=reply)[1:] == [Replied(replace(reply, failure="deadline"))]
    assert told(live(1, "So"), reply=reply) == [TextDelta("So"), TextDelta(f"\n\n{STOPPED}"), Replied(reply)]


def test_the_text_of_a_call_that_fails_is_no_text_of_the_agent() -> None:
    reply = fail("The model could not answer: overloaded")(a_call())
    assert told(live(1, "Once"), reply=reply) == [TextDelta("Once"), Replied(reply)]


def test_tools_of_every_agent_in_the_call_are_told_with_what_they_brought() -> None:
    outcomes = [ToolResult(SEARCH, is_error=False, text="x" * 5000, duration_seconds=0.1)]
    broken = ToolResult(ToolCall("c-2", None, "ask", {}), is_error=True, text="no", duration_seconds=0.1)
    events = told(
        turn(1, "Let me see.", SEARCH),
        tools(1, *outcomes),
        turn(1, "", broken.call, by=SCOUT),
        tools(1, broken, by=SCOUT),
        reply=say("3."),
    )
    assert events == [
        TextDelta("Let me see."),
        ToolCalled("c-1", "harper", "web", "search", {"q": "cats"}),
        ToolResulted("c-1", "harper", "web", "search", ok=True, text="x" * LONGEST_RESULT),
        ToolCalled("c-2", "harper", None, "ask", {}),
        ToolResulted("c-2", "harper", None, "ask", ok=False, text="no"),
        TextDelta("\n\n3."),
        Replied(say("3.")),
    ]


def test_tools_do_not_tell_the_callers_token() -> None:
    call = ToolCall("c-1", "web", "search", {"token": "canary-of-ann"})
    result = ToolResult(call, is_error=False, text="you sent canary-of-ann", duration_seconds=0.1)
    with redaction.hiding("canary-of-ann"):
        events = told(turn(1, "", call), tools(1, result), reply=say("3."))
    assert [type(event) for event in events[:2]] == [ToolCalled, ToolResulted]
    assert "canary" not in str([(e.arguments, e) for e in events[:1] if isinstance(e, ToolCalled)])
    assert "canary" not in str([e.text for e in events[1:2] if isinstance(e, ToolResulted)])


def test_the_answer_alone_is_what_send_message_gives() -> None:
    assert text_of(blocks("So far", STOPPED)) == f"So far\n{STOPPED}"


# The stream


async def events_of(agent: HostedAgent, running: RunningCalls, text: str = "hello") -> list[Event]:
    async with begun(agent, a_call(text), running, live=True) as events:
        return [event async for event in events]


def tell_hello(call: Call, channel: EventSink) -> None:
    channel.live_text(Emitter(call.agent, None), 1, "Hel")


async def test_text_is_there_before_the_answer_is() -> None:
    gate = Gate()
    memory = MemoryAgent(tells=tell_hello, answering=gate, answer=lambda _: say("Hello."))
    async with ready(memory) as one, begun(one.agent, a_call(), one.running, live=True) as events:
        first = [await asyncio.wait_for(anext(events), 20) for _ in range(2)]
        assert gate.passed == []
        gate.open()
        rest = [event async for event in events]
    assert [*first, *rest] == [Admitted(), TextDelta("Hel"), TextDelta("lo."), Replied(say("Hello."))]


async def test_who_leaves_the_block_cancels_the_call() -> None:
    memory = MemoryAgent(answering=Gate())
    assert memory.answering is not None
    async with ready(memory) as one:
        agent, running = one.agent, one.running
        async with begun(agent, a_call("wait"), running, live=True):
            await memory.answering.wait_for_entered()
        await memory.answering.wait_for_cancelled()
        await memory.until(lambda m: m.disposed == 1)
        assert len(running) == 0


async def test_a_refused_call_raises_before_any_event() -> None:
    gate = Gate()
    one_at_a_time = ready(MemoryAgent(answering=gate), calls=1)
    async with one_at_a_time as one, begun(one.agent, a_call("first"), one.running, live=True) as events:
        await gate.wait_for_entered()
        with pytest.raises(CallRefusedError, match="busy"):
            await events_of(one.agent, one.running, "second")
        gate.open()
        assert [event async for event in events] == [Admitted(), TextDelta("first"), Replied(say("first"))]


@pytest.mark.parametrize(("draining", "reason"), [(False, "cancelled"), (True, "stopped")])
async def test_a_call_that_is_cut_off_says_why(draining: bool, reason: str) -> None:
    gate, tasks = Gate(), TaskOwner()
    async with ready(MemoryAgent(answering=gate), tasks=tasks) as one:
        agent, running = one.agent, one.running
        reading = asyncio.create_task(events_of(agent, running))
        await gate.wait_for_entered()
        running.draining = draining
        await tasks.cancel_all()
        with pytest.raises(CallFailedError) as failure:
            await asyncio.wait_for(reading, 20)
    assert failure.value.reason == reason


async def test_whatever_else_goes_wrong_is_raised_to_the_reader() -> None:
    def explode(_: Call) -> Reply:
        raise GatewayError("boom")

    async with ready(MemoryAgent(answer=explode)) as one:
        agent, running = one.agent, one.running
        with pytest.raises(GatewayError, match="boom"):
            await events_of(agent, running)
