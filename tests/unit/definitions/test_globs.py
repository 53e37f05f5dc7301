"""Containment of patterns in globs, compared with what both match."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest

from pallas_gateway.definitions.globs import is_contained, is_released


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


def test_a_name_is_released_by_any_glob() -> None:
    assert is_released("openai.gpt-5", ["anthropic.*", "openai.*"])
    assert not is_released("openai.gpt-5", ["openai.gpt-5-mini", "Openai.*"])
