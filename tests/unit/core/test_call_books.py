"""The one line a call leaves in the log, whatever became of it."""

import logging
from typing import Any

import pytest

from pallas_gateway.calls.call import Call, Message, Reply, Spent, TurnUsage, Usage
from pallas_gateway.core.call_books import OTHERS, log_reply, log_unanswered, tools_used
from pallas_gateway.core.running_call import LONGEST_TOOL, MOST_TOOLS
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.secret import Secret
from pallas_gateway.telemetry.logs import fields_of
from tests.support.hosted import pending, ready
from tests.support.memory_runtime import TURN, MemoryAgent, a_call, fail, say
from tests.support.waiting import Gate, cancelled

CALL = Call("echo", Message("user", "hi"), conversation_id="v1", caller=Caller("ci", Secret("s")), call_id="c1")
ABOUT = {"agent": "echo", "call_id": "c1", "conversation_id": "v1", "caller": "ci", "duration_seconds": 1.5}
TOKENS = {"input": 3, "output": 2, "cache_read": 0, "cache_write": 0, "reasoning": 0}


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas")


def line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The only line of `pallas.calls`, as its message and fields."""
    [record] = [record for record in caplog.records if record.name == "pallas.calls"]
    assert record.levelno == logging.INFO
    return {"message": record.message, **fields_of(record)}


def test_an_answered_call_says_what_it_cost_and_used(caplog: pytest.LogCaptureFixture) -> None:
    turns = (TurnUsage("m", Usage(1, 1)), TurnUsage("m", Usage(2, 1)))
    log_reply(CALL, Reply((), "endTurn", 2, turns, tools=("a/x", "b/y", "a/x")), seconds=1.5)
    assert line(caplog) == {
        "message": "call ended",
        **ABOUT,
        "outcome": "ok",
        "stop_reason": "endTurn",
        "iterations": 2,
        "tokens": TOKENS,
        "tools": {"a/x": 2, "b/y": 1},
    }


def test_a_failed_call_says_why_and_what_it_cost(caplog: pytest.LogCaptureFixture) -> None:
    log_reply(CALL, fail("The model could not answer: overloaded")(CALL), seconds=1.5)
    said = line(caplog)
    assert (said["outcome"], said["reason"]) == ("error", "llm_error")
    assert said["error"] == "The model could not answer: overloaded"
    assert "stop_reason" not in said


def test_a_halted_call_says_by_what(caplog: pytest.LogCaptureFixture) -> None:
    log_reply(CALL, say("stopped", halted=("repeat", "deadline")), seconds=1.5)
    assert line(caplog)["halted"] == ["repeat", "deadline"]


def test_a_nested_call_names_the_one_above_it_and_a_traced_one_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    call = Call("echo", Message("user", "hi"), nesting=2, parent_call_id="c0", trace_id="t1")
    log_unanswered(call, "cancelled", Spent(), seconds=0.1)
    said = line(caplog)
    assert (said["nesting"], said["parent_call_id"], said["trace_id"], said["reason"]) == (2, "c0", "t1", "cancelled")


def test_the_names_of_tools_are_bounded() -> None:
    names = [f"server/tool-{number}" for number in range(MOST_TOOLS + 5)] + ["server/tool-0", "x" * 1000]
    counted = tools_used(names)
    assert len(counted) == MOST_TOOLS + 1
    assert (counted["server/tool-0"], counted[OTHERS]) == (2, 6)
    assert max(map(len, counted)) <= LONGEST_TOOL


async def test_each_way_a_call_ends_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def surprise(call: Call) -> Reply:
        raise ValueError("unforeseen")

    await pending("echo", MemoryAgent()).answer(a_call())
    assert line(caplog)["outcome"] == "ok"
    caplog.clear()
    with pytest.raises(ValueError, match="unforeseen"):
        await pending("echo", MemoryAgent(surprise)).answer(a_call())
    assert (line(caplog)["message"], line(caplog)["reason"]) == ("call ended", "internal_error")
    caplog.clear()
    with pytest.raises(CallRefusedError):
        await pending("echo", MemoryAgent(), calls=0).answer(a_call())
    assert (line(caplog)["message"], line(caplog)["reason"]) == ("call refused", "busy")
    caplog.clear()
    with pytest.raises(AgentUnavailableError):
        await pending().answer(a_call())
    assert line(caplog)["reason"] == "agent_unavailable"
    assert line(caplog)["error"].startswith("Agent 'echo' cannot take calls")
    caplog.clear()
    pending().agent.refuse(a_call(), CallRefusedError("no message", reason="bad_input"))
    assert (line(caplog)["reason"], line(caplog)["error"]) == ("bad_input", "no message")


@pytest.mark.parametrize(("draining", "reason"), [(False, "cancelled"), (True, "stopped")])
async def test_a_cancelled_call_says_who_ended_it_and_what_it_had_used(
    draining: bool, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemoryAgent(answering=(gate := Gate()), turns_so_far=(TURN, TURN), tools_so_far=("a/x", "a/x"))
    async with ready(memory) as one:
        work = one.begin(a_call("wait"))
        await gate.wait_for_entered()
        one.calls.draining = draining
        await cancelled(work)
    said = line(caplog)
    assert (said["outcome"], said["reason"]) == ("error", reason)
    assert (said["iterations"], said["tools"]) == (2, {"a/x": 2})
    assert (said["tokens"]["input"], said["tokens"]["output"]) == (6, 4)
