"""What the operator has released, sub-agents and circles: each rule with its sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pallas_gateway.features.definitions import rules
from pallas_gateway.features.definitions.rules import Surroundings
from tests.support.definers import RELEASED, configured

if TYPE_CHECKING:
    from collections.abc import Collection

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
        found = problems(
            {"servers": ["notes"]}, around({**RELEASED, "servers": {"notes": release}}, forwarding=["notes"])
        )
        assert found == (
            {"servers.0": "server 'notes' receives the callers' tokens, and is not released for that (forwards: true)"}
            if is_refused
            else {}
        )


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
