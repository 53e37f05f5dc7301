"""The texts made from a pattern reveal what is quadratic, and nothing else."""

import re

import pytest

from tests.support.patterns import Hostile, growth, hostile_texts

QUADRATIC = (
    r"x-[a-z-]*token",
    r"\b(?:0x)?[0-9a-f-]*\d[0-9a-f-]*\b",
    r"\beyJ[\w-]{4,}\.[\w-]{4,}\.[\w-]*",
    r"^[ \t]*(?:a=b)?[ \t]*(?:,|;)$",
    r"(?:password\d*\d*)$",
)
LINEAR = (
    r"(?<![a-z-])(?:(?!x-)[a-z-])*+x-[a-z-]*+(?<=token)",
    r"(?:secret|password)\s*[:=]\s*\S+",
)


def worst(pattern: str, most: int) -> float:
    return max(growth(re.compile(pattern).search, text, most) for text in hostile_texts(pattern))


@pytest.mark.parametrize("pattern", QUADRATIC)
def test_a_quadratic_pattern_is_found_out(pattern: str) -> None:
    assert worst(pattern, 64_000) >= 3


@pytest.mark.parametrize("pattern", LINEAR)
def test_a_linear_pattern_passes(pattern: str) -> None:
    assert worst(pattern, 256_000) < 3


def test_a_text_has_its_parts_and_about_its_length() -> None:
    assert Hostile("head ", "ab", "!").of(7) == "head ababab!"


def test_each_repetition_is_reached_by_what_stands_before_it() -> None:
    texts = hostile_texts("(?:one|two)-[0-9]+z")
    assert Hostile("one-", "0", "!") in texts
    assert Hostile("", "two-0-", "!") in texts
