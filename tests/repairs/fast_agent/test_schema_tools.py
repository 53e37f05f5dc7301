"""A schema takes the tools away."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import GEMINI, GENERIC
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say

VERDICT = {"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": VERDICT}}
WITHOUT_BOTH = [
    replace(GENERIC, model="generic.openai/gpt-oss-120b"),  # its policy is `no_tools`
    GEMINI,
]


def calls_twice_then_judges(request: LlmRequest) -> Turn:
    """A model that calls tools twice if it has any, then writes text, and what fits the schema without tools."""
    if request.number <= 2 and request.tools:
        return call_tools([("tools__echo", {"text": f"call {request.number}"})])
    return say("It is Ann." if request.tools else '{"verdict": "Ann"}')


async def requests_with(
    response_format: dict[str, Any], provider: Provider, path: Path
) -> tuple[str, list[LlmRequest]]:
    async with serving(path, provider, calls_twice_then_judges) as served:
        async with raw_client(served.url, protocol_version=MODERN_VERSION) as client:
            arguments = {"message": "hi", "params": {"response_format": response_format}}
            result = (await client.call_tool("send_message", arguments)).result
        return result["content"][0]["text"], served.llm.requests


@pytest.mark.parametrize("provider", WITHOUT_BOTH, ids=lambda one: one.model)
async def test_the_model_has_its_tools_until_it_answers_and_the_schema_afterwards(
    provider: Provider, tmp_path: Path
) -> None:
    text, requests = await requests_with(AS_SCHEMA, provider, tmp_path)

    assert text == '{"verdict": "Ann"}'
    assert ["tools__echo" in one.tools for one in requests] == [True, True, True, False]
    assert ["verdict" in json.dumps(one.body) for one in requests] == [False, False, False, True]


async def test_a_text_needs_no_turn_without_tools(tmp_path: Path) -> None:
    text, requests = await requests_with({"type": "text"}, WITHOUT_BOTH[0], tmp_path)

    assert text == "It is Ann."
    assert ["tools__echo" in one.tools for one in requests] == [True, True, True]
