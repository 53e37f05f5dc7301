"""What the operator has released, sub-agents and circles: each rule with its sentence."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest
from fast_agent.llm.model_factory import SUPPORTED_MODEL_QUERY_KEYS

from pallas_gateway.features.definitions import rules
from pallas_gateway.features.definitions.rules import (
    Surroundings,
    is_contained,
    is_model_released,
    is_released,
    key_of,
    taker_of,
    why_no_name,
)
from tests.support.definers import RELEASED, configured

NONE = "none is released (gateway.agents_may_use)"
BASE: dict[str, Any] = {"instruction": "You help.", "model": "openai.gpt-5"}


def around(
    released: dict[str, Any] | None = None, agents: Collection[str] = ("desk", "other"), **values: Any
) -> Surroundings:
    return Surroundings.of(configured(released, **values), agents)


def problems(definition: dict[str, Any], surroundings: Surroundings | None = None) -> dict[str, str]:
    found = rules.problems("me", {**BASE, **definition}, surroundings or around())
    return {one.path: one.message for one in found}


def test_a_definition_within_the_floors_has_no_problems() -> None:
    assert problems({"servers": ["notes", "files"], "tools": ["notes__get_*", "files__*"], "agents": ["desk"]}) == {}


def test_nothing_is_released_by_default() -> None:
    found = problems({"servers": ["notes"], "tools": ["notes__search"], "agents": ["desk"]}, around({}))
    assert found == {
        "model": f"model 'openai.gpt-5' is not released for models of these agents; {NONE}",
        "servers.0": f"server 'notes' is not released for servers of these agents; {NONE}",
        "agents.0": f"agent 'desk' is not released for sub-agents of these agents; {NONE}",
    }


@pytest.mark.parametrize(
    ("model", "default", "problem"),
    [
        ("openai.gpt-5?reasoning=high", None, None),
        (
            "anthropic.claude",
            None,
            "model 'anthropic.claude' is not released for models of these agents; released: openai.*",
        ),
        ("OpenAI.gpt-5", None, "model 'OpenAI.gpt-5' is not released for models of these agents; released: openai.*"),
        (None, "openai.gpt-5", None),
        (None, "anthropic.claude", "is required, because the default model is not released; released: openai.*"),
        (None, None, "is required, because the gateway has no default model"),
    ],
)
def test_the_model_or_the_default_one_is_released(model: str | None, default: str | None, problem: str | None) -> None:
    found = rules.problems("me", {} if model is None else {"model": model}, around(default_model=default))
    assert [(one.path, one.message) for one in found] == ([] if problem is None else [("model", problem)])


def test_a_server_is_released_by_its_name_and_exists() -> None:
    released = {**RELEASED, "servers": {"notes": ["*"], "gone": ["*"]}}
    assert problems({"servers": ["notes", "secret", "gone", "notes"]}, around(released)) == {
        "servers.1": "server 'secret' is not released for servers of these agents; released: notes, gone",
        "servers.2": "no server 'gone' under mcp.servers of fastagent.config.yaml",
        "servers.3": "'notes' stands twice",
    }


def test_a_server_that_receives_callers_tokens_is_released_for_that() -> None:
    for release, is_refused in ((["*"], True), ({"tools": ["*"], "forwards": True}, False)):
        floors = around({**RELEASED, "servers": {"notes": release}}, forwarding=["notes"])
        why = "server 'notes' receives the callers' tokens, and is not released for that (forwards: true)"
        assert problems({"servers": ["notes"]}, floors) == ({"servers.0": why} if is_refused else {})


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("notes__get_note", None),
        ("notes__get_*", None),
        ("notes__search", None),
        ("desk__send_message", None),
        ("desk__*", None),
        ("notes__*", "'notes__*' is not released; of server 'notes' released: get_*, search"),
        ("notes__sear*", "'notes__sear*' is not released; of server 'notes' released: get_*, search"),
        ("notes__get?x", "'notes__get?x' is not released; of server 'notes' released: get_*, search"),
        ("notes__[gs]et_a", "may have * and ? as patterns"),
        ("notes__", "'notes__' must be written as the agent sees it, server__tool"),
        ("search", "'search' must be written as the agent sees it, server__tool"),
        ("notes/search", "'notes/search' must be written as the agent sees it, server__tool"),
        ("files__x", "'files__x' is of no server or sub-agent of this agent"),
        ("note__x", "'note__x' is of no server or sub-agent of this agent (did you mean 'notes'?)"),
        ("*__search", "'*__search' is of no server or sub-agent of this agent"),
        ("x__send_message", "'x__send_message' is of no server or sub-agent of this agent"),
    ],
)
def test_a_tool_is_released_and_of_the_agents_servers(tool: str, problem: str | None) -> None:
    found = problems({"servers": ["notes"], "agents": ["desk"], "tools": [tool]})
    assert found == ({} if problem is None else {"tools.0": problem})


def test_a_sub_agent_exists_is_released_and_can_be_a_tool() -> None:
    released = {**RELEASED, "agents": ["d*", "a.b", "x__y", "notes"]}
    agents = ["desk", "other", "a.b", "x__y", "notes"]
    found = problems({"agents": ["desk", "other", "absent", "a.b", "x__y", "notes", "desk"]}, around(released, agents))
    assert found == {
        "agents.1": "agent 'other' is not released for sub-agents of these agents; released: d*, a.b, x__y, notes",
        "agents.2": "no agent 'absent'",
        "agents.3": "'a.b' would be part of a tool's name, in which models take no '.' and no '__'",
        "agents.4": "'x__y' would be part of a tool's name, in which models take no '.' and no '__'",
        "agents.5": "'notes' is the name of a server too, which would be called instead",
        "agents.6": "'desk' stands twice",
    }


def test_bounds_are_not_exceeded() -> None:
    most = {"max_iterations": 10, "call_timeout_seconds": 60, "max_tokens_per_call": 1000}
    bounded = around({**RELEASED, "most": most})
    assert problems(most, bounded) == {}
    more = {key: value + 1 for key, value in most.items()}
    assert problems(more, bounded) == {key: f"must be at most {value}" for key, value in most.items()}


def test_bounds_have_defaults_that_can_be_removed() -> None:
    much = {"max_iterations": 101, "call_timeout_seconds": 601, "max_tokens_per_call": 10**9}
    assert problems(much) == {"max_iterations": "must be at most 100", "call_timeout_seconds": "must be at most 600"}
    unbounded = {**RELEASED, "most": {"max_iterations": None, "call_timeout_seconds": None}}
    assert problems(much, around(unbounded)) == {}


@pytest.mark.parametrize(
    ("others", "named", "message"),
    [
        ({}, ["me"], "goes in a circle: me -> me"),
        ({"a": ["me"]}, ["a"], "goes in a circle: me -> a -> me"),
        ({"a": ["b"], "b": ["hidden"], "hidden": ["me"]}, ["a"], "goes in a circle: me -> a -> b -> … -> me"),
        ({"a": ["b"], "b": ["a"]}, ["a"], None),
        ({"a": ["b", "desk"], "b": []}, ["a", "b", "desk"], None),
    ],
)
def test_a_circle_of_sub_agents_is_told_without_agents_that_the_editor_may_not_see(
    others: dict[str, list[str]], named: list[str], message: str | None
) -> None:
    found = rules.circle("me", {"agents": named}, others, {"a", "b", "desk"})
    assert [one.message for one in found] == ([] if message is None else [message])


def test_a_large_graph_of_sub_agents_is_searched_soon() -> None:
    names = [f"a{number}" for number in range(1000)]
    others = dict.fromkeys(names, names)
    assert rules.circle("me", {"agents": names}, others, names) == []


def test_what_the_floors_add_is_explicit() -> None:
    released = {
        **RELEASED,
        "approve": ["mail/*", "destructive"],
        "most": {"max_iterations": 10, "call_timeout_seconds": 900, "max_tokens_per_call": 5000},
    }
    floors = around(released).floors
    assert rules.effective({"servers": ["notes", "files"], "approve": ["mail/*", "notes/*"]}, floors) == {
        "servers": ["notes", "files"],
        "tools": ["notes__get_*", "notes__search", "files__*"],
        "approve": ["mail/*", "notes/*", "destructive"],
        "max_iterations": 10,
        "call_timeout_seconds": 600.0,
        "max_tokens_per_call": 5000,
    }
    own = {"tools": [], "max_iterations": 3, "approve": []}
    assert rules.effective(own, around().floors) == {"tools": [], "max_iterations": 3, "approve": []}
    assert rules.effective({}, around().floors)["tools"] == []


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


DEPLOYMENT = configured(tool_names=["send_message", "ask", "{agent}"]).deployment


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "a/b", "a\\b", "/etc", "-a", "_a", " a", "a ", "a\n", "a\0b", "\ud800", "a b", "a%2fb",
        "a?b", "\u0430gent", "\uff41gent", "agent\u200b", "a\u0301", "\u202egent", "a" * 65, "a__b",
        "send_message", "get_health", "ask", None, 5, True, ["a"], {"a": 1},
    ],
)  # fmt: skip
def test_a_name_that_is_no_plain_one_is_refused(name: object) -> None:
    assert why_no_name(name, DEPLOYMENT) is not None


@pytest.mark.parametrize("name", ["a", "9", "Agent_1", "my-agent", "a.b", "a" * 64, "versions", "mcp"])
def test_a_plain_name_is_not(name: str) -> None:
    assert why_no_name(name, DEPLOYMENT) is None


def test_a_name_that_makes_the_registrys_name_too_long_is_refused() -> None:
    long = configured().deployment.model_copy(update={"namespace": "n" * 180})
    assert why_no_name("a" * 19, long) is None
    assert "longer than 200" in (why_no_name("a" * 20, long) or "")


def test_names_that_differ_in_case_and_dashes_take_each_other() -> None:
    assert key_of("My_Agent") == key_of("my-agent") == "my-agent"
    assert taker_of("MY-agent", ["other", "my_Agent"]) == "my_Agent"
    assert taker_of("my.agent", ["other", "my_agent"]) is None
