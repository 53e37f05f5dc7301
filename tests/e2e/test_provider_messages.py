"""Log records and metrics of calls over providers that fast-agent reports on in its own way."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import KEY, Provider, Served, serving
from tests.support.provider_matrix import ANTHROPIC, GENERIC
from tests.support.scripted_llm import say

MOONSHOT = Provider("moonshot", "moonshot.kimi-k3", None, {"api_key": KEY, "base_url": "{url}/v1"})
TENSORZERO = Provider("tensorzero", "tensorzero.function", None, {"api_key": KEY, "base_url": "{url}"})
OPUS = replace(ANTHROPIC, model="anthropic.claude-opus-5")
BUDGETED = replace(ANTHROPIC, config={**ANTHROPIC.config, "task_budget": "20000"})
SAID = [
    (BUDGETED, {}, "Task budget ignored for model without Anthropic task budget support."),
    (OPUS, {"top_k": 4}, "Anthropic model ignores unsupported sampling parameters; removed top_k."),
    (MOONSHOT, {"temperature": 0.5}, "Ignoring fixed or unsupported Kimi K3 sampling parameters."),
]


@pytest.mark.parametrize(("provider", "params", "sentence"), SAID, ids=lambda one: str(one)[:20])
async def test_a_warning_about_settings_is_written_once_per_agent(
    provider: Provider, params: dict[str, Any], sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="pallas.fast_agent")

    def warned() -> int:
        return [record.getMessage() for record in caplog.records].count(sentence)

    async def call(served: Served) -> None:
        for _ in range(3):
            assert (await ask(served.url, params=params)).text == "Done."

    async with serving(tmp_path / "one", provider, lambda _: say("Done.")) as served:
        await call(served)
        assert warned() == 1
    async with serving(tmp_path / "two", provider, lambda _: say("Done.")) as served:  # the agent has started again
        await call(served)
        assert warned() == 2


async def test_the_first_record_of_a_failed_call_has_the_providers_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pallas")
    async with serving(tmp_path, GENERIC, lambda _: served.llm.refuse(400, "no such parameter")) as served:
        await ask(served.url)
        first = next(one for one in caplog.records if getattr(one, "call_id", None))

    assert "no such parameter" in str(vars(first))


async def test_turns_of_tensorzero_count_for_the_model_as_it_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, TENSORZERO, lambda _: say("Done.")) as served:
        assert (await ask(served.url)).text == "Done."
        assert served.gateway.metric("pallas_llm_turns_total", agent="solo", model="function") == 1
