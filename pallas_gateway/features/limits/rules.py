"""The rules of `gateway.limits`, compiled: which of them apply to a call, and the counters that it has. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from pallas_gateway.calls.permit import Excess, duration_text
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.shared.protocol import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pallas_gateway.config.model.limits import LimitsSettings, RuleSettings
    from pallas_gateway.shared.protocol import Measure, Over, Scope

MOST_MATCHES = 4096
"""Pairs of a caller and an agent whose rules are cached."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: its name in refusals, metrics and logs.
        scope: identifies its counters; a reload that changes the limits or the name of a rule keeps them.
    """

    name: str
    scope: Scope
    settings: RuleSettings

    def matches(self, caller: str, agent: str) -> bool:
        return fnmatchcase(caller, self.settings.caller) and fnmatchcase(agent, self.settings.agent)

    def limits(self, *, counts: bool, uses_tokens: bool) -> bool:
        """Return True if the rule limits anything of such a call; see `wanted`."""
        limits = self.settings
        of_calls = limits.calls_per_minute is not None or limits.calls_at_once is not None
        return (counts and of_calls) or (uses_tokens and limits.tokens_per_day is not None)

    def wanted(self, account: str, agent: str, *, counts: bool = True, uses_tokens: bool = True) -> Wanted:
        """Return the counter of a call by this rule, and what it limits.

        Args:
            account: of the caller.
            agent: of the call.
            counts: False for a nested call, which only uses tokens.
            uses_tokens: False for a search or a copy.
        """
        settings = self.settings
        return Wanted(
            self.scope,
            "" if settings.per == "agent" else account,
            self.counted_agent(agent),
            settings.calls_per_minute if counts else None,
            settings.calls_at_once if counts else None,
            settings.tokens_per_day if uses_tokens else None,
            settings.enforce,
        )

    def counted_agent(self, agent: str) -> str:
        """Return the agent of a call's counter; empty if the counter is for all agents."""
        return "" if self.settings.per == "caller" else agent


class Rules:
    """All rules, in the order of `agents.yaml`."""

    def __init__(self, settings: LimitsSettings) -> None:
        self.all = tuple(_compiled(settings))
        # A call asks for its rules once, and once more for each charge: globs cost more than all counters together.
        self.matching = lru_cache(MOST_MATCHES)(self._matching)

    def own(self, caller: str, agents: Iterable[str]) -> Iterator[tuple[Rule, str]]:
        """Yield the rules that count a caller's own calls of these agents, each with an agent of its counter."""
        seen = set()
        for agent in agents:
            for rule in self.matching(caller, agent):
                counted = rule.counted_agent(agent)
                if rule.settings.per != "agent" and (rule.name, counted) not in seen:
                    seen.add((rule.name, counted))
                    yield rule, agent

    def _matching(self, caller: str, agent: str) -> tuple[Rule, ...]:
        """Return the rules that apply to the calls of an agent by a caller, which is a `Caller.principal`."""
        return tuple(rule for rule in self.all if rule.matches(caller, agent))


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that leaves no room for another call, or for another LLM turn."""

    rule: Rule
    measure: Measure
    wait_seconds: float

    @classmethod
    def of(cls, rules: Sequence[Rule], over: Over) -> Exceeded:
        """Return the limit that a counter among those of these rules has exceeded."""
        return cls(rules[over.place], over.measure, over.wait_seconds)

    @property
    def limit(self) -> int:
        """The number that the rule allows."""
        settings = self.rule.settings
        limits = {"calls per minute": settings.calls_per_minute, "calls at once": settings.calls_at_once}
        return limits.get(self.measure, settings.tokens_per_day) or 0

    @property
    def retry_after_seconds(self) -> int:
        """The least wait before there may be room again, rounded up."""
        return max(1, ceil(self.wait_seconds))

    @property
    def sentence(self) -> str:
        """The reason for the caller; the numbers are those of the rule, never those of other callers."""
        limit = f"Rule '{self.rule.name}' limits {self.measure} to {self.limit}."
        return f"{limit} Try again in {duration_text(self.retry_after_seconds)}."

    def error(self) -> CallLimitedError:
        """Return the refusal of a call."""
        return CallLimitedError(
            self.sentence,
            rule=self.rule.name,
            retry_after_seconds=self.retry_after_seconds,
            limit=self.limit,
            unit="tokens" if self.measure == "tokens per day" else "requests",
        )

    def excess(self) -> Excess:
        """Return the reason why a running call ends."""
        return Excess(self.rule.name, self.sentence, self.retry_after_seconds)


def _compiled(settings: LimitsSettings) -> Iterable[Rule]:
    alike: Counter[tuple[str, str, str]] = Counter()
    for name, rule in zip(settings.rule_names, settings.rules, strict=True):
        selects = (rule.caller, rule.agent, rule.per)
        alike[selects] += 1
        yield Rule(name, (*selects, alike[selects]), rule)
