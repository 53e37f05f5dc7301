"""Expands `${ENV}` placeholders in YAML values, by one rule for all files; callers decide about unset variables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

PLACEHOLDER = re.compile(r"\$\{(?P<name>[^}:]+)(?::(?P<default>[^}]*))?\}")
# PyYAML's own for text that only looks like a date (2026-99-99), or is tagged as what it is not (`!!int ""`).
SCALAR_ERRORS = (ValueError, LookupError, AttributeError)


class ExpandedText(str):
    """A text that came from one placeholder alone, which may be parsed as a number or a flag."""

    __slots__ = ()


@dataclass(frozen=True)
class Expansion:
    """A text after expansion, and the variables in it that had neither a value nor a default."""

    text: str
    unset: tuple[str, ...] = ()


def expand(text: str, environ: Mapping[str, str]) -> Expansion:
    """Replace every placeholder of `text`; those of unset variables stay as written.

    `${NAME:-default}` takes its default when the variable is unset or empty, as in a shell; fast-agent's own
    `${NAME:default}` only when it is unset, as in fast-agent.
    """
    unset: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        value = _value(match["name"], match["default"], environ)
        if value is None:
            unset.append(match["name"])
        return match[0] if value is None else value

    expanded = PLACEHOLDER.sub(replacement, text)
    if not unset and PLACEHOLDER.fullmatch(text):
        expanded = ExpandedText(expanded)
    return Expansion(expanded, tuple(unset))


def parse_scalar(text: ExpandedText) -> object:
    """Parse the expanded text as YAML would have parsed it in the file; the text itself if that fails."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, *SCALAR_ERRORS):
        return str(text)


def _value(name: str, default: str | None, environ: Mapping[str, str]) -> str | None:
    value = environ.get(name)
    if default is None:
        return value
    if default.startswith("-"):
        return value or default[1:]
    return default if value is None else value
