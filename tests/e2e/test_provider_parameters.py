"""Parameters of a call that one provider's models refuse, or take only in part."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.pairs import pairs
from tests.support.parameters import AS_SCHEMA, notes_of, result_of
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import (
    ALIYUN,
    ANTHROPIC,
    BEDROCK,
    CODEX,
    GEMINI,
    GENERIC,
    HF,
    PROVIDERS,
    over_providers,
)
from tests.support.scripted_llm import call_tools, say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scripted_llm import LlmRequest, Turn

ONE_TOOL = {"type": "function", "function": {"name": "tools__echo"}}


@pytest.mark.parametrize("provider", [GENERIC, ALIYUN, ANTHROPIC], ids=lambda one: one.name)
async def test_a_call_without_tools_or_stop_texts_sends_neither_as_null_or_empty(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, lambda _: say("Done."), servers=()) as served:
        await result_of(served)
    [request] = served.llm.requests
    assert request.body.keys().isdisjoint({"tools", "stop", "stop_sequences"})


async def test_later_models_of_claude_get_no_sampling(tmp_path: Path) -> None:
    provider = replace(ANTHROPIC, model="anthropic.claude-opus-4-7")
    async with serving(tmp_path, provider, lambda _: say("Done.")) as served:
        notes = notes_of(await result_of(served, temperature=0.25, top_p=0.75, top_k=40))

    assert notes == {"ignored": ["temperature", "top_p", "top_k"]}
    assert not {"temperature", "top_p", "top_k"} & served.llm.requests[0].body.keys()


async def test_codex_ignores_a_limit_of_tokens_which_its_endpoint_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path, CODEX, [say("Done.")]) as served:
        result = await result_of(served, max_tokens=500)

    assert [block["text"] for block in result["content"]] == ["Done."]
    assert notes_of(result) == {"ignored": ["max_tokens"]}


BY_TOOL = replace(ANTHROPIC, config={**ANTHROPIC.config, "structured_output_mode": "tool_use"})


async def test_gemini_gets_its_tools_and_the_schema_at_once_where_it_takes_both(tmp_path: Path) -> None:
    provider = replace(GEMINI, model="google.gemini-3.5-flash")
    async with serving(tmp_path, provider, calls_twice_then_answers) as served:
        await result_of(served, response_format=AS_SCHEMA)

    assert all("tools__echo" in one.tools for one in served.llm.requests)
    assert all("responseSchema" in one.body["generationConfig"] for one in served.llm.requests)


BY_POLICY = [
    replace(GENERIC, model="generic.openai/gpt-oss-120b"),  # no_tools
    replace(GENERIC, model="generic.qwen/qwen3.8-27b"),  # defer
    replace(HF, model="hf.minimaxai/minimax-m2.5"),  # no_tools
    replace(HF, model="hf.zai-org/glm-5.1"),  # no_tools
]
TOOLS_FIRST = {"moonshot", "googleoai", "google", "google by Vertex AI", "anthropic-vertex"}
VERDICT = {"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"]}
AS_VERDICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": VERDICT}}


@over_providers("schema", [*PROVIDERS, BY_TOOL, *BY_POLICY])
async def test_an_answer_with_a_schema_has_its_tools_first(provider: Provider, tmp_path: Path) -> None:
    is_two_phase = provider.name in TOOLS_FIRST or provider in [BY_TOOL, *BY_POLICY]
    async with serving(tmp_path, provider, calls_twice_then_judges) as served:
        result = await result_of(served, response_format=AS_VERDICT)

    assert [block["text"] for block in result["content"]] == ['{"verdict": "Ann"}']
    assert notes_of(result) == {}
    requests = served.llm.requests
    assert ["tools__echo" in one.tools for one in requests] == [True] * 3 + [False] * is_two_phase
    has_schema = ["verdict" in json.dumps(one.body) for one in requests]
    assert has_schema == ([False] * 3 + [True] if is_two_phase else [True] * 3)


@pytest.mark.parametrize("kind", ["text", "json_object"])
async def test_other_formats_leave_the_tools_to_a_model_that_takes_none_with_a_schema(
    kind: str, tmp_path: Path
) -> None:
    async with serving(tmp_path, BY_POLICY[0], calls_twice_then_judges) as served:
        assert notes_of(await result_of(served, response_format={"type": kind})) == {}

    requests = served.llm.requests
    assert ["tools__echo" in one.tools for one in requests] == [True] * 3 + [False] * (kind == "json_object")
    assert requests[-1].body["response_format"] == {"type": kind}


@pairs(
    {
        "limit, tools": [(1, [False]), (2, [True, False]), (4, [True, True, True, False])],
        "provider": {"by policy": BY_POLICY[0], "google": GEMINI},
    }
)
async def test_the_turn_with_the_schema_is_one_of_max_iterations(
    provider: Provider, limit: int, tools: list[bool], tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, calls_twice_then_judges, max_iterations=limit) as served:
        result = await result_of(served, response_format=AS_VERDICT, tool_choice="required")

    assert [block["text"] for block in result["content"]] == ['{"verdict": "Ann"}']
    assert result["_meta"]["pallas/call"]["iterations"] == limit
    assert ["tools__echo" in one.tools for one in served.llm.requests] == tools
    assert "verdict" in json.dumps(served.llm.requests[-1].body)


async def test_a_tool_is_not_forced_in_a_request_without_tools(tmp_path: Path) -> None:
    async with serving(tmp_path, BY_POLICY[0], calls_twice_then_judges, max_iterations=1) as served:
        notes = notes_of(await result_of(served, response_format=AS_VERDICT, tool_choice=ONE_TOOL))
    assert "tool_choice" not in served.llm.requests[0].body
    assert notes == {"ignored": ["tool_choice"]}

    async with serving(tmp_path / "two", BY_POLICY[0], lambda _: say('{"verdict": "Ann"}')) as served:
        await result_of(served, response_format=AS_VERDICT, tool_choice=ONE_TOOL)  # the model does not obey
    assert ["tool_choice" in one.body for one in served.llm.requests] == [True, False]


async def test_a_failure_of_the_model_is_no_reason_to_ask_for_the_schema(tmp_path: Path) -> None:
    async with serving(tmp_path, GEMINI, lambda _: served.llm.refuse(400, "no")) as served:
        result = await result_of(served, response_format=AS_SCHEMA)

    assert (result["isError"], len(served.llm.requests)) == (True, 1)


def calls_twice_then_judges(request: LlmRequest) -> Turn:
    """A model that calls tools twice if it has any, and then writes what fits the schema."""
    if request.number <= 2 and "tools__echo" in request.tools:
        return call_tools([("tools__echo", {"text": f"call {request.number}"})])
    if "return_structured_output" in request.tools:
        return call_tools([("return_structured_output", {"verdict": "Ann"})])
    return say('{"verdict": "Ann"}')


def calls_twice_then_answers(request: LlmRequest) -> Turn:
    """A model that calls tools twice if it has any, then writes text, and then what fits the schema."""
    if request.number <= 2 and request.tools:
        return call_tools([("tools__echo", {"text": f"call {request.number}"})])
    return say('{"name": "Ann"}' if request.number > 3 or not request.tools else "It is Ann.")


async def test_an_allow_list_holds_for_models_of_bedrock_that_read_of_their_tools_in_the_prompt(tmp_path: Path) -> None:
    def without_tools(request: LlmRequest) -> Turn:
        return served.llm.refuse(400, "this model has no tools") if request.tools else say("Done.")

    unknown_yet = replace(BEDROCK, model="bedrock.meta.llama3-8b-instruct-v1:0")  # fast-agent remembers the form
    async with serving(tmp_path, unknown_yet, without_tools) as served:
        for _ in range(2):
            result = await result_of(served, tools_allowlist=["tools/echo"])
            assert [block["text"] for block in result["content"]] == ["Done."]
