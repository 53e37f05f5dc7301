"""Parameters as they leave for every provider, and those that models of one refuse, or take only in part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.pairs import pairs
from tests.support.parameters import AS_SCHEMA, notes_of, result_of
from tests.support.provider_gateways import Provider, Served, serving
from tests.support.provider_matrix import (
    ALIYUN,
    ANTHROPIC,
    AZURE,
    BEDROCK,
    CODEX,
    GEMINI,
    GENERIC,
    HF,
    OPENAI,
    PROVIDERS,
    RESPONSES,
    over_providers,
)
from tests.support.scripted_llm import Json, LlmRequest, Turn, call_tools, say

ONE_TOOL = {"type": "function", "function": {"name": "tools__echo"}}


@pytest.mark.parametrize("provider", [GENERIC, ALIYUN, ANTHROPIC], ids=lambda one: one.name)
async def test_a_call_without_tools_or_stop_texts_sends_neither_as_null_or_empty(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, lambda _: say("Done."), servers=()) as served:
        await result_of(served)
    [request] = served.llm.requests
    assert request.body.keys().isdisjoint({"tools", "stop", "stop_sequences"})


@pytest.mark.parametrize(
    ("provider", "params"),
    [
        (replace(ANTHROPIC, model="anthropic.claude-opus-4-7"), {"temperature": 0.25, "top_p": 0.75, "top_k": 40}),
        (CODEX, {"max_tokens": 500}),  # which its endpoint refuses
    ],
    ids=["later models of Claude", "codex"],
)
async def test_what_a_model_does_not_take_is_ignored(provider: Provider, params: Any, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, lambda _: say("Done.")) as served:
        result = await result_of(served, **params)

    assert [block["text"] for block in result["content"]] == ["Done."]
    assert notes_of(result) == {"ignored": [*params]}
    assert not params.keys() & served.llm.requests[0].body.keys()


BY_TOOL = replace(ANTHROPIC, config={**ANTHROPIC.config, "structured_output_mode": "tool_use"})


async def test_gemini_gets_its_tools_and_the_schema_at_once_where_it_takes_both(tmp_path: Path) -> None:
    provider = replace(GEMINI, model="google.gemini-3.5-flash")
    async with serving(tmp_path, provider, calls_twice_then_judges) as served:
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
async def test_other_formats_leave_tools_to_a_model_that_takes_none_with_a_schema(kind: str, tmp_path: Path) -> None:
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


async def test_an_allow_list_holds_for_models_of_bedrock_that_read_of_their_tools_in_the_prompt(tmp_path: Path) -> None:
    def without_tools(request: LlmRequest) -> Turn:
        return served.llm.refuse(400, "this model has no tools") if request.tools else say("Done.")

    unknown_yet = replace(BEDROCK, model="bedrock.meta.llama3-8b-instruct-v1:0")  # fast-agent remembers the form
    async with serving(tmp_path, unknown_yet, without_tools) as served:
        for _ in range(2):
            result = await result_of(served, tools_allowlist=["tools/echo"])
            assert [block["text"] for block in result["content"]] == ["Done."]


# --- as they leave, for every provider --------------------------------------------------------------------------------

ROWS = [
    *PROVIDERS,
    replace(OPENAI, model="openai.o3"),
    replace(OPENAI, model="openai.gpt-5.4"),
    replace(OPENAI, model="openai.gpt-5.4?reasoning=none"),
    replace(AZURE, model="azure.gpt-5"),
    replace(RESPONSES, model="responses.gpt-5.4"),
    replace(RESPONSES, model="responses.gpt-5.4?reasoning=none"),
    replace(RESPONSES, model="responses.gpt-6-sol"),
    replace(ANTHROPIC, model="anthropic.claude-opus-5"),
    replace(GEMINI, model="google.gemini-3.5-flash"),
    replace(BEDROCK, model="bedrock.anthropic.claude-sonnet-4-5-20250929-v1:0"),
]
"""Models of OpenAI's, Anthropic's and Google's differ in what they refuse."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
PARAMS: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.75,
    "top_k": 40,
    "max_tokens": 321,
    "stop": "END",
    "presence_penalty": 0.5,
    "frequency_penalty": 0.125,
    "seed": 42,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "tool_choice": ONE_TOOL,
    "extra": {"dry_sequence_breakers": ["*", "\n"]},
}
APART = {"top_p": 0.75, "tool_choice": "required"}
"""Asked in a call of its own: some models take either `temperature` or `top_p`, others no single tool."""
DOCUMENT = (Path(__file__).parents[2] / "docs" / "use" / "parameters.md").read_text()
ROWS_OF_MODELS = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)
IGNORED = {model: ignored for models, ignored in ROWS_OF_MODELS for model in re.findall("`([^`]+)`", models)}


def chat_form(body: Json) -> Json:
    """The parameters of a request of chat completions, by their own names."""
    return {**body, "max_tokens": body.get("max_tokens", body.get("max_completion_tokens"))}


def responses_form(body: Json) -> Json:
    wanted, choice = (body.get("text") or {}).get("format"), body.get("tool_choice")
    named = {name: value for name, value in (wanted or {}).items() if name != "type"}
    return {
        **body,
        "max_tokens": body.get("max_output_tokens"),
        "response_format": {"type": wanted["type"], "json_schema": named} if wanted else None,
        "tool_choice": {"type": "function", "function": {"name": choice["name"]}}
        if isinstance(choice, dict)
        else choice,
    }


def messages_form(body: Json) -> Json:
    choice, wanted = body.get("tool_choice") or {}, (body.get("output_config") or {}).get("format") or {}
    return {
        **body,
        "stop": body.get("stop_sequences"),
        "response_format": PARAMS["response_format"] if wanted.get("schema") == SCHEMA else None,
        "tool_choice": ONE_TOOL if choice == {"type": "tool", "name": "tools__echo"} else word_of(choice.get("type")),
    }


def by_tool_form(body: Json) -> Json:
    """Messages of models that take a schema as the input of a tool."""
    names = [
        tool["name"] for tool in body.get("tools") or [] if set(tool["input_schema"].get("required") or ()) == {"a"}
    ]
    return {**messages_form(body), **({"response_format": PARAMS["response_format"]} if names else {})}


def gemini_form(body: Json) -> Json:
    config = body.get("generationConfig", {})
    names = {"top_p": "topP", "top_k": "topK", "max_tokens": "maxOutputTokens", "stop": "stopSequences"}
    names.update({"presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty"})
    properties = config.get("responseSchema", {}).get("properties", {})
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    return {
        **config,
        **{name: config.get(sent) for name, sent in names.items()},
        "response_format": PARAMS["response_format"] if "a" in properties else None,
        "tool_choice": word_of(calling.get("mode", "").lower()),
    }


def bedrock_form(body: Json) -> Json:
    """The same of Bedrock's API, whose last message holds the schema as text."""
    config, choice = body.get("inferenceConfig", {}), (body.get("toolConfig") or {}).get("toolChoice")
    said = json.dumps(body["messages"][-1]).replace("\\n", " ").replace("\\", "")
    return {
        "temperature": config.get("temperature"),
        "top_p": config.get("topP"),
        "max_tokens": config.get("maxTokens"),
        "stop": config.get("stopSequences"),
        "response_format": PARAMS["response_format"] if '"required": [' in said and '"a"' in said else None,
        "tool_choice": word_of(next(iter(choice or {}), None)),
    }


def word_of(choice: str | None) -> str | None:
    """OpenAI's word for a choice of tools."""
    return "required" if choice == "any" else choice


FORMS = {
    "Responses": responses_form,
    "Anthropic": messages_form,
    "AnthropicVertex": by_tool_form,
    "Gemini": gemini_form,
    "Bedrock": bedrock_form,
    "NoneType": chat_form,
}


def sent(provider: Provider, requests: Iterable[LlmRequest], asked: Mapping[str, Any]) -> set[str]:
    """Those of the parameters that a request has held as they were asked for."""
    form = FORMS[type(provider.dialect).__name__]
    bodies = [form(request.body) for request in requests]
    wanted = {**asked, **({"stop": ["END"]} if "stop" in asked else {}), **asked.get("extra", {})}
    found = {name for name, value in wanted.items() if any(body.get(name) == value for body in bodies)}
    return (found | ({"extra"} if found & asked.get("extra", {}).keys() else set())) & asked.keys()


async def ignored_by(provider: Provider, served: Served, asked: Mapping[str, Any]) -> set[str]:
    """What the result says was ignored, after the requests have shown the same."""
    served.llm.requests.clear()
    async with raw_client(served.url, protocol_version=MODERN_VERSION) as client:
        result = (await client.call_tool("send_message", {"message": "hi", "params": asked})).result
    assert [block["text"] for block in result["content"]] == ['{"a": "b"}']
    ignored = set(result["_meta"].get("pallas/params", {}).get("ignored", ()))
    assert ignored == asked.keys() - sent(provider, served.llm.requests, asked)
    return ignored


@over_providers("parameters", ROWS)
async def test_a_result_names_exactly_what_its_provider_was_not_told_and_the_documents_table_agrees(
    provider: Provider, tmp_path: Path
) -> None:
    known = {"max_output_tokens": 4096}
    async with serving(tmp_path, provider, lambda _: say('{"a": "b"}'), model_capabilities=known) as served:
        first = await ignored_by(provider, served, {name: PARAMS[name] for name in PARAMS if name != "top_p"})
        apart = await ignored_by(provider, served, APART)
    ignored = {name: f"`{name}`" for name in PARAMS if name in first or name in apart}
    if "tool_choice" in first - apart:
        ignored["tool_choice"] += " by name"

    assert IGNORED[provider.model] == (", ".join(ignored.values()) or "nothing")


def test_the_documents_table_has_each_of_these_models() -> None:
    assert IGNORED.keys() == {one.model for one in ROWS}
