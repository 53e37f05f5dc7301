"""Chat completions of servers that depart from OpenAI's form, and tool calls that they number in their own ways."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.repairs.openai.tool_calls import ToolCalls
from tests.support.calling import answer_of
from tests.support.provider_gateways import Provider, deltas_of, serving
from tests.support.provider_matrix import ALIYUN, GENERIC, GOOGLEOAI, GROQ, MOONSHOT, OPENAI, OPENROUTER, ZAI
from tests.support.providers.chat import Chat
from tests.support.scripted_llm import Json, LlmRequest, Turn, Usage, call_tools, say

USAGE = Usage(prompt=30, completion=7, cached=4, reasoning=3)
DIALECTS = {
    "Groq": (GROQ, Chat(usage="groq", calls_in="one")),
    "Moonshot": (MOONSHOT, Chat(usage="last", thought="Let me think.")),
    "Z.ai": (ZAI, Chat(usage="last", calls_in="one", thought="Let me think.")),
    "OpenRouter": (OPENROUTER, Chat(thought="Let me think.", thought_field="reasoning", comments=True)),
    "Qwen": (ALIYUN, Chat(calls_in="blanks")),
    "Ollama": (GENERIC, Chat(calls_in="all")),
    "vLLM": (GENERIC, Chat(usage="each")),
    "usage before the last chunk": (GENERIC, Chat(usage="early")),
    "OpenAI's path, usage before the last chunk": (OPENAI, Chat(usage="early")),
    "no usage": (GENERIC, Chat(usage="none")),
    "Gemini, all 0": (GOOGLEOAI, Chat(usage="each", calls_in="one", index="zero", tools_end="stop")),
    "Gemini, no index": (GOOGLEOAI, Chat(usage="each", calls_in="one", index="missing", tools_end="stop")),
    "generic, all 0": (GENERIC, Chat(index="zero")),
    "generic, no index": (GENERIC, Chat(index="missing")),
    "OpenAI's path, all 0": (OPENAI, Chat(calls_in="one", index="zero")),
    "OpenAI's path, no index": (OPENAI, Chat(calls_in="one", index="missing")),
}


TWICE = {
    "OpenAI's path, usage before the last chunk",
    "OpenAI's path, all 0",
    "generic, no index",
    "vLLM",
}
"""Each part of these is in another one, too."""


@pytest.mark.parametrize(
    ("provider", "dialect"),
    [pytest.param(*one, marks=[pytest.mark.whole] * (name in TWICE), id=name) for name, one in DIALECTS.items()],
)
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
    if dialect.usage == "none":
        assert spent.pop("estimated")
        assert spent["input"] > spent["output"] > 0
        assert (spent["cache_read"], spent["cache_write"], spent["reasoning"]) == (0, 0, 0)
    else:
        assert spent == counted
    assert [request.is_streamed for request in served.llm.requests] == [True, True]


def both_tools(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("It is 3.", usage=USAGE)
    calls: list[tuple[str, Json]] = [("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})]
    return call_tools(calls, text="Both. ", usage=USAGE)


type Piece = tuple[int | None, str | None, str | None, str]  # index, id, name, arguments
MERGED = [("echo", '{"text":"Ann"}'), ("add", "{}")]
FORMS: dict[str, list[Piece]] = {
    "OpenAI": [(0, "a", "echo", ""), (0, None, None, '{"text":'), (0, None, None, '"Ann"}'), (1, "b", "add", "{}")],
    "mixed": [(0, "a", "echo", '{"text":'), (1, "b", "add", "{}"), (0, None, None, '"Ann"}')],
    "from 1": [(1, "a", "echo", '{"text":"Ann"}'), (2, "b", "add", "{}")],
    "no index": [(None, "a", "echo", '{"text":'), (None, None, None, '"Ann"}'), (None, "b", "add", "{}")],
    "all 0": [(0, "a", "echo", '{"text":'), (0, None, None, '"Ann"}'), (0, "b", "add", "{}")],
    "blank ids": [(0, "a", "echo", '{"text":'), (0, "", "", '"Ann"}'), (1, "b", "add", "{}")],
    "an id for each piece": [(0, "a", "echo", '{"text":'), (0, "c", None, '"Ann"}'), (1, "b", "add", "{}")],
    "names again": [(0, "a", "echo", '{"text":'), (0, "a", "echo", '"Ann"}'), (1, "b", "add", "{}")],
    "no ids": [(0, None, "echo", '{"text":'), (0, None, "echo", '"Ann"}'), (1, None, "add", "{}")],
    "neither": [(None, None, "echo", '{"text":"Ann"}'), (None, None, "add", "{}")],
    "the name later": [(0, "a", None, ""), (0, None, "echo", '{"text":"Ann"}'), (1, "b", "add", "{}")],
}


@pytest.mark.parametrize("pieces", FORMS.values(), ids=FORMS)
def test_calls_are_told_apart(pieces: list[Piece]) -> None:
    calls, merged = ToolCalls(), dict[int, list[str]]()
    ids = list[str]()
    for piece in pieces:
        choice = chunk(piece).choices[0]
        calls.settle(choice)
        for one in choice.delta.tool_calls or ():
            call = merged.setdefault(one.index, ["", ""])
            ids += [one.id] if one.id else []
            assert one.function is not None
            call[0] = one.function.name or call[0]
            call[1] += one.function.arguments or ""

    assert merged == dict(enumerate(map(list, MERGED)))
    assert len(set(ids)) == len(ids) == 2


def test_an_answer_with_calls_ends_for_their_sake() -> None:
    calls = ToolCalls()
    for reason in ("stop", "length"):
        choice = chunk((0, "a", "echo", "{}"), reason).choices[0]
        calls.settle(choice)
        assert choice.finish_reason == ("tool_calls" if reason == "stop" else reason)


def test_an_answer_without_calls_stops() -> None:
    choice = chunk(None, "stop").choices[0]
    ToolCalls().settle(choice)
    assert choice.finish_reason == "stop"


def chunk(piece: Piece | None, reason: str | None = None) -> ChatCompletionChunk:
    """As the OpenAI library makes one of what fits its types only in part."""
    delta: dict[str, Any] = {}
    if piece is not None:
        index, call_id, name, arguments = piece
        call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
        call |= {} if index is None else {"index": index}
        call |= {} if call_id is None else {"id": call_id}
        delta = {"tool_calls": [call]}
    return ChatCompletionChunk.construct(choices=[{"index": 0, "delta": delta, "finish_reason": reason}])
