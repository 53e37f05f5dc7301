"""What rounds come to: medians, spreads, ratios and verdicts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of some rounds, the least and the most."""

    median: float
    low: float
    high: float


def figure(values: Sequence[float]) -> Figure:
    """The figure of one or more values."""
    return Figure(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Ours by theirs, round by round: what disturbs a machine for a while disturbs both of a round."""
    return figure([mine / other for mine, other in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Ours less theirs, round by round."""
    return figure([mine - other for mine, other in zip(ours, theirs, strict=True)])


class Verdict(StrEnum):
    """How a measurement stands to what was set."""

    REACHED = "reached"
    ENOUGH = "must met"
    MISSED = "missed"
    UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must be and what one reaches for. `at_least`: more is better."""

    must: float
    reach: float
    at_least: bool

    def verdict(self, value: float | None) -> Verdict:
        """How `value` stands; None was not measured."""
        if value is None:
            return Verdict.UNMEASURED
        sign = 1 if self.at_least else -1
        if sign * value >= sign * self.reach:
            return Verdict.REACHED
        return Verdict.ENOUGH if sign * value >= sign * self.must else Verdict.MISSED
