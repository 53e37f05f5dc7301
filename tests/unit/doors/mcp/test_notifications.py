"""What a client that breaks, is stuck or leaves does to its call; the rest is in test_events_of_mcp_calls.py."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pallas_gateway.calls.assistant_stream import Payload
from pallas_gateway.calls.events.events import Emitter, TextDelta, ToolReported, TurnEnded
from pallas_gateway.calls.events.progress import ProgressEvent
from pallas_gateway.calls.events.queue import MOST_EVENTS, EventQueue, StreamOptions
from pallas_gateway.doors.mcp.notifications import Notifications
from tests.support.sending import sending
from tests.support.waiting import Gate, eventually, tick

NEVER = 3600.0


@dataclass
class FakeOutlet:
    """Remembers what was sent. `gate` holds each notification, `breaks_at` fails that one (from 1)."""

    gate: Gate | None = None
    breaks_at: int | None = None
    words: list[str] = field(default_factory=list)
    attempts: int = 0

    async def send_progress(self, event: ProgressEvent) -> None:
        await self._take(event.message)

    async def send_payload(self, payload: Payload) -> None:
        await self._take(payload["text"])

    async def _take(self, text: str) -> None:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.enter()
        if self.attempts == self.breaks_at:
            raise ConnectionError("the client is gone")
        self.words.append(text)


class Told(Notifications):
    """The notifications of a call, and what the call tells."""

    def __init__(self, outlet: FakeOutlet, *, heartbeat_seconds: float = NEVER, **limits: Any) -> None:
        queue = EventQueue(StreamOptions(progress=True, deltas=True, text_seconds=NEVER))
        super().__init__("harper", queue, outlet, heartbeat_seconds=heartbeat_seconds, **limits)
        self.event = queue.put

    def progress(self, message: str) -> None:
        self.event(ToolReported(message, False))


HARPER = Emitter("harper", None)


def said(text: str) -> TurnEnded:
    return TurnEnded(HARPER, 1, text)


@asynccontextmanager
async def stuck(word: str, **options: Any) -> AsyncGenerator[tuple[Told, FakeOutlet, Gate]]:
    """A call whose client takes nothing until the gate opens, with a word of progress on its way."""
    gate = Gate()
    outlet = FakeOutlet(gate)
    call = Told(outlet, **options)
    async with sending(call):
        call.progress(word)
        await gate.wait_for_entered()
        yield call, outlet, gate


async def test_a_client_that_breaks_gets_no_more_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    outlet = FakeOutlet(breaks_at=2)
    call = Told(outlet)
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

    call = Told(FakeOutlet(), heartbeat_seconds=0.001, on_heartbeat=fail)
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


async def test_a_finished_call_waits_for_a_stuck_client_only_so_long() -> None:
    async with stuck("never taken", flush_seconds=0.02) as (_, outlet, gate):
        pass
    await gate.wait_for_cancelled()

    assert outlet.words == []


async def test_a_client_that_was_lost_holds_up_no_call_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    async with sending(call := Told(FakeOutlet(gate))):
        call.progress("never taken")
        await gate.wait_for_entered()
        for number in range(MOST_EVENTS + 1):
            call.event(said(f"chunk {number}"))
    assert gate.cancelled
    assert [record.__dict__["why"] for record in caplog.records] == ["the client reads too slowly"]


async def test_a_stuck_client_is_not_sent_one_heartbeat_after_the_other() -> None:
    gate = Gate()
    outlet, beats = FakeOutlet(gate), list[int]()
    call = Told(outlet, heartbeat_seconds=0.001, on_heartbeat=lambda: beats.append(1))
    async with sending(call):
        await gate.wait_for_entered()
        await tick()  # several heartbeats long
        assert len(beats) == 1
        gate.open()


async def test_live_text_that_comes_faster_than_it_may_be_sent_is_put_together() -> None:
    assert StreamOptions().text_seconds >= 0.1  # at most ten a second
    call = Told(outlet := FakeOutlet())
    async with sending(call):
        call.event(TextDelta(HARPER, 1, "0"))
        await eventually(lambda: outlet.words == ["0"], what="the first text")
        for number in range(1, 100):
            call.event(TextDelta(HARPER, 1, f" {number}"))
            await asyncio.sleep(0)
        assert outlet.words == ["0"]
    assert outlet.words == ["0", "".join(f" {number}" for number in range(1, 100))]


async def test_the_first_text_of_each_turn_is_sent_at_once() -> None:
    call = Told(outlet := FakeOutlet())
    async with sending(call):
        for turn in (1, 2):
            call.event(TextDelta(HARPER, turn, word := f"first of {turn}"))
            await eventually(partial(outlet.words.__contains__, word), what=word)
            call.event(said("its end"))
