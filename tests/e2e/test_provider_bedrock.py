"""Amazon Bedrock, whose library blocks: what only it can do wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.e2e.provider_matrix import BEDROCK
from tests.e2e.providers import deltas_of, serving
from tests.support.calling import answer_of, ask, health
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.scripted_llm import Usage, call_tools, hang, say, stream
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

CALLS = 40


@pytest.fixture
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """fast-agent remembers for each model what it cannot do."""
    monkeypatch.setattr(import_module("fast_agent.llm.provider.bedrock.llm_bedrock").BedrockLLM, "capabilities", {})


async def test_many_silent_turns_wait_at_once_and_the_next_is_answered(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, say("later")) if request.last_user_text == "wait" else say("now")

    async with serving(tmp_path, BEDROCK, script) as served, asyncio.TaskGroup() as group:
        waiting = [group.create_task(ask(served.url, "wait")) for _ in range(CALLS)]
        await gate.wait_for_entered(CALLS)
        assert (await ask(served.url, "go")).text == "now"
        gate.open()

    assert {task.result().text for task in waiting} == {"later"}


async def test_calls_that_were_left_leave_no_thread_and_no_socket(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return stream(["Once ", "upon."], gate) if request.last_user_text == "stream" else hang(gate)

    async with serving(tmp_path, BEDROCK, lambda _: say("Done.")) as served:
        await ask(served.url)
        before = snapshot()
        served.llm.script = script
        for count, message in enumerate(("stream", "hang") * 3, start=1):
            async with served.in_flight(message) as call:
                await gate.wait_for_entered(count)
                await call.vanish()
            await served.llm.wait_for_aborted(count)
        await assert_nothing_left(before)
        served.llm.script = lambda _: say("Done.")
        assert (await ask(served.url)).text == "Done."


async def test_an_error_does_not_take_the_tools_from_later_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, BEDROCK, lambda _: served.llm.refuse(400, "Input is too long")) as served:
        answer = await ask(served.url)
        assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
        assert "Input is too long" in answer.text
        asked = len(served.llm.requests)
        served.llm.script = lambda _: say("Done.")
        assert (await ask(served.url)).text == "Done."

    assert "tools__add" in served.llm.requests[asked].tools


REFUSALS = {
    "stream": "This model doesn't support tool use in streaming mode.",
    "tools": "This model doesn't support tool use.",
    "system": "This model doesn't support system messages.",
}


def why_refused(request: LlmRequest, without: tuple[str, ...]) -> str | None:
    """Why a model without some features refuses a request, in the words of AWS."""
    uses = {"system": "system" in request.body, "tools": bool(request.tools), "stream": request.is_streamed}
    return next((REFUSALS[one] for one in without if uses[one]), None)


@pytest.mark.usefixtures("nothing_learnt")
@pytest.mark.parametrize(
    ("without", "count"), [(("stream",), 2), (("tools",), 2), (("system",), 2), (("system", "tools"), 3)], ids=str
)
async def test_what_a_model_cannot_do_is_learnt_once_and_every_request_is_logged(
    without: tuple[str, ...], count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script(request: LlmRequest) -> Turn:
        why = why_refused(request, without)
        return say("Done.") if why is None else served.llm.refuse(400, why)

    async with serving(tmp_path, BEDROCK, script) as served:
        answers = [(await ask(served.url)).text for _ in range(2)]
        sent = len(served.llm.requests)

    assert answers == ["Done."] * 2
    assert sent == count + 1
    repeated = [one for one in caplog.records if one.message == "LLM request repeated"]
    reasons = [vars(one)["error"] for one in repeated]
    assert [vars(one)["attempt"] for one in repeated] == [*range(1, count)]
    assert all(REFUSALS[one] in reason for one, reason in zip(without, reasons, strict=True))
    assert {vars(one)["provider"] for one in repeated} == {"bedrock"}


@pytest.mark.usefixtures("nothing_learnt")
@pytest.mark.parametrize(
    ("message", "count"),
    [("Input is too long", 2), (" ".join(REFUSALS.values()), 3), (REFUSALS["system"], 3), (REFUSALS["stream"], 3)],
)
async def test_a_model_that_refuses_every_form_is_sent_three_requests_at_most(
    message: str, count: int, tmp_path: Path
) -> None:
    async with serving(tmp_path, BEDROCK, lambda _: served.llm.refuse(400, message)) as served:
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
    assert message in answer.text
    assert len(served.llm.requests) == count


@pytest.mark.usefixtures("nothing_learnt")
async def test_other_forms_and_repeats_share_the_three_requests(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.number == 1:
            return served.llm.refuse(400, REFUSALS["tools"])
        return served.llm.refuse(503, "busy", retry_after="0.01")

    async with serving(tmp_path, BEDROCK, script) as served:
        answer = await ask(served.url)

    assert "busy" in answer.text
    assert len(served.llm.requests) == 3


@pytest.mark.parametrize(("status", "count"), [(401, 1), (429, 3)])
async def test_a_refusal_is_no_answer_that_misses_the_schema(status: int, count: int, tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
    async with serving(tmp_path, BEDROCK, lambda _: served.llm.refuse(status, "no", retry_after="0.01")) as served:
        answer = await ask(served.url, params={"response_format": schema})

    assert (answer.is_error, answer.meta["stop_reason"], len(served.llm.requests)) == (True, "llm_error", count)


async def test_an_answer_that_misses_the_schema_is_asked_for_once_more_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
    async with serving(tmp_path, BEDROCK, [say("Three."), say('{"sum": 3}')]) as served:
        answer = await ask(served.url, params={"response_format": schema})

    assert answer.text == '{"sum": 3}'
    reasons = [vars(one)["error"] for one in caplog.records if one.message == "LLM request repeated"]
    assert reasons == ["the answer does not fit the schema"]


async def test_tokens_of_the_cache_are_counted_without_a_stream_too(tmp_path: Path) -> None:
    usage = Usage(prompt=30, completion=7, cached=4, written=6)

    def script(request: LlmRequest) -> Turn:
        if request.is_streamed:
            return served.llm.refuse(400, "this model does not stream with tools")
        return say("Done.", usage=usage)

    unknown_yet = replace(BEDROCK, model="bedrock.amazon.nova-micro-v1:0")  # fast-agent remembers which model streams
    async with serving(tmp_path, unknown_yet, script) as served:
        answer = await ask(served.url)

    spent = answer.meta["usage"]
    assert (answer.text, answer.is_error) == ("Done.", False)
    assert (spent["input"], spent["cache_read"], spent["cache_write"], spent["output"]) == (20, 4, 6, 7)


async def test_a_content_filter_is_no_plain_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, BEDROCK, [say("I", finish_reason="content_filter")]) as served:
        answer = await ask(served.url)

    assert answer.meta["stop_reason"] == "safety"


async def test_live_text_before_a_tool_call_keeps_its_order(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say("It is 3.")
        return call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me see. ")

    async with serving(tmp_path, BEDROCK, script) as served, served.in_flight() as call:
        answer = answer_of(await call.reply())

    assert answer.text == "It is 3."
    assert "".join(deltas_of(call)) == "Let me see. It is 3."


async def test_without_its_library_the_agent_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fast_agent.llm.provider.bedrock.llm_bedrock"), "_boto3", None)
    async with serving(tmp_path, BEDROCK, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "boto3 is required for Bedrock" in document["message"]


async def test_a_call_without_credentials_names_the_settings(tmp_path: Path) -> None:
    environ = {**BEDROCK.environ, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    async with serving(tmp_path, replace(BEDROCK, environ=environ), []) as served:
        answer = await ask(served.url)

    why = "no AWS credentials are found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `bedrock.profile`)"
    assert answer.text == f"The model could not answer: {BEDROCK.model}: {why}"
