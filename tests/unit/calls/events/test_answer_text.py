"""The text of the served agent: all that it says, once and in order, whatever its model and the gateway add."""

from dataclasses import replace

import pytest
from mcp_types import TextContent

from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.events import queue
from pallas_gateway.calls.events.answer_text import AnswerSink, AnswerText, text_of
from pallas_gateway.calls.events.events import Emitter, Event, FromPeer, TextDelta, ToolCall, TurnEnded
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from tests.support.memory_runtime import a_call, fail, say

HARPER, SCOUT = Emitter("harper", None), Emitter("harper", None, is_served=False)
SEARCH = ToolCall("c-1", "web", "search", {"q": "cats"})
type Step = list[Event]


def live(iteration: int, *texts: str, by: Emitter = HARPER) -> Step:
    """What a model says piece by piece."""
    return [TextDelta(by, iteration, text) for text in texts]


def turn(iteration: int, text: str, *calls: ToolCall, by: Emitter = HARPER, stop_reason: str = "endTurn") -> Step:
    """The end of an LLM turn."""
    return [TurnEnded(by, iteration, text, calls, stop_reason)]


def told(*steps: Step, reply: Reply) -> tuple[list[str], Reply]:
    """The texts of a call that tells `steps` and comes to `reply`, and the reply that clients get."""
    said = AnswerText()
    texts = [said.of(event) for step in steps for event in step]
    rest, reply = said.ending(reply)
    return [text for text in (*texts, rest) if text], reply


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
    "a peer": ([[FromPeer({"kind": "assistant_chunk", "text": "psst"})], turn(1, "3.")], say("3."), "3."),
    "a turn that failed in an agent that goes on": (
        [turn(1, "Error code: 500", stop_reason="error"), turn(2, "3.")],
        say("3."),
        "3.",
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_all_that_the_served_agent_says_is_said_once_and_in_order(story: str) -> None:
    steps, reply, text = STORIES[story]
    texts, ended = told(*steps, reply=reply)
    assert ("".join(texts), ended) == (text, reply)


def test_the_sentence_of_a_deadline_that_came_before_any_word_is_no_text_of_the_agent() -> None:
    reply = say(STOPPED, halted=["deadline"])
    assert told(turn(1, "", SEARCH), reply=reply) == ([], replace(reply, failure="deadline"))
    assert told(live(1, "So"), reply=reply) == (["So", f"\n\n{STOPPED}"], reply)


def test_the_text_of_a_call_that_fails_is_no_text_of_the_agent() -> None:
    reply = fail("The model could not answer: overloaded")(a_call())
    assert told(live(1, "Once"), reply=reply) == (["Once"], reply)


def test_the_answer_alone_is_what_send_message_gives() -> None:
    assert text_of(blocks("So far", STOPPED)) == f"So far\n{STOPPED}"


async def test_events_without_text_never_crowd_out_the_text_of_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MOST_EVENTS", 2)
    monkeypatch.setattr(queue, "LONGEST_TEXT", 10)
    events = EventQueue(StreamOptions(deltas=True), may_miss=())
    sink = AnswerSink(AnswerText(), events)
    for number in range(20):
        sink.put(TextDelta(HARPER, 1, f"{number} "))
        sink.put(FromPeer({"kind": "assistant_chunk", "text": "psst"}))
        sink.put(TurnEnded(SCOUT, number, "psst", [SEARCH]))
    events.close()

    assert [event.text async for event in events.events() if isinstance(event, TextDelta)] == [
        "".join(f"{number} " for number in range(20))
    ]
