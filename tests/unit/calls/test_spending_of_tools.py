"""Limits on the calls of single tools in one call."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.spending import NO_TOOL_LIMITS, ToolLimits


@given(st.lists(st.sampled_from(["search/a", "search/b", "files/read", "local/x"]), max_size=40))
def test_no_tool_runs_more_often_than_any_of_its_limits(called: Sequence[str]) -> None:
    limits = ToolLimits({"search/*": 4, "search/b": 2, "*/read": 0})
    ran = [tool for tool in called if limits.acquire([tool]) is None]
    expected = {"search/": 4, "search/b": 2, "files/read": 0}
    for beginning, most in expected.items():
        assert sum(tool.startswith(beginning) for tool in ran) <= most
    assert ran.count("local/x") == called.count("local/x")
    if "search/b" not in called:
        assert ran.count("search/a") == min(4, called.count("search/a"))


def test_a_refused_call_counts_for_none_of_its_limits() -> None:
    limits = ToolLimits({"search/b": 1, "search/*": 2})
    assert limits.acquire(["search/b"]) is None
    assert limits.acquire(["search/b"]) == "the limit of one call for tools of 'search/b' is 1, and it is reached"
    assert limits.acquire(["search/a"]) is None
    assert limits.acquire(["search/a"]) == "the limit of one call for tools of 'search/*' is 2, and it is reached"


def test_a_tool_with_two_names_counts_once() -> None:
    limits = ToolLimits({"*/run": 1})
    assert limits.acquire(["local/run", "shell/run"]) is None
    assert limits.acquire(["shell/run"]) is not None


def test_a_call_that_did_not_run_is_given_back() -> None:
    limits = ToolLimits({"files/*": 1})
    assert limits.acquire(["files/wipe"]) is None
    limits.release(["files/wipe"])
    assert limits.acquire(["files/wipe"]) is None
    assert limits.acquire(["files/wipe"]) is not None


def test_without_limits_there_is_nothing_to_ask() -> None:
    assert not NO_TOOL_LIMITS
    assert NO_TOOL_LIMITS.acquire(["any/tool"]) is None
