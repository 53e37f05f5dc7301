"""Markdown tables, and how figures stand in their cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.figures import Verdict, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MARKS = {Verdict.REACHED: "reached", Verdict.ENOUGH: "met", Verdict.MISSED: "**missed**"}


def rows(header: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median(samples: Iterable[Mapping[str, float]], key: str) -> str:
    """The median of the samples' `key`."""
    return number(figure([sample[key] for sample in samples]).median)


def spread(samples: Iterable[Mapping[str, float]], key: str) -> str:
    """The median of the samples' `key`, in brackets the least and the most."""
    values = figure([sample[key] for sample in samples])
    return f"{number(values.median)} ({number(values.low)}-{number(values.high)})"


def measured(check: Mapping[str, Any]) -> str:
    """The figure of a check, and its spread."""
    value = check["measured"]
    if value is None:
        return "-"
    unit = "x" if check["unit"] == "x" else f" {check['unit']}"
    extremes = "" if value["low"] == value["high"] else f" ({number(value['low'])}-{number(value['high'])})"
    return f"{number(value['median'])}{unit}{extremes}"


def bounds(check: Mapping[str, Any]) -> tuple[str, str]:
    """What a check must be, and what it should reach."""
    sign = "≥" if check["at_least"] else "≤"
    return f"{sign} {check['must']:g}", f"{sign} {check['reach']:g}"


def verdict(check: Mapping[str, Any]) -> str:
    """How a check stands to its bounds."""
    stands = Verdict(check["verdict"])
    return _MARKS.get(stands, stands.value)


def number(value: float) -> str:
    """A figure with as many digits as mean something."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
