"""Containment of patterns in globs, compared with what both match."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from fast_agent.llm.model_factory import SUPPORTED_MODEL_QUERY_KEYS

from pallas_gateway.features.definitions.globs import is_contained, is_model_released, is_released


@pytest.mark.parametrize(
    ("pattern", "globs", "contained"),
    [
        ("get_note", ["get_*"], True),
        ("get_*", ["get_*"], True),
        ("get_a*", ["get_*"], True),
        ("get_?", ["get_*"], True),
        ("get_?", ["get_?"], True),
        ("get_*", ["get_?"], False),
        ("get_*", ["get_?*"], False),
        ("get_?*", ["get_*"], True),
        ("*", ["*"], True),
        ("*", ["?*", "*?"], False),
        ("*", ["get_*", "set_*"], False),
        ("*_note", ["get_*"], False),
        ("g*t", ["g*", "x"], True),
        ("**", ["*"], True),
        ("a*b*c", ["a*c"], True),
        ("a*c", ["a*b*c"], False),
        ("search", [], False),
        ("", ["*"], True),
        ("", ["?"], False),
        ("Search", ["search"], False),
        ("get_a", ["get_[ab]"], True),
        ("get_c", ["get_[ab]"], False),
        ("get_?", ["get_[ab]"], False),
        ("get_*", ["get_[ab]"], False),
    ],
)
def test_a_pattern_is_contained_in_a_glob_that_matches_all_that_it_matches(
    pattern: str, globs: list[str], contained: bool
) -> None:
    assert is_contained(pattern, globs) is contained


def test_a_contained_pattern_matches_nothing_that_the_glob_does_not() -> None:
    texts = ["".join(some) for size in range(5) for some in product("ab", repeat=size)]
    patterns = ["".join(some) for size in range(4) for some in product("ab*?", repeat=size)]
    for pattern in patterns:
        matched = {text for text in texts if fnmatchcase(text, pattern)}
        for glob in patterns:
            if is_contained(pattern, [glob]):
                assert matched <= {text for text in texts if fnmatchcase(text, glob)}, (pattern, glob)


def test_a_hostile_pattern_is_compared_in_time_that_grows_with_both_lengths() -> None:
    assert not is_contained("a*" * 150 + "b", ["a*" * 150 + "c"])
    assert not is_contained("*" * 300 + "b", ["*" * 300 + "c"])
    assert not is_contained("a" * 300, ["*a" * 150 + "b"])


@pytest.mark.parametrize(
    ("model", "globs", "released"),
    [
        ("openai.gpt-5?reasoning=high", ["openai.*"], True),
        ("openai.gpt-5?reasoning=high&max_tokens=100", ["openai.gpt-?"], True),
        ("openai.gpt-5?reasoning=high", ["openai.gpt-5?reasoning=high"], True),
        ("openai.gpt-5?reasoning=low", ["openai.gpt-5?reasoning=high"], False),
        ("openai.gpt-5", ["openai.gpt-5?reasoning=high"], False),
        ("anthropic.claude?web_fetch=on", ["*"], False),
        ("anthropic.claude?reasoning=high&web_search=on", ["anthropic.*", "*"], False),
        ("anthropic.claude?reasoning=high;web_search=on", ["*"], False),
        ("anthropic.claude?reasoning=high&web%5Fsearch=on", ["*"], False),
        ("anthropic.claude?", ["*"], True),
        ("anthropic.claude??web_search=on", ["*"], False),
        ("anthropic.claude ?x_search=on", ["*"], False),
        ("openai.gpt-5?service_tier=priority", ["openai.gpt-?"], False),
        ("anthropic.claude?web_search=on", ["anthropic.*?web_search=on"], True),
        ("openai.gpt-5?web_search=on", ["anthropic.*?web_search=on"], False),
        ("$system.fast", ["$system.*"], True),
    ],
)
def test_settings_in_a_models_name_are_harmless_or_released_literally(
    model: str, globs: list[str], released: bool
) -> None:
    assert is_model_released(model, globs) is released


def test_every_setting_of_fast_agents_models_is_known_here() -> None:
    # A new one is refused until someone has judged it.
    judged = {
        "structured", "context", "long_context", "transport", "service_tier", "streaming_timeout", "lite", "compaction",
        "compact_at", "structured_tools", "structuredToolPolicy", "structured_tool_policy", "web_search", "x_search",
        "web_fetch", "task_budget", "taskBudget", "poll_period", "presence_penalty", "presencePenalty",
        "repetition_penalty", "repetitionPenalty",
    }  # fmt: skip
    harmless = {key for key in SUPPORTED_MODEL_QUERY_KEYS if is_model_released(f"a?{key}=1", ["a"])}
    assert harmless == SUPPORTED_MODEL_QUERY_KEYS - judged


def test_a_name_is_released_by_any_glob() -> None:
    assert is_released("openai.gpt-5", ["anthropic.*", "openai.*"])
    assert not is_released("openai.gpt-5", ["openai.gpt-5-mini", "Openai.*"])
