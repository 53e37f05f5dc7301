"""The list of running and ended calls: it keeps no call that is over, whatever course calls take."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.calls.call import Call, Reply
from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.core import calls as calls_module
from pallas_gateway.core.calls import Calls
from pallas_gateway.core.running_call import LONGEST_TOOL, MOST_TOOLS, RunningCall
from pallas_gateway.errors import CallFailedError, CallRefusedError
from pallas_gateway.identity.caller import Caller
from tests.support.hosted import Hosting, ready
from tests.support.memory_runtime import TURN, MemoryAgent, a_call, fail, repeat
from tests.support.waiting import Gate

type Step = Literal["begin", "pass", "cancel", "end", "end twice", "end and cancel", "turn"]
STEPS: tuple[Step, ...] = ("begin", "pass", "cancel", "end", "end twice", "end and cancel", "turn")
ENDINGS = {"answers": repeat, "fails": fail(), "breaks": None}


def _answer(call: Call) -> Reply:
    outcome = ENDINGS[call.message.text]
    if outcome is None:
        raise ValueError("unforeseen")
    return outcome(call)


class Course:
    """Calls of one agent that are begun, held, let go and ended in any order."""

    def __init__(self, hosting: Hosting, gate: Gate) -> None:
        self.hosting = hosting
        self.gate = gate
        self.works: list[asyncio.Task[Reply]] = []
        self.begun = 0

    async def take(self, step: Step, which: int) -> None:
        calls = self.hosting.calls
        listed = calls.running()
        one = listed[which % len(listed)] if listed else None
        account = calls.find(one.id) if one else None
        match step:
            case "begin":
                text = sorted(ENDINGS)[which % len(ENDINGS)]
                self.works.append(self.hosting.begin(a_call(text)))
                self.begun += 1
            case "pass":
                self.gate.let_through(1)
            case "turn":
                await asyncio.sleep(0)
            case "cancel" if self.works:
                self.works[which % len(self.works)].cancel()
            case "end" | "end twice" if account is not None:
                for _ in range(2 if step == "end twice" else 1):
                    account.cancel("key:ops")
            case "end and cancel" if account is not None and account.task is not None:
                account.cancel("key:ops")
                account.task.cancel()

    async def finish(self) -> list[object]:
        self.gate.open()
        return await asyncio.gather(*self.works, return_exceptions=True)


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=30),
    at_once=st.sampled_from([None, 1, 2]),
)
async def test_no_course_of_calls_leaves_one_in_the_list(
    steps: Sequence[tuple[Step, int]], at_once: int | None
) -> None:
    gate = Gate()
    memory = MemoryAgent(_answer, answering=gate, turns_so_far=(TURN,))
    async with ready(memory, calls=at_once, queue_seconds=60) as hosting:
        course = Course(hosting, gate)
        for step, which in steps:
            await course.take(step, which)
        results = await course.finish()
        calls = hosting.calls
        assert (len(calls.running()), calls.running(), hosting.calls.started) == (0, [], 0)
        started = [one for one in results if not isinstance(one, asyncio.CancelledError)]
        assert len(started) <= len(calls.recent()) <= course.begun
        for result, reason in [(one, one.reason) for one in results if isinstance(one, CallFailedError)]:
            assert (str(result), reason) == ("The call was ended by key:ops.", "cancelled")


async def test_a_refused_call_was_not_started_and_is_not_kept() -> None:
    async with ready(MemoryAgent(), calls=0) as hosting:
        with suppress(Exception):
            await hosting.answer(a_call())
        assert (hosting.calls.recent(), len(hosting.calls.running())) == ([], 0)


async def test_the_list_reads_a_running_call_and_keeps_a_small_record_of_it() -> None:
    gate = Gate()
    tools = [f"tools/{'x' * 1000}"] * (MOST_TOOLS + 5)
    memory = MemoryAgent(answering=gate, turns_so_far=(TURN, TURN), tools_so_far=tools)
    caller = Caller("ci", owner="key:ci", authenticated=True, kind="key")
    async with ready(memory) as hosting:
        call = replace(a_call("x" * 100_000), caller=caller)
        work = hosting.begin(call)
        await gate.wait_for_entered()
        [running] = hosting.calls.running()
        account = hosting.calls.find(call.call_id)
        assert account is not None
        account.cancel("key:ops")
        account.cancel("key:other")
        with pytest.raises(CallFailedError, match="The call was ended by key:ops") as raised:
            await work
        raised.value.with_traceback(None)  # as `CallRequest.answering` does
        del raised
    assert (running.step, running.tokens, running.end) == (2, 10, None)
    assert (running.caller, running.owner) == ("key:ci", "key:ci")
    [kept] = hosting.calls.recent()
    assert kept.end is not None
    assert (kept.step, kept.tokens, kept.end.outcome, kept.end.reason) == (2, 10, "error", "cancelled")
    assert (len(kept.end.tools), kept.end.tools_left_out) == (MOST_TOOLS, 5)
    assert max(len(tool.name) for tool in kept.end.tools) == LONGEST_TOOL
    forgotten = ref(account)
    gc.disable()  # a reference cycle would keep the call until the next collection
    try:
        del work, account
        await asyncio.sleep(0)  # the event loop holds the task until then
        assert forgotten() is None
    finally:
        gc.enable()


async def test_only_the_latest_ended_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MOST_ENDED", 3)
    async with ready(MemoryAgent()) as hosting:
        calls = [a_call() for _ in range(5)]
        for call in calls:
            await hosting.answer(call)
        assert [one.id for one in hosting.calls.recent()] == [call.call_id for call in reversed(calls[2:])]


def test_a_call_is_counted_for_as_long_as_it_runs_also_when_it_fails() -> None:
    calls = Calls()
    with suppress(ValueError), calls.one_more(), calls.one_more():
        assert calls.started == 2
        raise ValueError
    assert calls.started == 0


async def test_a_listener_that_fails_changes_no_answer_and_keeps_no_other_from_its_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks(call: RunningCall, end: CallEnd) -> None:
        raise ValueError("broken")

    told: list[str] = []
    async with ready(MemoryAgent()) as hosting:
        hosting.calls.listeners = (breaks, lambda _, end: told.append(end.reason))
        assert (await hosting.answer(a_call())).failure is None
    assert told == ["endTurn"]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["end of a call not noted"]


async def test_what_gates_have_taken_is_given_back_in_reverse_order_also_if_a_later_one_refuses() -> None:
    order: list[str] = []

    class Takes:
        def __init__(self, name: str, refuses: bool = False) -> None:
            self.name, self.refuses = name, refuses

        async def admit(self, call: RunningCall) -> None:
            if self.refuses:
                raise CallRefusedError("no", reason="limited")
            order.append(self.name)
            call.closers.append(lambda _, end: order.append(f"{self.name}: {end.reason}"))

    async with ready(MemoryAgent()) as hosting:
        hosting.calls.gates = (Takes("a"), Takes("b"))
        await hosting.answer(a_call())
        hosting.calls.gates = (Takes("c"), Takes("d", refuses=True))
        with pytest.raises(CallRefusedError):
            await hosting.answer(a_call())
    assert order == ["a", "b", "b: endTurn", "a: endTurn", "c", "c: limited"]


async def test_a_refused_request_that_names_a_running_call_leaves_that_call_in_the_list() -> None:
    async with ready(MemoryAgent(answering=(gate := Gate()))) as hosting:
        work = hosting.begin(call := a_call())
        await gate.wait_for_entered()
        hosting.agent.refuse(call, CallRefusedError("no", reason="bad_input"))
        assert [one.id for one in hosting.calls.running()] == [call.call_id]
        gate.open()
        await work
