"""Copilot is asked only once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fast_agent.config import CopilotSettings
from fast_agent.llm.provider.copilot import broker

from tests.support.calling import ask
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import ANTHROPIC, RESPONSES
from tests.support.scripted_llm import LlmRequest, Turn, say

COPILOT = Provider("copilot", "copilot.gpt-6-astra", RESPONSES.dialect)


@pytest.mark.parametrize(
    ("model", "dialect"),
    [("copilot.gpt-6-astra", RESPONSES.dialect), ("copilot.claude-sonnet-5", ANTHROPIC.dialect)],
    ids=["responses", "messages"],
)
async def test_copilot_answers_with_the_token_of_a_variable_and_repeats_requests(
    model: str, dialect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: LlmRequest) -> Turn:
        return served.llm.refuse(429, retry_after="0.01") if request.number < 3 else say("At last.")

    monkeypatch.setenv("COPILOT_GITHUB_TOKEN", "gho_token-of-ann")
    async with serving(tmp_path, replace(COPILOT, model=model, dialect=dialect), script) as served:
        # The setting takes https alone, and Copilot's clients trust no other authorities than the system's.
        base_url = f"{served.llm.base_url}/v1"
        settings = CopilotSettings.model_construct(**{**CopilotSettings().model_dump(), "base_url": base_url})
        monkeypatch.setattr(broker, "copilot_settings", lambda _: settings)
        answer = await ask(served.url)

    assert (answer.text, len(served.llm.requests)) == ("At last.", 3)
    assert {request.bearer for request in served.llm.requests} == {"gho_token-of-ann"}
