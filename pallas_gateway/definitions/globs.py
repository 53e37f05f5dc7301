"""Patterns of definitions against those that the operator has released. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WILDCARDS = "*?"


def is_released(name: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches a name, which is no pattern."""
    return any(fnmatchcase(name, glob) for glob in globs)


def is_contained(pattern: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches all that the pattern, of texts, `*` and `?`, can match."""
    return any(_contains(glob, pattern) for glob in globs)


def _contains(glob: str, pattern: str) -> bool:
    """Compare character by character: a `*` of the pattern is matched by one of the glob alone, a `?` also by a `?`.

    `places` are those in the glob at which the characters so far can end.
    """
    if "[" in glob:  # a set of characters, which contains no wildcard
        return glob == pattern or (not any(one in pattern for one in WILDCARDS) and fnmatchcase(pattern, glob))
    places = _with_stars(glob, {0})
    for one in pattern:
        places = _with_stars(glob, {next_ for place in places for next_ in _after(glob, place, one)})
    return len(glob) in places


def _after(glob: str, place: int, one: str) -> Iterable[int]:
    if place == len(glob):
        return
    if glob[place] == "*":
        yield place
    elif glob[place] == one or (glob[place] == "?" and one != "*"):
        yield place + 1


def _with_stars(glob: str, places: set[int]) -> set[int]:
    """Add the places after each `*`, which may match nothing."""
    found = set(places)
    for place in sorted(places):
        while place < len(glob) and glob[place] == "*":
            place += 1  # noqa: PLW2901  one run of stars after the other
            found.add(place)
    return found
