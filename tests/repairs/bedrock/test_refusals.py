"""Bedrock refusals multiply requests."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import LlmRequest, Turn, say


@pytest.fixture
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """fast-agent remembers for each model what it cannot do."""
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("fast_agent.llm.provider.bedrock.llm_bedrock").BedrockLLM, "capabilities", {})


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


async def test_a_model_that_refuses_every_form_is_sent_three_requests_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"Input is too long": 2, " ".join(REFUSALS.values()): 3, REFUSALS["system"]: 3, REFUSALS["stream"]: 3}
    async with serving(tmp_path, BEDROCK, lambda _: served.llm.refuse(400, message)) as served:
        for message, count in said.items():
            forget(monkeypatch)
            served.llm.requests.clear()
            answer = await ask(served.url)
            assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
            assert message in answer.text
            assert (message, len(served.llm.requests)) == (message, count)


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
