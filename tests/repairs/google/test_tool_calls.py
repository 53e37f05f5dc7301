"""Gemini's parallel tool calls become one."""

from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import GEMINI
from tests.support.providers.gemini import Gemini
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say


@pytest.mark.parametrize("dialect", [Gemini(True, True), Gemini(False, False)], ids=str)
async def test_gemini_parallel_tool_calls_in_every_form(dialect: Gemini, tmp_path: Path) -> None:
    provider = Provider(GEMINI.name, GEMINI.model, dialect, GEMINI.config)
    async with serving(tmp_path, provider, both_tools) as served:
        answer = await ask(served.url)

    assert answer.text == "done"
    assert sorted(call.tool or "" for call in served.tools.recorder.calls()) == ["add", "echo"]


def both_tools(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("done")
    return call_tools([("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})], text="Both.")
