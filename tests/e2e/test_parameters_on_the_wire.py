"""Every parameter as it leaves for every provider; the table of docs/use/parameters.md is of these rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import (
    ANTHROPIC,
    AZURE,
    BEDROCK,
    GEMINI,
    OPENAI,
    PROVIDERS,
    RESPONSES,
    over_providers,
)
from tests.support.scripted_llm import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.provider_gateways import Provider, Served
    from tests.support.scripted_llm import Json, LlmRequest


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
ONE_TOOL = {"type": "function", "function": {"name": "tools__echo"}}
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
    """The same of the Responses API."""
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
    """The same of Anthropic's Messages API."""
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
    """The same of Google's API."""
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
