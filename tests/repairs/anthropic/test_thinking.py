"""Claude refuses parameters while it thinks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.parameters import notes_of, result_of
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.providers.anthropic import strict

ONE_TOOL = {"type": "function", "function": {"name": "tools__echo"}}
BUDGETED, ADAPTIVE, NEWER, ALWAYS = (
    replace(ANTHROPIC, name="anthropic", model=f"anthropic.claude-{name}")
    for name in ("haiku-4-5", "sonnet-4-6", "opus-5", "opus-5-5")
)


@pytest.mark.parametrize("provider", [BUDGETED, ADAPTIVE], ids=lambda one: one.model)
async def test_claude_does_not_think_where_sampling_is_set(provider: Provider, tmp_path: Path) -> None:
    sampling: list[dict[str, Any]] = [{"temperature": 0.25}, {"top_p": 0.5}, {"top_k": 40}]
    async with serving(tmp_path, provider, lambda request: strict(served, request)) as served:
        for params in sampling:
            served.llm.requests.clear()
            assert notes_of(await result_of(served, **params, max_tokens=500)) == {"changed": {"thinking": "off"}}
            await result_of(served)
            first, *_, last = [request.body for request in served.llm.requests]
            assert first.items() >= {**params, "max_tokens": 500}.items()
            assert "thinking" not in first
            assert last["thinking"]["type"] in {"enabled", "adaptive"}  # only that call


@pytest.mark.parametrize("provider", [BUDGETED, ADAPTIVE, NEWER], ids=lambda one: one.model)
async def test_claude_does_not_think_in_a_call_that_forces_a_tool(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, lambda request: strict(served, request)) as served:
        for choice in ("required", ONE_TOOL):
            served.llm.requests.clear()
            assert notes_of(await result_of(served, tool_choice=choice)) == {"changed": {"thinking": "off"}}
            first, second = [request.body for request in served.llm.requests]
            assert first["tool_choice"]["type"] in {"any", "tool"}
            assert first.get("thinking") == second.get("thinking")


async def test_claude_models_that_always_think_ignore_a_forced_tool(tmp_path: Path) -> None:
    async with serving(tmp_path, ALWAYS, lambda request: strict(served, request)) as served:
        for choice in ("required", ONE_TOOL):
            notes = notes_of(await result_of(served, tool_choice=choice, temperature=0.25))
            assert notes == {"ignored": ["temperature", "tool_choice"]}


async def test_claude_keeps_thinking_where_it_may(tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = [{"temperature": 1}, {"top_p": 0.95}, {"tool_choice": "auto"}, {"tool_choice": "none"}]
    async with serving(tmp_path, ADAPTIVE, lambda request: strict(served, request)) as served:
        for params in kept:
            assert notes_of(await result_of(served, **params)) == {}, params

    assert all(request.body["thinking"] == {"type": "adaptive"} for request in served.llm.requests)


async def test_claude_does_not_think_where_its_agent_sets_the_sampling(tmp_path: Path) -> None:
    async with serving(
        tmp_path, ADAPTIVE, lambda request: strict(served, request), params="temperature=0.25"
    ) as served:
        assert notes_of(await result_of(served, max_tokens=500)) == {}

    assert [request.body["temperature"] for request in served.llm.requests] == [0.25, 0.25]
