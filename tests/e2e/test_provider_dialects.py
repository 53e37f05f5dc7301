"""Chat completions of servers that depart from OpenAI's form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.e2e.provider_matrix import ALIYUN, GENERIC, GOOGLEOAI, GROQ, MOONSHOT, OPENAI, OPENROUTER, ZAI
from tests.e2e.providers import Provider, deltas_of, serving
from tests.support.calling import answer_of
from tests.support.providers.chat import Chat
from tests.support.scripted_llm import Usage, call_tools, say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import Json, LlmRequest, Turn

USAGE = Usage(prompt=30, completion=7, cached=4, reasoning=3)
DIALECTS = {
    "Groq": (GROQ, Chat(usage="groq", calls_in="one")),
    "Moonshot": (MOONSHOT, Chat(usage="last", thought="Let me think.")),
    "Z.ai": (ZAI, Chat(usage="last", calls_in="one", thought="Let me think.")),
    "OpenRouter": (OPENROUTER, Chat(thought="Let me think.", thought_field="reasoning", comments=True)),
    "Qwen": (ALIYUN, Chat(calls_in="blanks")),
    "Ollama": (GENERIC, Chat(calls_in="all")),
    "vLLM": (GENERIC, Chat(usage="each")),
    "no usage": (GENERIC, Chat(usage="none")),
    "Gemini, all 0": (GOOGLEOAI, Chat(usage="each", calls_in="one", index="zero", tools_end="stop")),
    "Gemini, no index": (GOOGLEOAI, Chat(usage="each", calls_in="one", index="missing", tools_end="stop")),
    "generic, all 0": (GENERIC, Chat(index="zero")),
    "generic, no index": (GENERIC, Chat(index="missing")),
    "OpenAI's path, all 0": (OPENAI, Chat(calls_in="one", index="zero")),
    "OpenAI's path, no index": (OPENAI, Chat(calls_in="one", index="missing")),
}


@pytest.mark.parametrize(("provider", "dialect"), DIALECTS.values(), ids=DIALECTS)
async def test_tools_text_and_tokens_come_through(provider: Provider, dialect: Chat, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, replace(provider, dialect=dialect), both_tools) as served,
        served.in_flight() as call,
    ):
        answer = answer_of(await call.reply())

    assert (answer.text, answer.is_error) == ("It is 3.", False)
    assert "".join(deltas_of(call)) == "Both. It is 3."
    asked = sorted((one.tool or "", str(one.body)) for one in served.tools.recorder.calls())
    assert [tool for tool, _ in asked] == ["add", "echo"]
    results = "".join(served.llm.requests[1].tool_results.values())
    assert "Ann" in results
    assert "3" in results
    spent = answer.meta["usage"]
    counted = {"input": 52, "cache_read": 8, "cache_write": 0, "output": 14, "reasoning": 6}
    assert spent == (dict.fromkeys(counted, 0) if dialect.usage == "none" else counted)
    assert [request.is_streamed for request in served.llm.requests] == [True, True]


def both_tools(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("It is 3.", usage=USAGE)
    calls: list[tuple[str, Json]] = [("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})]
    return call_tools(calls, text="Both. ", usage=USAGE)
