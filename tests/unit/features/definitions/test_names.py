"""Names of agents of the database: hostile ones, and those that are the same for the registry."""

from __future__ import annotations

import pytest

from pallas_gateway.features.definitions.names import key_of, taker_of, why_no_name
from tests.support.definers import configured

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
