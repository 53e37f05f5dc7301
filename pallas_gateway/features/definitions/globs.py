"""Patterns of definitions against those that the operator has released. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WILDCARDS = "*?"
_KEY = r"(?:reasoning|verbosity|instant|temperature|temp|top_p|topP|top_k|topK|min_p|minP|max_tokens|maxTokens)"
_HARMLESS = re.compile(rf"{_KEY}=[\w.-]+(?:&{_KEY}=[\w.-]+)*", re.ASCII)
"""Settings in a model's name that only change how it answers."""


def is_released(name: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches a name, which is no pattern."""
    return any(fnmatchcase(name, glob) for glob in globs)


def is_model_released(model: str, globs: Iterable[str]) -> bool:
    """Return True if one of the globs matches a model; what follows `?` in it must be harmless, or released literally.

    fast-agent reads settings there, some of which are tools of the provider that read the web.
    """
    base, mark, settings = model.partition("?")
    if not mark or _HARMLESS.fullmatch(settings):
        return any(fnmatchcase(base, glob) or glob == model for glob in globs)
    literal = (glob.partition("?") for glob in globs)
    return any(released == settings and fnmatchcase(base, glob) for glob, _, released in literal)


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
