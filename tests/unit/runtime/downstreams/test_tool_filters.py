"""Filters of tools that match nothing: judged once every server that they are for has been listed, logged once."""

from collections.abc import Sequence

import pytest
from fast_agent.agents.agent_types import AgentConfig

from pallas_gateway.runtime.downstreams.tool_filters import FilterReport


def filters(servers: Sequence[str], varying: Sequence[str] = (), **patterns: list[str]) -> FilterReport:
    return FilterReport("lead", [AgentConfig("lead", servers=list(servers), tools=patterns)], varying)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("weather", None),
        ("wea*", None),
        ("*", None),
        ("wether", "'n__wether' matches no tool (did you mean 'n__weather'?)"),
        ("xyz_*", "'n__xyz_*' matches no tool"),
    ],
)
def test_a_filter_is_compared_with_the_tools_of_its_server(pattern: str, problem: str | None) -> None:
    one = filters(["n", "other"], n=[pattern])
    one.on_listed("other", ["anything"])
    assert not one.problems
    one.on_listed("n", ["weather", "news"])
    assert one.problems == (() if problem is None else (problem,))
    one.on_listed("n", ["weather", "wether", "xyz_1"])
    assert not one.problems


def test_every_tool_is_allowed_by_a_star_of_a_server_without_tools() -> None:
    one = filters(["n"], n=["*"])
    one.on_listed("n", [])
    assert not one.problems


def test_servers_that_share_the_beginning_of_their_names_are_judged_together() -> None:
    one = filters(["n__a", "n__b"], n=["b__*", "c__*"])
    one.on_listed("n__a", ["x"])
    assert not one.problems
    one.on_listed("n__b", ["x"])
    assert one.problems == ("'n__c__*' matches no tool (did you mean 'n__b__x'?)",)


def test_a_policy_whose_tool_the_server_no_longer_offers_matches_none() -> None:
    config = AgentConfig("lead", servers=["notes"])
    one = FilterReport("lead", [config], policies=[("approve.0", "notes/delete_*")])
    one.on_listed("notes", ["delete_note"])
    one.on_listed("notes", ["search"], ["form"])
    before = one.problems
    one.on_listed("notes", ["remove_note"])
    assert (before, one.problems) == ((), ("approve: 'notes/delete_*' matches no tool",))


def test_filters_of_servers_that_differ_by_caller_are_not_judged() -> None:
    one = filters(["n"], ["n"], n=["wether"])
    one.on_listed("n", ["weather"])
    assert not one.problems


def test_a_filter_is_logged_when_it_is_found_to_match_nothing_and_again_only_after_a_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = filters(["n"], n=["wether"])
    for tools in (["weather"], ["weather", "news"], ["wether"], ["weather"]):
        one.on_listed("n", tools)
    assert [record.getMessage() for record in caplog.records] == ["tool filter matches no tool"] * 2
    assert vars(caplog.records[0])["problem"] == "'n__wether' matches no tool (did you mean 'n__weather'?)"


def test_a_filter_for_tools_that_only_some_callers_are_offered_is_judged_when_these_are_listed() -> None:
    one, looked = filters(["n"], n=["confirm", "news"]), list[str]()

    def look_further(server: str) -> bool:
        looked.append(server)
        return True

    one.look_further = look_further
    one.on_listed("n", ["weather"])
    assert (one.problems, set(looked)) == ((), {"n"})
    one.on_listed("n", ["weather", "confirm"], ["form"])
    assert one.problems == ("'n__news' matches no tool",)
    looked.clear()
    one.on_listed("n", ["weather"])
    assert (one.problems, looked) == (("'n__news' matches no tool",), [])
