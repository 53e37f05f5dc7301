"""Notifications of a call to its client: order kept, the call never held up, a slow client bounded."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.assistant_stream import CHUNK, DELTA, Payload
from pallas_gateway.calls.events.events import Emitter, TextDelta, ToolReported, TurnEnded
from pallas_gateway.calls.events.progress import ProgressEvent
from pallas_gateway.calls.events.queue import LONGEST_TEXT, MOST_EVENTS, EventQueue, StreamOptions
from pallas_gateway.doors.mcp.notifications import Notifications
from tests.support.sending import sending
from tests.support.waiting import Changes, Gate, eventually, tick

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

NEVER = 3600.0  # heartbeat_seconds of tests about something else
HARPER, SCOUT = Emitter("harper", None), Emitter("scout", None)


@dataclass
class FakeOutlet:
    """Remembers what was sent and when. `gate` holds each notification, `breaks_at` fails that one (from 1)."""

    gate: Gate | None = None
    breaks_at: int | None = None
    taken: list[ProgressEvent | Payload] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    attempts: int = 0
    changes: Changes = field(default_factory=Changes)

    async def send_progress(self, event: ProgressEvent) -> None:
        await self._take(event)

    async def send_payload(self, payload: Payload) -> None:
        await self._take(payload)

    @property
    def events(self) -> list[ProgressEvent]:
        return [one for one in self.taken if isinstance(one, ProgressEvent)]

    @property
    def payloads(self) -> list[Payload]:
        return [one for one in self.taken if not isinstance(one, ProgressEvent)]

    @property
    def words(self) -> list[str]:
        """All of it as text: a message of progress, the text of a payload."""
        return [one.message if isinstance(one, ProgressEvent) else one["text"] for one in self.taken]

    async def until_sent(self, count: int) -> None:
        await self.changes.until(lambda: len(self.taken) >= count, 5, what=f"{count} sent, {self.words} so far")

    async def _take(self, one: ProgressEvent | Payload) -> None:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.enter()
        if self.attempts == self.breaks_at:
            raise ConnectionError("the client is gone")
        self.taken.append(one)
        self.times.append(asyncio.get_running_loop().time())
        self.changes.announce()


class Told(Notifications):
    """The notifications of a call, and what the call tells."""

    def __init__(self, outlet: FakeOutlet, queue: EventQueue, **limits: Any) -> None:
        super().__init__("harper", queue, outlet, **limits)
        self.event = queue.put
        self._told = queue

    def progress(self, message: str, *, ended: bool = False) -> None:
        self._told.put(ToolReported(message, ended))

    def live_text(self, emitter: Emitter, iteration: int, text: str) -> None:
        self._told.put(TextDelta(emitter, iteration, text))


def told(outlet: FakeOutlet, *, heartbeat_seconds: float = NEVER, text_seconds: float = 0.1, **limits: Any) -> Told:
    options = StreamOptions(progress=True, deltas=True, text_seconds=text_seconds)
    return Told(outlet, EventQueue(options), heartbeat_seconds=heartbeat_seconds, **limits)


def said(text: str, emitter: Emitter = HARPER, iteration: int = 1) -> TurnEnded:
    return TurnEnded(emitter, iteration, text)


# --- order and end ---------------------------------------------------------------------------------------------------


async def test_notifications_leave_in_the_order_in_which_things_happened() -> None:
    outlet = FakeOutlet()
    call = told(outlet)
    async with sending(call):
        call.progress("harper step 1 (llm)")
        call.event(said("Let me see."))
        call.progress("tools/add: started")
        call.progress("tools/add: completed", ended=True)
        call.event(said("It is 3."))

    assert outlet.words == [
        "harper step 1 (llm)",
        "Let me see.",
        "tools/add: started",
        "tools/add: completed",
        "It is 3.",
    ]
    assert [(event.progress, event.total) for event in outlet.events] == [(1, None), (2, None), (3, 3)]


async def test_each_notification_leaves_at_once_however_long_nothing_happened() -> None:
    outlet = FakeOutlet()
    call = told(outlet)
    happenings: list[Callable[[], None]] = [
        lambda: call.progress("harper step 1 (llm)"),
        lambda: call.live_text(HARPER, 1, "It is 3."),
        lambda: call.event(said("It is 3.")),
    ]
    async with sending(call):
        for count, happen in enumerate(happenings, start=1):
            await tick()  # the sender has long been waiting
            happen()
            await outlet.until_sent(count)


@dataclass
class Step:
    """One thing a call may do; `pause` gives the sender the loop for that many turns."""

    kind: str
    emitter: Emitter
    iteration: int
    text: str
    pause: int


steps = st.builds(
    Step,
    st.sampled_from(["progress", "ended", "chunk", "live", "live", "live"]),
    st.sampled_from([HARPER, SCOUT]),
    st.integers(1, 2),
    st.text(min_size=1, max_size=6),
    st.integers(0, 3),
)


@given(happened=st.lists(steps, max_size=40))
def test_whatever_happens_the_client_can_put_it_together_again(happened: list[Step]) -> None:
    outlet = FakeOutlet()
    asyncio.run(_play(happened, outlet))

    assert all(earlier.progress < later.progress for earlier, later in pairwise(outlet.events))
    assert all(event.total in {None, event.progress} for event in outlet.events)
    assert [e.message for e in outlet.events] == [s.text for s in happened if s.kind in {"progress", "ended"}]
    assert [p["text"] for p in outlet.payloads if p["kind"] == CHUNK] == [s.text for s in happened if s.kind == "chunk"]
    for turn in {(s.emitter.agent, s.iteration) for s in happened}:
        # Between two chunks of one turn stands exactly its live text of that time.
        assert _story_told(outlet, turn) == _story(happened, turn)


async def _play(happened: Sequence[Step], outlet: FakeOutlet) -> None:
    call = told(outlet)
    async with sending(call):
        for step in happened:
            if step.kind == "live":
                call.live_text(step.emitter, step.iteration, step.text)
            elif step.kind == "chunk":
                call.event(said(step.text, step.emitter, step.iteration))
            else:
                call.progress(step.text, ended=step.kind == "ended")
            for _ in range(step.pause):
                await asyncio.sleep(0)


def _story(happened: Sequence[Step], turn: tuple[str, int]) -> list[tuple[str, str]]:
    mine = [step for step in happened if (step.emitter.agent, step.iteration) == turn]
    return _joined([(step.kind, step.text) for step in mine if step.kind in {"chunk", "live"}])


def _story_told(outlet: FakeOutlet, turn: tuple[str, int]) -> list[tuple[str, str]]:
    mine = [payload for payload in outlet.payloads if (payload["agent"], payload["iteration"]) == turn]
    return _joined([("live" if one["kind"] == DELTA else "chunk", one["text"]) for one in mine])


def _joined(told: list[tuple[str, str]]) -> list[tuple[str, str]]:
    story: list[tuple[str, str]] = []
    for kind, text in told:
        if kind == "live" and story and story[-1][0] == "live":
            story[-1] = ("live", story[-1][1] + text)
        else:
            story.append((kind, text))
    return story


async def test_nothing_is_sent_once_the_channel_is_closed() -> None:
    outlet, beats = FakeOutlet(), list[int]()
    call = told(outlet, heartbeat_seconds=0.001, on_heartbeat=lambda: beats.append(1))
    async with sending(call):
        call.progress("harper step 1 (llm)")
    sent, beaten = len(outlet.taken), len(beats)
    call.progress("late")
    call.event(said("late"))
    call.live_text(HARPER, 1, "late")
    await tick()

    assert (len(outlet.taken), len(beats)) == (sent, beaten)


@asynccontextmanager
async def stuck(word: str, **options: Any) -> AsyncGenerator[tuple[Told, FakeOutlet, Gate]]:
    """A call whose client takes nothing until the gate opens, with a word of progress on its way."""
    gate = Gate()
    outlet = FakeOutlet(gate)
    call = told(outlet, **options)
    async with sending(call):
        call.progress(word)
        await gate.wait_for_entered()
        yield call, outlet, gate


async def test_what_a_call_says_while_its_last_notifications_leave_is_not_sent() -> None:
    gate = Gate()
    outlet = FakeOutlet(gate)
    call = told(outlet)

    async def run() -> None:
        async with sending(call):
            call.progress("in time")

    closing = asyncio.ensure_future(run())
    await gate.wait_for_entered()  # the call has ended, and its only notification is on its way
    call.progress("late")
    call.event(said("late"))
    call.live_text(HARPER, 1, "late")
    gate.open()
    await closing

    assert outlet.words == ["in time"]


# --- slow and broken clients -----------------------------------------------------------------------------------------


async def test_a_client_that_breaks_gets_no_more_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    outlet = FakeOutlet(breaks_at=2)
    call = told(outlet)
    with caplog.at_level(logging.WARNING, "pallas.channel"):
        async with sending(call):
            for number in range(5):
                call.progress(f"step {number}")
            await eventually(lambda: bool(caplog.records), what="the sender has given up")
            call.progress("one more")
            call.event(said("and more"))

    assert outlet.words == ["step 0"]
    assert outlet.attempts == 2
    assert [record.__dict__["why"] for record in caplog.records] == ["ConnectionError: the client is gone"]


async def test_an_error_of_the_channel_itself_ends_the_notifications_and_not_the_wait_for_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise LookupError("unforeseen")

    call = told(FakeOutlet(), heartbeat_seconds=0.001, on_heartbeat=fail)
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sending_until = asyncio.create_task(call.send_until(work))
    await eventually(lambda: bool(caplog.records), what="the channel has given up")
    assert not sending_until.done()
    work.set_result("the reply")
    await sending_until

    (record,) = caplog.records
    assert record.__dict__["why"] == "unexpected LookupError"
    assert record.exc_info


async def test_a_stuck_client_never_holds_up_the_call_and_is_lost_after_so_many_notifications(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stuck("on its way") as (call, outlet, gate):
        for number in range(MOST_EVENTS):
            call.event(said(f"chunk {number}"))
        assert not caplog.records
        call.event(said("one too many"))
        assert [record.__dict__["why"] for record in caplog.records] == ["the client reads too slowly"]
        gate.open()

    assert outlet.words in ([], ["on its way"])  # cut off in the middle of this one


async def test_no_chunk_is_dropped_as_long_as_the_client_is_not_lost() -> None:
    chunks = [f"chunk {number}" for number in range(MOST_EVENTS)]
    async with stuck("on its way") as (call, outlet, gate):
        for text in chunks:
            call.event(said(text))
        gate.open()

    assert outlet.words == ["on its way", *chunks]


async def test_live_text_before_chunks_keeps_the_backlog_within_its_limit() -> None:
    chunks = [f"chunk {number}" for number in range(MOST_EVENTS - 1)]
    async with stuck("on its way") as (call, outlet, gate):
        for number, text in enumerate(chunks):
            call.live_text(HARPER, number, "live")
            call.event(said(text, iteration=number))
        gate.open()

    assert len(outlet.taken) == MOST_EVENTS + 1  # and the one on its way
    assert [word for word in outlet.words if word.startswith("chunk")] == chunks


async def test_a_finished_call_waits_for_a_stuck_client_only_so_long() -> None:
    async with stuck("never taken", flush_seconds=0.02) as (_, outlet, gate):
        pass
    await gate.wait_for_cancelled()

    assert outlet.taken == []


@pytest.mark.parametrize("has_ended", [False, True], ids=["while the call runs", "while its last notifications wait"])
async def test_a_client_that_leaves_is_sent_nothing_more(has_ended: bool) -> None:
    gate, work = Gate(), asyncio.get_running_loop().create_future()
    call = told(outlet := FakeOutlet(gate))
    call.progress("never taken")
    request = asyncio.create_task(call.send_until(work))
    await gate.wait_for_entered()
    if has_ended:
        work.set_result(None)
        await tick()
    request.cancel()
    await asyncio.wait({request})
    call.progress("late")
    await tick()

    assert request.cancelled()
    assert gate.cancelled
    assert outlet.taken == []


async def test_a_client_that_was_lost_holds_up_no_call_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    async with sending(call := told(FakeOutlet(gate))):
        call.progress("never taken")
        await gate.wait_for_entered()
        for number in range(MOST_EVENTS + 1):
            call.event(said(f"chunk {number}"))
    assert gate.cancelled
    assert [record.__dict__["why"] for record in caplog.records] == ["the client reads too slowly"]


# --- live text -------------------------------------------------------------------------------------------------------


async def test_live_text_that_comes_faster_than_it_may_be_sent_is_put_together() -> None:
    assert StreamOptions().text_seconds >= 0.1  # at most ten a second
    outlet = FakeOutlet()
    call = told(outlet, text_seconds=NEVER)
    async with sending(call):
        call.live_text(HARPER, 1, "0")
        await outlet.until_sent(1)
        for number in range(1, 100):
            call.live_text(HARPER, 1, f" {number}")
            await asyncio.sleep(0)
        assert outlet.words == ["0"]

    assert outlet.words == ["0", "".join(f" {number}" for number in range(1, 100))]


async def test_live_text_of_agents_that_speak_at_once_is_put_together_for_each() -> None:
    outlet = FakeOutlet()
    call = told(outlet, text_seconds=NEVER)
    async with sending(call):
        for number in range(50):
            call.live_text(HARPER, 1, f"h{number}")
            call.live_text(SCOUT, 1, f"s{number}")
            await asyncio.sleep(0)

    for emitter in (HARPER, SCOUT):
        mine = [payload["text"] for payload in outlet.payloads if payload["agent"] == emitter.agent]
        assert "".join(mine) == "".join(f"{emitter.agent[0]}{number}" for number in range(50))
        assert len(mine) <= 2


async def test_live_text_leaves_before_the_chunk_that_ends_its_turn() -> None:
    async with stuck("harper step 1 (llm)") as (call, outlet, gate):
        call.live_text(HARPER, 1, "It is ")
        call.live_text(HARPER, 1, "3.")
        call.event(said("It is 3."))
        call.live_text(HARPER, 2, "And 4.")
        gate.open()

    assert [(payload["kind"], payload["iteration"], payload["text"]) for payload in outlet.payloads] == [
        (DELTA, 1, "It is 3."),
        (CHUNK, 1, "It is 3."),
        (DELTA, 2, "And 4."),
    ]


async def test_the_oldest_live_text_is_dropped_when_too_much_of_it_waits() -> None:
    whole = "".join(f"{number} " for number in range(LONGEST_TEXT))
    async with stuck("on its way") as (call, outlet, gate):
        for begin in range(0, len(whole), 1000):
            call.live_text(HARPER, 1, whole[begin : begin + 1000])
        call.event(said("the whole text"))
        gate.open()

    assert outlet.words == ["on its way", whole[-LONGEST_TEXT:], "the whole text"]


# --- heartbeat -------------------------------------------------------------------------------------------------------


async def test_heartbeats_are_counted_from_the_last_progress() -> None:
    pause = 0.1
    outlet = FakeOutlet()
    call = told(outlet, heartbeat_seconds=pause)
    async with sending(call):
        for count in (2, 4, 6):
            call.progress("busy")
            await outlet.until_sent(count)

    timed = list(zip(outlet.times, outlet.words, strict=True))
    gaps = [later - earlier for (earlier, _), (later, words) in pairwise(timed) if "working" in words]
    assert len(gaps) >= 3
    assert min(gaps) >= pause / 2  # never a few milliseconds after progress; half is for a busy machine


async def test_other_notifications_do_not_stand_in_for_a_heartbeat() -> None:
    outlet, beats = FakeOutlet(), list[int]()
    call = told(outlet, heartbeat_seconds=0.03, on_heartbeat=lambda: beats.append(1))

    async with sending(call):

        def chat() -> bool:
            call.event(said("still talking"))
            return len(beats) >= 2

        await eventually(chat, what="two heartbeats amid the chunks")  # asks, and so talks, every few milliseconds


async def test_a_stuck_client_is_not_sent_one_heartbeat_after_the_other() -> None:
    gate = Gate()
    outlet, beats = FakeOutlet(gate), list[int]()
    call = told(outlet, heartbeat_seconds=0.001, on_heartbeat=lambda: beats.append(1))
    async with sending(call):
        await gate.wait_for_entered()
        await tick()  # several heartbeats long
        assert len(beats) == 1
        gate.open()
