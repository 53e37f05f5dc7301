"""The notifications of a call for any course that it takes and any speed at which its client reads."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar, override

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.support.protocol_clients import McpClient, McpExchange, McpOptions, Received
from tests.support.scripted_calls import (
    AGENT,
    DELTA_SECONDS,
    FLUSH_SECONDS,
    INNER,
    SERVED,
    Limits,
    ScriptedCall,
    Speaker,
    Worlds,
    run_courses,
)

HEARTBEAT = 10.0
LIMITS = Limits(backlog=10, live_characters=200, kept=8)
ON_ITS_WAY = 2
"""Notifications that the connection itself may have taken when its client stops reading."""
MOMENT = 1e-6

type Turn = tuple[str, int]


@dataclass(frozen=True)
class Told:
    """One thing that the call has told: progress by its message, a payload or live text by its text.

    `stall` is the number of the pause in the client's reading in which it was told.
    """

    kind: str
    at: float
    text: str
    turn: Turn | None = None
    ends: bool = False
    stall: int | None = None


@dataclass
class Stall:
    """A time in which the client does not read; `received` is the number of messages before it."""

    begin: float
    received: int
    end: float | None = None


def _thing(by: Random) -> tuple[Any, ...]:
    """Return one thing that a call tells, with its arguments."""
    name = by.choice(["step", "tool", "tool_end", "relay", "live", "live", "live", "turn", "turn", "results"])
    if name == "tool_end":
        return name, by.random() < 0.5
    place = (by.choice([SERVED, INNER]), by.randint(1, 2))
    return {"live": (name, *place, by.randint(1, 30)), "turn": (name, *place), "results": (name, *place)}.get(
        name, (name,)
    )


def _things(by: Random, most: int) -> list[tuple[Any, ...]]:
    return [_thing(by) for _ in range(by.randint(0, most))]


SECONDS = (0.03, DELTA_SECONDS, 1.0, 6.0, HEARTBEAT, 2.5 * HEARTBEAT)
ENDS = ("reply", "failure", "cancelled", "left", "stopped")
FLOODS = (("step",), ("turn", SERVED, 1), ("relay",))
HAPPENINGS: dict[str, tuple[float, Any]] = {
    "tells": (6, lambda by: (_things(by, 6),)),
    "floods": (0.5, lambda by: (by.randint(1, 2 * LIMITS.backlog), by.choice(FLOODS))),
    "time_passes": (6, lambda by: (by.choice(SECONDS),)),
    "stops_reading": (1, lambda _: ()),
    "reads_on": (1, lambda _: ()),
    "reads_late": (2, lambda by: (_things(by, 6), by.randint(0, 2 * LIMITS.backlog), by.choice((0.0, 1.0, HEARTBEAT)))),
    "breaks": (0.2, lambda _: ()),
    "ends": (0.5, lambda by: (by.choice(ENDS), _things(by, 3), by.random() < 0.5)),
}
"""How often each thing happens, and what its arguments are. They are drawn evenly: hypothesis itself prefers few."""


class McpCourse(RuleBasedStateMachine):
    """A call tells what it does; its client reads at the speed that the test chooses."""

    worlds: ClassVar[Worlds]

    def __init__(self) -> None:
        super().__init__()
        (self.world,) = self.worlds.take()
        self.told: list[Told] = []
        self.number = self.steps = 0
        self.tools: list[str] = []
        self.stalls: list[Stall] = []
        self.is_reading = True
        self.is_broken = False
        self.ended_at: float | None = None
        self.end_kind = ""

    @initialize(
        era=st.sampled_from(["initialize", "modern"]),
        wishes=st.sampled_from(
            [(True, True, True)] * 5 + [(False, True, True), (True, False, True), (True, True, False)]
        ),
    )
    def begin(self, era: Any, wishes: tuple[bool, bool, bool]) -> None:
        progress, messages, deltas = wishes
        self.has_progress, self.has_messages = progress, messages or era == "initialize"
        self.has_deltas = deltas and self.has_messages
        self.client = McpClient(self.world, McpOptions(era, progress, messages, deltas), AGENT)
        self.began = self.now
        self.exchange: McpExchange = self.client.call()
        self.call: ScriptedCall = self.world.latest()

    @property
    def now(self) -> float:
        return self.world.loop.time()

    @rule(seed=st.integers(0, 2**32))
    def something_happens(self, seed: int) -> None:
        self.steps += 1
        by = Random(f"{seed}/{self.steps}")  # noqa: S311  equal seeds, which are frequent, make other steps
        possible = [name for name in HAPPENINGS if self._is_possible(name)]
        (name,) = by.choices(possible, [HAPPENINGS[one][0] for one in possible])
        arguments = HAPPENINGS[name][1](by)
        note(f"# {name}{arguments}")
        getattr(self, name)(*arguments)

    def _is_possible(self, name: str) -> bool:
        reads, has_ended = self.is_reading and not self.is_broken, self.ended_at is not None
        match name:
            case "stops_reading":
                return reads and not self.exchange.has_ended
            case "reads_on":
                return not self.is_reading
            case "reads_late":
                return reads and not has_ended
            case "breaks":
                return self.options_are("initialize") and reads and not has_ended
            case "time_passes":
                return True
        return not has_ended

    # the call

    def tells(self, batch: list[Any]) -> None:
        """Tell several things before the client's connection has its turn."""
        self.world.do(self._tell, batch)

    def floods(self, count: int, thing: Any) -> None:
        """Tell many things, more than may wait for a client that does not read."""
        for _ in range(count):
            self.world.do(self._tell, [thing])

    def tells_too_late(self, batch: list[Any]) -> None:
        """Tell things after the end, as an agent does that is being cancelled."""
        before, received = len(self.told), len(self.exchange.received)
        self.world.do(self._tell, batch)
        del self.told[before:]
        assert len(self.exchange.received) == received

    def _tell(self, batch: list[Any]) -> None:
        for name, *arguments in batch:
            self.number += 1
            getattr(self, f"_{name}")(*arguments)

    def _step(self) -> None:
        self._note("progress", self.call.step(self.number))

    def _tool(self) -> None:
        self.tools.append(f"t{self.number}")
        self._note("progress", self.call.tool_started(self.tools[-1]))

    def _tool_end(self, ok: bool) -> None:
        if self.tools:
            self._note("progress", self.call.tool_ended(self.tools.pop(0), ok=ok), ends=True)

    def _live(self, speaker: Speaker, turn: int, length: int) -> None:
        self.call.live_text(speaker, turn, text := f"<{self.number}:{'x' * length}>")
        self._note("live", text, (speaker.name, turn))

    def _turn(self, speaker: Speaker, turn: int) -> None:
        self.call.turn_ended(speaker, turn, text := f"turn {self.number}")
        self._note("payload", text, (speaker.name, turn))

    def _results(self, speaker: Speaker, turn: int) -> None:
        self.call.tools_ended(speaker, turn, [text := f"tool {self.number}"])
        self._note("payload", text, (speaker.name, turn))

    def _relay(self) -> None:
        text = f"peer {self.number}"
        self.call.relayed({"kind": "assistant_chunk", "schema_version": 3, "agent": "peer", "text": text})
        self._note("payload", text)

    def _note(self, kind: str, text: str, turn: Turn | None = None, *, ends: bool = False) -> None:
        stall = None if self.is_reading else len(self.stalls) - 1
        self.told.append(Told(kind, self.now, text, turn, ends, stall))

    # the client

    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    def stops_reading(self) -> None:
        self.exchange.stop_reading()
        self.stalls.append(Stall(self.now, len(self.exchange.received)))
        self.is_reading = False

    def reads_on(self) -> None:
        self.stalls[-1].end = self.now
        self.is_reading = True
        self.exchange.read_on()

    def reads_late(self, batch: list[Any], steps: int, seconds: float) -> None:
        """Do not read while the call tells things, most of which may be lost."""
        self.stops_reading()
        self.floods(steps, ("step",))
        self.tells(batch)
        self.time_passes(seconds)
        self.reads_on()

    def breaks(self) -> None:
        """Each further notification fails; the call goes on."""
        self.is_broken = True
        self.exchange.fail()
        received = len(self.exchange.received)
        self.world.do(self._tell, [("step",), ("turn", SERVED, 1)])
        assert len(self.exchange.received) == received
        assert not self.call.has_ended

    def options_are(self, era: str) -> bool:
        return self.client.options.era == era

    # the end

    def ends(self, how: str, last: list[Any], unread: bool) -> None:
        """End the call; if `unread`, while the client does not read its last notifications."""
        if unread and self.is_reading and not self.is_broken:
            self.stops_reading()
        if self.call.has_ended:  # a broken connection was noticed by a comment
            assert self.is_broken
            how = "left"
        if how == "cancelled" and not self.options_are("initialize"):
            how = "left"
        self.ended_at, self.end_kind = self.now, how
        match how:
            case "left":
                self.exchange.leave()
                self.is_reading, self.is_broken = True, True
            case "cancelled":
                self.client.cancel()
            case "stopped":
                self.world.finish(self.world.gateway.end_calls())
                self.world.rest()
            case _:
                self.world.do(self._end, last, "llm_error" if how == "failure" else None)
        assert self.call.has_ended
        self.tells_too_late([("step",), ("turn", SERVED, 1)])

    def _end(self, last: list[Any], failure: str | None) -> None:
        self._tell(last)
        self.call.end("the answer", failure=failure)

    @override
    def teardown(self) -> None:
        if self.ended_at is None:
            self.ends("reply", [], False)
        if not self.is_reading:
            self.reads_on()
        self.world.rest()
        self.what_is_read_is_what_was_told()
        if not self.is_broken:
            self._result_is_that_of_the_call()
            self._all_is_there_that_must_be()
        self.world.assert_nothing_is_left()

    def _result_is_that_of_the_call(self) -> None:
        result = self.exchange.messages[-1]["result"]
        assert self.exchange.has_ended
        assert result["isError"] == (self.end_kind != "reply")
        if self.end_kind == "reply":
            assert result["content"][0]["text"] == "the answer"

    # what the client reads

    @invariant()
    def all_holds(self) -> None:
        self.progress_increases()
        self.nothing_comes_after_the_result()
        self.no_silence_is_longer_than_the_heartbeat()
        self.heartbeats_come_only_after_a_silence()
        self.what_is_read_is_what_was_told()
        self.live_text_is_not_held_back()
        self.live_text_comes_ten_times_a_second()

    def progress_increases(self) -> None:
        counted = [one.data for one in self.exchange.progress]
        assert all(earlier["progress"] < later["progress"] for earlier, later in pairwise(counted))
        ended = {one.text for one in self.told if one.ends}
        for one in counted:
            assert one.get("total") == (one["progress"] if one["message"] in ended else None), one
        assert self.has_progress or not counted

    def nothing_comes_after_the_result(self) -> None:
        results = [index for index, one in enumerate(self.exchange.messages) if "method" not in one]
        assert results in ([], [len(self.exchange.messages) - 1])

    def no_silence_is_longer_than_the_heartbeat(self) -> None:
        progress = self.exchange.progress
        until = self.now if self.ended_at is None else self.ended_at
        for earlier, later in pairwise([self.began, *(one.at for one in progress), until]):
            if self._was_read(earlier, later):
                assert later - earlier <= HEARTBEAT + MOMENT or not self.has_progress

    def heartbeats_come_only_after_a_silence(self) -> None:
        latest = self.began
        for one in self.exchange.progress:
            if self._is_heartbeat(one):
                expected = f"{AGENT} working ({one.at - self.began:.0f}s)"
                if self._was_read(latest, one.at):
                    assert one.at - latest >= HEARTBEAT - MOMENT
                    assert one.data["message"] == expected
            latest = one.at

    def what_is_read_is_what_was_told(self) -> None:
        """Each message is one that was told, in the order of telling, and no text is mixed with another turn's."""
        places = {(one.kind, one.text): index for index, one in enumerate(self.told) if one.kind != "live"}
        latest, spoken = -1, dict[Turn, int]()
        for one in self._read():
            if one.kind == "live":
                assert self.has_deltas
                turn = one.turn or ("", 0)
                begin, end = self._place_of_live(one, spoken.get(turn, 0))
                spoken[turn] = end
                of_turn = [i for i, told in enumerate(self.told) if told.kind == "payload" and told.turn == turn]
                before = [i for i in of_turn if i <= latest]
                piece = self._piece_at(turn, begin)
                assert not before or piece > before[-1], "live text of a turn after its end"
            else:
                place = places[one.kind, one.text]
                assert place > latest
                assert not self._has_unread_live(one, spoken), "the end of a turn before its live text"
                latest = place

    def _read(self) -> list[Told]:
        """The messages that were read, without heartbeats and the result."""
        found = []
        for one in self.exchange.received:
            params = one.data.get("params", {}) if "method" in one.data else {}
            if "progressToken" in params and not params["message"].startswith(f"{AGENT} working"):
                found.append(Told("progress", one.at, params["message"]))
            elif "logger" in params:
                data, turn = params["data"], (params["data"]["agent"], params["data"].get("iteration", 0))
                if data["kind"] == "assistant_delta":
                    found.append(Told("live", one.at, data["text"], turn))
                else:
                    text = data["text"] if "text" in data else data["results"][0]["id"]
                    found.append(Told("payload", one.at, text, turn))
        return found

    def _place_of_live(self, one: Told, begin: int) -> tuple[int, int]:
        whole = "".join(told.text for told in self._live_of(one.turn))
        place = whole.find(one.text, begin)
        assert place >= 0, f"{one.text!r} is no part of {whole[begin:]!r}"
        return place, place + len(one.text)

    def _live_of(self, turn: Turn | None) -> list[Told]:
        return [told for told in self.told if told.kind == "live" and told.turn == turn]

    def _piece_at(self, turn: Turn, character: int) -> int:
        """The place of the piece of live text with this character."""
        for index, told in enumerate(self.told):
            if told.kind == "live" and told.turn == turn:
                character -= len(told.text)
                if character < 0:
                    return index
        raise AssertionError("no such text")

    def _has_unread_live(self, end: Told, spoken: dict[Turn, int]) -> bool:
        """Return whether live text that the client should have had before the end of a turn was not read."""
        if self.stalls or not self.has_deltas or end.kind != "payload" or end.turn not in {t.turn for t in self.told}:
            return False
        place = next(i for i, told in enumerate(self.told) if told.kind == "payload" and told.text == end.text)
        said = sum(len(t.text) for t in self.told[:place] if t.kind == "live" and t.turn == end.turn)
        return end.turn is not None and spoken.get(end.turn, 0) < said

    def _was_read(self, begin: float, end: float) -> bool:
        """Return whether the client has read all the time."""
        if self.is_broken:
            return False
        return not any(one.begin <= end and (one.end is None or one.end >= begin) for one in self.stalls)

    @staticmethod
    def _is_heartbeat(one: Received) -> bool:
        return str(one.data["message"]).startswith(f"{AGENT} working")

    # how fast it reads it

    def live_text_is_not_held_back(self) -> None:
        """The first piece of a turn comes at once; all other pieces within the time between two for each turn."""
        if self.stalls or self.is_broken or not self.has_deltas or self.ended_at is not None:
            return
        read = [one for one in self._read() if one.kind == "live"]
        for turn in {told.turn for told in self.told if told.kind == "live"}:
            seen = sum(len(one.text) for one in read if one.turn == turn)
            if sum(len(told.text) for told in self._live_of(turn)) > LIMITS.live_characters:
                continue  # a part may have been dropped
            for told in self._live_of(turn):
                seen -= len(told.text)
                if seen < 0:
                    assert self.now - told.at <= DELTA_SECONDS * 4 + MOMENT
                    assert read, "the first piece of all is held back"
                    assert self.now - read[-1].at <= DELTA_SECONDS + MOMENT

    def live_text_comes_ten_times_a_second(self) -> None:
        """But for text that is sent because a turn ends, or the call."""
        if self.stalls:
            return
        latest: dict[Turn | None, float] = {}
        for one in self._read():
            if one.kind == "payload":
                latest.clear()
            elif one.kind == "live" and one.at != self.ended_at and not self._ends_at(one):
                assert one.at - latest.get(one.turn, 0.0) >= DELTA_SECONDS - MOMENT
                latest[one.turn] = one.at

    def _ends_at(self, one: Told) -> bool:
        """Return whether the turn of live text ends in the moment in which the text is read."""
        return any(told.kind == "payload" and (told.turn, told.at) == (one.turn, one.at) for told in self.told)

    # what a slow reader loses

    def _all_is_there_that_must_be(self) -> None:
        read = {(one.kind, one.text) for one in self._read() if one.kind != "live"}
        wanted = [
            one for one in self.told if {"progress": self.has_progress, "payload": self.has_messages}.get(one.kind)
        ]
        lost_since = self._lost_since()
        for number in {one.stall for one in wanted}:
            told = [one for one in wanted if one.stall == number]
            if lost_since is not None and (number is None or number >= lost_since):
                continue
            self._nothing_but_the_oldest_progress_is_lost(told, read, number)
        if not self.stalls and self.has_deltas:
            for turn in {one.turn for one in self.told if one.kind == "live"}:
                text = "".join(one.text for one in self._read() if one.kind == "live" and one.turn == turn)
                whole = "".join(one.text for one in self._live_of(turn))
                assert text == whole or len(whole) > LIMITS.live_characters

    def _nothing_but_the_oldest_progress_is_lost(
        self, told: list[Told], read: set[tuple[str, str]], stall: int | None
    ) -> None:
        assert all((one.kind, one.text) in read for one in told if one.kind == "payload")
        progress = [(one.kind, one.text) in read for one in told if one.kind == "progress"]
        if stall is None:
            assert all(progress)
            return
        assert sum((one.kind, one.text) in read for one in told) <= LIMITS.backlog + ON_ITS_WAY
        late = progress[ON_ITS_WAY:]
        assert late == sorted(late), "newer progress was lost before older"
        others = sum(one.kind == "live" and one.stall == stall for one in self.told)
        if len(told) + others <= LIMITS.backlog:
            assert all(progress)

    def _lost_since(self) -> int | None:
        """Return the number of the pause in which the client was lost, for certain or maybe.

        A client that asks for no messages is sent no payloads, so they do not wait for it.
        """
        for number, stall in enumerate(self.stalls):
            sent = self.told if self.has_messages else []
            payloads = [one for one in sent if one.kind == "payload" and one.stall == number]
            is_late = self.ended_at is not None and (stall.end or self.now) - self.ended_at >= FLUSH_SECONDS - MOMENT
            if len(payloads) > LIMITS.backlog or is_late:
                if len(payloads) > LIMITS.backlog + ON_ITS_WAY:
                    self._nothing_came_after(number)
                return number
        return None

    def _nothing_came_after(self, number: int) -> None:
        """Assert that a client that was lost in a pause got what was on its way then, and the result."""
        later = self.exchange.received[self.stalls[number].received :]
        assert len([one for one in later if "method" in one.data]) <= ON_ITS_WAY


def test_a_client_reads_what_the_call_tells_in_order_and_a_slow_one_loses_the_oldest_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Course(McpCourse):
        worlds = Worlds(tmp_path, heartbeat_seconds=HEARTBEAT)

    LIMITS.apply(monkeypatch)
    with Course.worlds:
        run_courses(Course, number=50, steps=30)
