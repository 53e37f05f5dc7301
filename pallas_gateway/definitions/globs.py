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
    """Match a pattern character by character: its `*` is matched by one of the glob alone, its `?` also by a `?`."""
    if "[" in glob:  # a set of characters, which contains no wildcard
        return glob == pattern or (not any(one in pattern for one in WILDCARDS) and fnmatchcase(pattern, glob))
    place = at = 0
    star, tried = -1, 0  # the last `*` of the glob, and where in the pattern what it matches ends
    while at < len(pattern):
        if place < len(glob) and glob[place] == "*":
            star, tried = place, at
            place += 1
        elif place < len(glob) and _is_matched(pattern[at], glob[place]):
            place, at = place + 1, at + 1
        elif star >= 0:
            tried += 1
            place, at = star + 1, tried
        else:
            return False
    return not glob[place:].strip("*")


def _is_matched(one: str, glob: str) -> bool:
    return one == glob or (glob == "?" and one != "*")
