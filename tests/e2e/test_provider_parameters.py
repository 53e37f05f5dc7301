"""Parameters of a call that one provider's models refuse, or take only in part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.provider_matrix import ANTHROPIC, GEMINI
from tests.e2e.providers import Provider, serving
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.providers.anthropic import refused_while_thinking
from tests.support.scripted_llm import call_tools, say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.providers import Served
    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.usefixtures("no_trust_store")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ONE_TOOL = {"type": "function", "function": {"name": "tools__echo"}}
BUDGETED, ADAPTIVE, NEWER, ALWAYS = (
    replace(ANTHROPIC, name="anthropic", model=f"anthropic.claude-{name}")
    for name in ("haiku-4-5", "sonnet-4-6", "opus-5", "opus-5-5")
)


async def result_of(served: Served, **params: Any) -> dict[str, Any]:
    async with raw_client(served.url, protocol_version=MODERN_VERSION) as client:
        return (await client.call_tool("send_message", {"message": "hi", "params": params})).result


def notes_of(result: dict[str, Any]) -> dict[str, Any]:
    assert not result.get("isError"), result
    notes: dict[str, Any] = result["_meta"].get("pallas/params", {})
    return notes


@pytest.mark.parametrize("params", [{"temperature": 0.25}, {"top_p": 0.5}, {"top_k": 40}], ids=str)
@pytest.mark.parametrize("provider", [BUDGETED, ADAPTIVE], ids=lambda one: one.model)
async def test_claude_does_not_think_where_sampling_is_set(
    provider: Provider, params: dict[str, Any], tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, lambda request: strict(served, request)) as served:
        notes = notes_of(await result_of(served, **params, max_tokens=500))
        await result_of(served)

    assert notes == {"changed": {"thinking": "off"}}
    first, *_, last = [request.body for request in served.llm.requests]
    assert first.items() >= {**params, "max_tokens": 500}.items()
    assert "thinking" not in first
    assert last["thinking"]["type"] in {"enabled", "adaptive"}  # only that call


@pytest.mark.parametrize("choice", ["required", ONE_TOOL], ids=str)
@pytest.mark.parametrize("provider", [BUDGETED, ADAPTIVE, NEWER], ids=lambda one: one.model)
async def test_claude_does_not_think_in_a_call_that_forces_a_tool(
    provider: Provider, choice: Any, tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, lambda request: strict(served, request)) as served:
        notes = notes_of(await result_of(served, tool_choice=choice))

    assert notes == {"changed": {"thinking": "off"}}
    first, second = [request.body for request in served.llm.requests]
    assert first["tool_choice"]["type"] in {"any", "tool"}
    assert first.get("thinking") == second.get("thinking")


@pytest.mark.parametrize("choice", ["required", ONE_TOOL], ids=str)
async def test_claude_models_that_always_think_ignore_a_forced_tool(choice: Any, tmp_path: Path) -> None:
    async with serving(tmp_path, ALWAYS, lambda request: strict(served, request)) as served:
        notes = notes_of(await result_of(served, tool_choice=choice, temperature=0.25))

    assert notes == {"ignored": ["temperature", "tool_choice"]}


@pytest.mark.parametrize(
    "params", [{"temperature": 1, "top_p": 0.95}, {"tool_choice": "auto"}, {"tool_choice": "none"}], ids=str
)
async def test_claude_keeps_thinking_where_it_may(params: dict[str, Any], tmp_path: Path) -> None:
    async with serving(tmp_path, ADAPTIVE, lambda request: strict(served, request)) as served:
        assert notes_of(await result_of(served, **params)) == {}

    assert all(request.body["thinking"] == {"type": "adaptive"} for request in served.llm.requests)


async def test_claude_does_not_think_where_its_agent_sets_the_sampling(tmp_path: Path) -> None:
    async with serving(
        tmp_path, ADAPTIVE, lambda request: strict(served, request), params="temperature=0.25"
    ) as served:
        assert notes_of(await result_of(served, max_tokens=500)) == {}

    assert [request.body["temperature"] for request in served.llm.requests] == [0.25, 0.25]


def strict(served: Served, request: LlmRequest) -> Turn:
    """A model that thinks, and calls a tool if it may."""
    if (why := refused_while_thinking(request.body)) is not None:
        return served.llm.refuse(400, why)
    if request.tool_results or request.body.get("tool_choice") == {"type": "none"}:
        return say("Done.")
    return call_tools([("tools__echo", {"text": "Ann"})])


OLDER_GEMINI = [GEMINI, replace(GEMINI, model="google.gemini-2.0-flash")]
BY_TOOL = replace(ANTHROPIC, config={**ANTHROPIC.config, "structured_output_mode": "tool_use"})


@pytest.mark.parametrize("provider", OLDER_GEMINI, ids=lambda one: one.model)
async def test_gemini_has_its_tools_until_it_answers_and_the_schema_afterwards(
    provider: Provider, tmp_path: Path
) -> None:
    async with serving(tmp_path, provider, calls_twice_then_answers) as served:
        result = await result_of(served, response_format=AS_SCHEMA)

    assert [block["text"] for block in result["content"]] == ['{"name": "Ann"}']
    assert notes_of(result) == {}
    requests = served.llm.requests
    assert ["tools__echo" in request.tools for request in requests] == [True, True, True, False]
    configs = [request.body.get("generationConfig", {}) for request in requests]
    assert ["responseSchema" in config for config in configs] == [False, False, False, True]


async def test_gemini_gets_its_tools_and_the_schema_at_once_where_it_takes_both(tmp_path: Path) -> None:
    provider = replace(GEMINI, model="google.gemini-3.5-flash")
    async with serving(tmp_path, provider, calls_twice_then_answers) as served:
        await result_of(served, response_format=AS_SCHEMA)

    assert all("tools__echo" in one.tools for one in served.llm.requests)
    assert all("responseSchema" in one.body["generationConfig"] for one in served.llm.requests)


async def test_claude_with_the_schema_as_a_tool_has_its_tools_until_it_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, BY_TOOL, calls_twice_then_answers) as served:
        result = await result_of(served, response_format=AS_SCHEMA)

    assert [block["text"] for block in result["content"]] == ['{"name": "Ann"}']
    assert ["tools__echo" in request.tools for request in served.llm.requests] == [True, True, True, False]


async def test_a_failure_of_the_model_is_no_reason_to_ask_for_the_schema(tmp_path: Path) -> None:
    async with serving(tmp_path, GEMINI, lambda _: served.llm.refuse(400, "no")) as served:
        result = await result_of(served, response_format=AS_SCHEMA)

    assert (result["isError"], len(served.llm.requests)) == (True, 1)


def calls_twice_then_answers(request: LlmRequest) -> Turn:
    """A model that calls tools twice if it has any, then writes text, and then what fits the schema."""
    if request.number <= 2 and request.tools:
        return call_tools([("tools__echo", {"text": f"call {request.number}"})])
    if "return_structured_output" in request.tools:
        return call_tools([("return_structured_output", {"name": "Ann"})])
    return say('{"name": "Ann"}' if request.number > 3 or not request.tools else "It is Ann.")
