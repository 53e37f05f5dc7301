"""The one way in: what a call has before its arguments are read, and how each end reaches the API that encodes it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pallas_gateway.calls.call import Call, Message, Reply
from pallas_gateway.core.call_request import CallRequest, requested
from pallas_gateway.errors import CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.identity.caller import ANONYMOUS, Caller
from pallas_gateway.identity.grants import NOTHING
from pallas_gateway.runtime.protocols import ParentCall
from tests.support.hosted import ready
from tests.support.memory_runtime import MemoryAgent, fail, say, unread


async def answered_by(
    reply: Callable[[Call], Reply], *, refusal: GatewayError | None = None, caller: Caller = ANONYMOUS
) -> tuple[CallRequest, bool]:
    """The end of one call, and True if the agent has counted a refusal."""

    async def decode(asked: Call) -> Call:
        if refusal is not None:
            raise refusal
        return replace(asked, message=Message("user", "hi"))

    counted: list[Any] = []
    async with ready(MemoryAgent()) as one:
        agent = one.agent
        agent.refuse = lambda *refused: counted.append(refused)  # type: ignore[method-assign]
        with requested(agent, caller, {}) as request:
            with request.answering():
                request.ended(reply(await request.decoded(decode)))
            return request, bool(counted)


async def test_a_reply_is_the_outcome() -> None:
    answered, counted = await answered_by(lambda call: say(f"{call.message.text}!"))
    assert (answered.outcome, answered.has_failed, counted) == (answered.reply, False, False)
    assert answered.facts().items() >= {"agent": "echo", "stop_reason": "endTurn", "iterations": 1}.items()


async def test_a_failed_reply_is_an_error_with_the_replys_words_and_its_cost() -> None:
    answered, _ = await answered_by(fail("overloaded \udc00", turns=say("x").turns))
    assert isinstance(answered.outcome, CallFailedError)
    assert (str(answered.outcome), answered.outcome.reason) == ("overloaded ?", "llm_error")
    assert answered.facts()["usage"]["input"] == 3


async def test_the_stop_reason_of_a_failure_is_its_reason() -> None:
    late = replace(say("stopped"), failure="deadline")  # as `AnswerText` has it if nothing was said until then
    answered, _ = await answered_by(lambda _: late)
    assert (late.stop_reason, answered.facts()["stop_reason"]) == ("endTurn", "deadline")


@pytest.mark.parametrize(
    ("refusal", "is_counted"),
    [(CallRefusedError("no", reason="bad_input"), True), (GatewayError("no thread", reason="not_found"), False)],
    ids=str,
)
async def test_a_request_that_cannot_be_parsed_is_not_answered(refusal: GatewayError, is_counted: bool) -> None:
    answered, counted = await answered_by(say_nothing, refusal=refusal)
    assert (answered.outcome, answered.reply, counted) == (refusal, None, is_counted)
    assert answered.facts()["stop_reason"] == refusal.reason


async def test_a_caller_without_a_grant_is_refused_here_as_well() -> None:
    answered, counted = await answered_by(say_nothing, caller=Caller(grants=NOTHING))
    assert isinstance(answered.outcome, CallRefusedError)
    assert (answered.outcome.reason, counted) == ("insufficient_scope", True)


async def test_an_unexpected_error_is_a_sentence_with_the_calls_id(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(_: Call) -> Reply:
        raise ValueError("canary")

    answered, _ = await answered_by(break_down)
    assert isinstance(answered.outcome, CallFailedError)
    assert answered.outcome.reason == "internal_error"
    assert answered.call.call_id in str(answered.outcome)
    assert "canary" not in str(answered.outcome)
    assert [record.message for record in caplog.records] == ["call failed"]


async def test_a_call_knows_the_running_call_that_made_it() -> None:
    async with ready(MemoryAgent()) as one:
        agent = one.agent
        parent = Call("caller", Message("user", "hi"), nesting=2)
        above = ParentCall(parent, *unread())
        with requested(agent, ANONYMOUS, {}, conversation_id="c-1", call_id="id-1", parent=above) as request:
            nested = request.call
        with requested(agent, ANONYMOUS, {}) as request:
            orphan = request.call

    assert (nested.nesting, nested.parent_call_id, nested.call_id) == (3, parent.call_id, "id-1")
    assert nested.conversation_id == "c-1"
    assert (orphan.nesting, orphan.parent_call_id, orphan.conversation_id) == (0, None, None)
    assert orphan.call_id != nested.call_id


def say_nothing(_: Call) -> Reply:
    raise AssertionError("the call is not answered")
