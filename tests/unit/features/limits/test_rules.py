"""The rules that apply to a call, and the key of its counter in each."""

from typing import Any

import pytest

from pallas_gateway.config.model.limits import LimitsSettings
from pallas_gateway.features.limits.rules import MOST_MATCHES, Rules


def rules(*of: dict[str, Any]) -> Rules:
    return Rules(LimitsSettings.model_validate({"rules": [{"calls_at_once": 1, **one} for one in of]}))


@pytest.mark.parametrize(
    ("caller", "matches"),
    [
        ("key:ci-1", True),
        ("key:ci-", True),
        ("token:key:ci-1", False),
        ("token:ci-1", False),
        ("KEY:ci-1", False),
        ("anonymous", False),
        ("key:ci-\n\x1b[31m\u202e", True),
        ("\nkey:ci-1", False),
        ("key:ci-" + "x" * 1_000_000, True),
    ],
)
def test_a_glob_matches_whole_names_with_their_kind(caller: str, *, matches: bool) -> None:
    assert bool(rules({"caller": "key:ci-*"}).matching(caller, "echo")) is matches


def test_every_rule_that_matches_applies_in_its_order() -> None:
    of = rules({}, {"caller": "key:a"}, {"agent": "search*"}, {"name": "mine", "caller": "key:*", "agent": "echo"})
    assert [rule.name for rule in of.matching("key:a", "echo")] == ["rule-1", "rule-2", "mine"]
    assert [rule.name for rule in of.matching("anonymous", "search-2")] == ["rule-1", "rule-3"]


@pytest.mark.parametrize(
    ("per", "key"), [("caller", ("ann", "")), ("agent", ("", "echo")), ("caller_and_agent", ("ann", "echo"))]
)
def test_a_counter_belongs_to_a_caller_an_agent_or_both(per: str, key: tuple[str, str]) -> None:
    (rule,) = rules({"per": per}).all
    assert rule.wanted("ann", "echo")[1:3] == key


def test_rules_that_select_the_same_calls_have_counters_of_their_own() -> None:
    first, second, third = rules({}, {"agent": "echo"}, {}).all
    assert len({first.scope, second.scope, third.scope}) == 3
    (renamed,) = rules({"name": "another", "calls_at_once": 9}).all
    assert renamed.scope == first.scope


def test_globs_are_compared_once_for_a_caller_and_an_agent_and_few_results_are_kept() -> None:
    of = rules({})
    for number in range(MOST_MATCHES + 5):
        of.matching(f"key:{number}", "echo")
        of.matching(f"key:{number}", "echo")
    kept = of.matching.cache_info()
    assert (kept.hits, kept.currsize) == (MOST_MATCHES + 5, MOST_MATCHES)
