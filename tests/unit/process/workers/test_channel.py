"""Calls between a worker and its parent, over a pair of sockets."""

import asyncio
import math
import struct
from typing import Any

import pytest

from pallas_gateway.process.workers import channel as channel_module
from pallas_gateway.process.workers.channel import ChannelEndedError, ChannelError, frame_of_call, packed
from tests.support.channels import channel
from tests.support.waiting import cancelled, eventually

VALUES = (None, True, 10**40, 0.1, "\ud800\N{GRINNING FACE}\x00\n", b"\xff", [1, ("a", 2)], {"a": [None], 3: "b"})


class Service:
    """Notes its calls in order; `may_answer` lets those go on that wait."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.may_answer = asyncio.Event()
        self.cancelled = 0

    def note(self, *values: Any) -> tuple[Any, ...]:
        self.calls.append(values)
        return values

    async def wait(self, value: object) -> object:
        self.calls.append(value)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return value

    async def answer_at_once(self, value: object) -> object:
        self.calls.append(value)
        return value

    def note_soon(self, value: object) -> None:
        asyncio.get_running_loop().call_soon(self.calls.append, value)

    def fail(self) -> None:
        raise ConnectionResetError("of something else")

    async def fail_later(self) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("by a test")

    async def is_cancelled(self) -> None:
        raise asyncio.CancelledError

    def return_object(self, _: object) -> object:
        return self

    def _private(self) -> None:
        self.calls.append("private")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Values of the frames that were sent."""
    sent: list[Any] = []

    def noted(value: Any) -> bytes:
        sent.append(value)
        return packed(value)

    monkeypatch.setattr(channel_module, "packed", noted)
    return sent


async def test_values_of_all_kinds_arrive_as_they_were_in_both_directions(service: Service) -> None:
    async with channel(worker={"one": service}, parent={"one": service}) as ends:
        for end in (ends.worker, ends.parent):
            assert await end.ask("one", "note", *VALUES) == VALUES
        large = b"x" * (16 << 20)
        assert await ends.worker.ask("one", "note", large) == (large,)


async def test_calls_are_carried_out_in_their_order_and_one_that_waits_holds_none(service: Service) -> None:
    async with channel(worker={}, parent={"one": service}) as ends:
        waiting = asyncio.create_task(ends.worker.ask("one", "wait", 0))
        await asyncio.sleep(0)
        ends.worker.tell("one", "wait", 1)
        ends.worker.tell("one", "note", 2)
        assert await ends.worker.ask("one", "answer_at_once", 3) == 3
        assert service.calls == [0, 1, (2,), 3]
        assert not waiting.done()
        service.may_answer.set()
        assert await waiting == 0


async def test_calls_of_one_iteration_of_the_event_loop_are_one_frame_and_so_are_their_answers(
    service: Service, frames: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_LONG_SECONDS", math.inf)  # on a busy machine it would let others in between
    async with channel(worker={}, parent={"one": service}) as ends:
        answers = await asyncio.gather(
            *(ends.worker.ask("one", method, 7) for method in ["note", "answer_at_once"] * 25)
        )
        ends.worker.tell("one", "note", "last")
        await ends.worker.ask("one", "note")
    assert answers == [(7,), 7] * 25
    assert list(map(len, frames)) == [50, 50, 2, 1]


async def test_after_long_calls_of_a_frame_the_event_loop_does_other_work(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_LONG_SECONDS", 0.0)
    async with channel(worker={}, parent={"one": service}) as ends:
        ends.worker.tell("one", "note_soon", "other work")
        assert await ends.worker.ask("one", "note", 1) == (1,)
    assert service.calls == ["other work", (1,)]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("one", "fail"),
        ("one", "fail_later"),
        ("one", "is_cancelled"),
        ("one", "_private"),
        ("one", "unknown"),
        ("other", "note"),
    ],
)
async def test_a_call_that_fails_is_logged_and_later_ones_go_on(
    name: str, method: str, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel(worker={}, parent={"one": service}) as ends:
        ends.worker.tell(name, method)
        with pytest.raises(ChannelError):
            await ends.worker.ask(name, method)
        assert await ends.worker.ask("one", "note", 1) == (1,)
    assert service.calls == [(1,)]
    for record in caplog.records:
        assert vars(record).items() >= {"message": "worker message failed", "service": name, "method": method}.items()
    assert len(caplog.records) == 2


async def test_only_the_call_or_answer_with_a_value_that_cannot_be_sent_fails(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel(worker={}, parent={"one": service}) as ends:
        ends.worker.tell("one", "note", service)
        asks = (("note", 1), ("note", service), ("return_object", None), ("note", 2))
        asked = (ends.worker.ask("one", method, value) for method, value in asks)
        first, unsendable, unanswerable, last = await asyncio.gather(*asked, return_exceptions=True)
    assert (first, last) == ((1,), (2,))
    assert isinstance(unsendable, ChannelError)
    assert isinstance(unanswerable, ChannelError)
    assert caplog.messages == ["worker message unsendable"] * 3


async def test_a_frame_that_holds_no_calls_is_logged_and_skipped(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with channel(worker={"one": service}, parent={}) as ends:
        for data in (b"", b"x" * 1000, packed("cut")[8:-1]):
            ends.writer.write(struct.pack("!Q", len(data)) + data)
        ends.writer.write(frame_of_call("one", "note", 1))
        await eventually(lambda: service.calls, what="the call after them")
    assert service.calls == [(1,)]
    assert caplog.messages == ["worker message unreadable"] * 3


async def test_a_frame_that_is_too_large_ends_the_channel(service: Service) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(struct.pack("!Q", 1 << 60))
    async with channel(worker={}, parent={}) as ends:
        broken = channel_module.Channel(reader, ends.writer, {})
        with pytest.raises(OSError, match="a frame has"):
            await broken.listen()
        with pytest.raises(ChannelEndedError):
            await broken.ask("one", "note")


async def test_without_the_other_side_asks_fail_and_its_calls_are_cancelled(service: Service) -> None:
    async with channel(worker={"one": service}, parent={"one": service}) as ends:
        asked = [asyncio.create_task(end.ask("one", "wait", 1)) for end in (ends.worker, ends.parent)]
        await eventually(lambda: len(service.calls) == 2, what="both calls")
        ends.writer.write(frame_of_call("one", "note", 2)[:-1])  # a frame that is not complete is none
        ends.writer.close()
        for one in asked:
            with pytest.raises(ChannelEndedError):
                await one
        ends.worker.tell("one", "note", 3)
        with pytest.raises(ChannelEndedError):
            await ends.worker.ask("one", "note", 4)
        await eventually(lambda: service.cancelled == 2, what="the end of the calls")
    assert service.calls == [1, 1]


async def test_an_answer_to_a_cancelled_asker_is_ignored(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    async with channel(worker={}, parent={"one": service}) as ends:
        asked = asyncio.create_task(ends.worker.ask("one", "wait", 1))
        await eventually(lambda: service.calls, what="the call")
        await cancelled(asked)
        service.may_answer.set()
        assert await ends.worker.ask("one", "note", 2) == (2,)
    assert not caplog.messages


async def test_what_was_told_is_sent_at_once_by_a_flush_and_what_is_not_read_is_counted(service: Service) -> None:
    async with channel(worker={}, parent={"one": service}) as ends:
        ends.worker.flush()
        ends.worker.tell("one", "note", b"x" * (8 << 20))
        assert ends.worker.unread == 0
        ends.worker.flush()
        assert ends.worker.unread > 1 << 20
        await eventually(lambda: service.calls, what="the call")
        assert ends.worker.unread == 0
