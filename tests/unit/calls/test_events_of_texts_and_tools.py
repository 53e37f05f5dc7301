"""The texts and tools of a call as clients of the OpenAI API and the threads API read them, at any speed."""

from pathlib import Path
from typing import Any, ClassVar, override

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.protocol_clients import ChatExchange, Exchange, TurnExchange
from tests.support.scripted_calls import AGENT, INNER, SERVED, ScriptedCall, Worlds, run_courses

TURN_BREAK = "\n\n"

type Thing = tuple[str, str]
"""A text, or the beginning or end of a tool call by its id."""


class TextsCourse(RuleBasedStateMachine):
    """The same course is told by a call of each API."""

    worlds: ClassVar[Worlds]

    def __init__(self) -> None:
        super().__init__()
        (self.world,) = self.worlds.take()
        self.expected: list[Thing] = []
        self.turn = 1
        self.number = 0
        self.live = self.last = ""
        self.tools: list[str] = []
        self.late: list[TurnExchange] = []
        self.has_ended = False

    @initialize()
    def begin(self) -> None:
        self.calls: list[ScriptedCall] = []
        self.chat = self._begun(ChatExchange(self.world, AGENT, stream=True))
        self.whole = self._begun(ChatExchange(self.world, AGENT, stream=False))
        self.stream = self._begun(TurnExchange(self.world, AGENT))
        self.background = self._begun(TurnExchange(self.world, AGENT, background=True))

    def _begun[T: Exchange](self, exchange: T) -> T:
        self.calls.append(self.world.latest())
        return exchange

    def _tell(self, name: str, *arguments: Any, **options: Any) -> None:
        for call in self.calls:
            self.world.do(getattr(call, name), *arguments, **options)

    def _said(self, text: str) -> None:
        """Note text of the served agent; texts of two turns are separated."""
        if not text:
            return
        if not self.live and any(kind == "text" for kind, _ in self.expected):
            text = TURN_BREAK + text
        self.expected.append(("text", text))

    @precondition(lambda self: not self.has_ended)
    @rule(text=st.text("ab\n", min_size=1, max_size=5))
    def live_text(self, text: str) -> None:
        self._tell("live_text", SERVED, self.turn, text)
        self._said(text)
        self.live += text

    @precondition(lambda self: not self.has_ended)
    @rule(rest=st.sampled_from(["", "the rest", "c"]), tools=st.integers(0, 2))
    def turn_ends(self, rest: str, tools: int) -> None:
        self.last = self.live + rest
        ids = [f"{self.turn}.{number}" for number in range(tools)]
        self._tell("turn_ended", SERVED, self.turn, self.last, ids)
        self._said(rest)
        self.expected += [("tool_call", id_) for id_ in ids]
        self.tools += ids
        self.turn, self.live = self.turn + 1, ""

    @precondition(lambda self: not self.has_ended and self.tools)
    @rule()
    def tools_end(self) -> None:
        self._tell("tools_ended", SERVED, self.turn - 1, self.tools, "found")
        self.expected += [("tool_result", id_) for id_ in self.tools]
        self.tools = []

    @precondition(lambda self: not self.has_ended)
    @rule()
    def an_inner_agent_speaks(self) -> None:
        self._tell("live_text", INNER, 1, "psst")
        self._tell("turn_ended", INNER, 1, "psst")
        self._tell("relayed", {"kind": "assistant_chunk", "schema_version": 3, "agent": "peer", "text": "psst"})
        self._tell("step", self.turn)

    @rule(which=st.integers(0, 3))
    def a_client_stops_reading(self, which: int) -> None:
        [self.chat, self.whole, self.stream, self.background][which].stop_reading()

    @rule()
    def all_clients_read_on(self) -> None:
        for one in (self.chat, self.whole, self.stream, self.background):
            one.read_on()

    @precondition(lambda self: len(self.late) < 3)
    @rule()
    def a_client_joins_the_background_turn(self) -> None:
        if self.background.thread_id is not None and not self.has_ended:
            self.late.append(TurnExchange(self.world, AGENT, thread_id=self.background.thread_id))

    @rule(seconds=st.sampled_from([0.1, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @precondition(lambda self: not self.has_ended)
    @rule(how=st.sampled_from(["answer", "note", "failure", "stopped"]))
    def ends(self, how: str) -> None:
        self.has_ended, self.how = True, how
        match how:
            case "stopped":
                self.world.finish(self.world.gateway.end_calls())
                self.world.rest()
            case "failure":
                self._tell("end", "it failed", failure="llm_error")
            case _:
                answer = self.live or (self.last if self.turn > 1 else "the answer")
                self._tell("end", answer, *(["a note"] if how == "note" else []))
                has_text = any(kind == "text" for kind, _ in self.expected)
                self._said("" if has_text else answer)
                if how == "note":
                    self.expected.append(("text", f"{TURN_BREAK if has_text and not answer else '\n'}a note"))

    @invariant()
    def each_reads_what_was_told_so_far(self) -> None:
        wanted = _joined(self.expected)
        text = "".join(text for kind, text in wanted if kind == "text")
        assert text.startswith(self.chat.text)
        for one in (self.stream, self.background, *self.late):
            assert one.text == text[: len(one.text)]

    @override
    def teardown(self) -> None:
        if not self.has_ended:
            self.ends("answer")
        self.all_clients_read_on()
        wanted = _joined(self.expected)
        text = "".join(text for kind, text in wanted if kind == "text")
        is_answered = self.how in {"answer", "note"}
        assert self.chat.text == text
        assert self.chat.messages[-1] == "[DONE]" or (not is_answered and not text)
        assert self.chat.has_ended
        assert bool(self.chat.finish) == is_answered
        assert not is_answered or self.whole.text == text
        for one in (self.stream, self.background, *self.late):
            assert _joined(one.things) == wanted
            assert [event["type"] for event in one.events][-1] == ("final" if is_answered else "error")
            assert one.messages[-1] == "[DONE]"
            assert one.has_ended
        self.world.assert_nothing_is_left()


def _joined(things: list[Thing]) -> list[Thing]:
    """Return the things with adjacent texts as one."""
    joined: list[Thing] = []
    for kind, text in things:
        if kind == "text" and joined and joined[-1][0] == "text":
            joined[-1] = ("text", joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


def test_each_client_reads_all_texts_and_tools_in_order_however_late_it_reads(tmp_path: Path) -> None:
    class Course(TextsCourse):
        worlds = Worlds(tmp_path, openai_api=True, database="sqlite:///threads.db", heartbeat_seconds=15.0)

    with Course.worlds:
        run_courses(Course, number=15, steps=20)
