"""`gateway.limits`: admits calls by the rules, and charges them for their LLM turns.

The counters are shared: by the workers of a gateway, or with `store: database` by all gateways on it. While that
database is away, the calls of this gateway are counted alone, or refused, as set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import ceil, inf
from time import monotonic
from typing import override

from pallas_gateway.calls.permit import NO_PERMIT, CallEnd, Excess, Permit
from pallas_gateway.config.model.limits import LimitsSettings, RuleSettings
from pallas_gateway.core.offers import CallEntry, CallLimits, UsedLimit
from pallas_gateway.errors import RETRY_AFTER_SECONDS, AgentUnavailableError, CallLimitedError
from pallas_gateway.features.limits.rules import Exceeded, Rule, Rules
from pallas_gateway.shared.protocol import Shared, SharedAnswer, SharedAwayError, UsedCounter, Wanted

MEASURE_EVERY_SECONDS = 10.0
"""Least pause between two measurements of counters in a database."""
_TRIES = Rule("tries", ("(try)", "", "caller", 1), RuleSettings(calls_at_once=2))
"""Limits the agents that an editor tries at once; their calls have the rules of calls."""
_UNDECIDED = "The gateway cannot decide on this call now; try again in a moment."
_log = logging.getLogger("pallas.limits")


class CallerLimits(CallLimits):
    """The limits of one process.

    Args:
        own: the counters of this gateway.
        stored: those in its database; None without one.
    """

    def __init__(self, own: Shared, stored: Shared | None = None) -> None:
        self._own, self._stored = own, stored
        self._numbers = count(1)
        self._ratios: Mapping[str, float] = {}
        self._measure_at = -inf
        self.use(LimitsSettings())

    def use(self, settings: LimitsSettings) -> None:
        """Use these rules from the next call on. Counters of rules that select the same calls as before stay."""
        self._rules = Rules(settings)
        self._store = self._stored if self._stored is not None and settings.store == "database" else self._own
        self._refuses = settings.when_store_is_away == "refuse"
        self._ratios, self._measure_at = {}, -inf

    @property
    def are_on(self) -> bool:
        """True if there is any rule."""
        return bool(self._rules.all)

    @override
    async def begin(self, entry: CallEntry) -> Permit:
        """Admit a call.

        Raises:
            CallLimitedError: the rule with the longest wait refuses it; nothing was counted.
            AgentUnavailableError: the parent of this worker is gone or hangs, and a rule may limit the call.
        """
        counts, uses_tokens = not entry.is_nested, entry.action == "call"
        matching = self._rules.matching(entry.caller, entry.agent) if entry.action != "try" else (_TRIES,)
        rules = [one for one in matching if one.limits(counts=counts, uses_tokens=uses_tokens)]
        if not rules:
            return NO_PERMIT
        wanted = [rule.wanted(entry.account, entry.agent, counts=counts, uses_tokens=uses_tokens) for rule in rules]
        if entry.is_continued:
            wanted = [one._replace(calls_per_minute=None) for one in wanted]
        permit = _LimitsPermit(self, entry, next(self._numbers), is_charged=bool(_charging(rules)))
        refused = self._refusal(entry, rules, await self._acquired(permit, rules, wanted))
        if refused is not None:
            raise refused.error()
        return permit

    async def _acquired(
        self, permit: _LimitsPermit, rules: Sequence[Rule], wanted: Sequence[Wanted]
    ) -> SharedAnswer | None:
        """Count a call in the store, or while that is away in the counters of this gateway; None if both are."""
        store, own, is_nested = self._store, self._own, permit.entry.is_nested
        # Nested calls are admitted while nobody can decide, so that running calls can finish.
        enforced = next((rule for rule in rules if rule.settings.enforce and not is_nested), None)
        permit.places.append(store)
        if store is not own:
            with suppress(SharedAwayError):
                return await store.acquire(permit.lease, wanted)
            if self._refuses and enforced is not None:
                raise _away(enforced)
            permit.places.append(own)
        try:
            answer = await own.acquire(permit.lease, wanted)
        except SharedAwayError:
            if enforced is not None:
                raise AgentUnavailableError(_UNDECIDED) from None
            return None
        if store is not own and answer.refused is None:
            store.hold(permit.lease, wanted)
        return answer

    async def charge(self, entry: CallEntry, tokens: int) -> Excess | None:
        """Charge tokens by the present rules; return the one that is used up. 0 tokens only ask."""
        rules = _charging(self._rules.matching(entry.caller, entry.agent))
        wanted = [rule.wanted(entry.account, entry.agent, counts=False) for rule in rules]
        for place in dict.fromkeys((self._store, self._own)) if rules else ():
            with suppress(SharedAwayError):  # without any counters, a running call may finish
                exceeded = self._refusal(entry, rules, await place.add(wanted, tokens))
                return exceeded.excess() if exceeded is not None else None
        return None

    @override
    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        """Return what an account has used of the limits for calls of these agents; nothing while counters are away.

        Without rules `per: agent`, whose counters show the use of others, and without counters that it shares.
        """
        own = [*self._rules.own(caller, agents)]
        try:
            read = await self._store.read([rule.wanted(account, agent) for rule, agent in own]) if own else []
        except SharedAwayError:
            return []
        counted = zip(own, read, strict=True)
        return [limit for (rule, agent), used in counted if used is not None for limit in _limits(rule, agent, used)]

    def ratios(self) -> Mapping[str, float]:
        """Return the used share of each rule, by its name, as last measured; the largest over its counters."""
        return self._ratios

    async def measure(self) -> None:
        """Measure what `ratios` returns; in a database at most every few seconds."""
        rules, store = self._rules, self._store
        if not rules.all or (store is self._stored and monotonic() < self._measure_at):
            return
        self._measure_at = monotonic() + MEASURE_EVERY_SECONDS
        with suppress(SharedAwayError):
            used = await store.busiest([rule.scope for rule in rules.all])
            if rules is self._rules:
                self._ratios = {rule.name: _ratio(rule, one) for rule, one in zip(rules.all, used, strict=True)}

    def _refusal(self, entry: CallEntry, rules: Sequence[Rule], answer: SharedAnswer | None) -> Exceeded | None:
        """Return the limit that refuses, and log those that are not enforced and would have refused or ended a call."""
        if answer is None:
            return None
        for over in answer.reported:
            one = Exceeded.of(rules, over)
            about = {"rule": one.rule.name, "limit": one.limit, "measure": one.measure}
            # A rule with `enforce: false` would have refused or ended this call.
            _log.info(
                "limit exceeded",
                extra={**about, "agent": entry.agent, "call_id": entry.call_id, "caller": entry.caller},
            )
        return Exceeded.of(rules, answer.refused) if answer.refused is not None else None


class _LimitsPermit(Permit):
    """The admission of a call by `CallerLimits`: the number of its lease, and the counters that may have it."""

    def __init__(self, limits: CallerLimits, entry: CallEntry, lease: int, *, is_charged: bool) -> None:
        self.is_charged = is_charged
        self.entry = entry
        self.lease = lease
        self.places: list[Shared] = []
        self._limits = limits

    @override
    async def charge(self, tokens: int) -> Excess | None:
        return await self._limits.charge(self.entry, tokens)

    @override
    def end(self, end: CallEnd) -> None:
        while self.places:
            self.places.pop().release(self.lease)


def _charging(rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if rule.settings.tokens_per_day is not None]


def _limits(rule: Rule, agent: str, used: UsedCounter) -> Iterator[UsedLimit]:
    """Yield the use of each limit of a rule."""
    settings, agent = rule.settings, rule.counted_agent(agent)
    if settings.calls_per_minute is not None:
        reset = ceil(used.leaves_seconds) if used.leaves_seconds is not None else None
        yield UsedLimit(rule.name, agent, "calls_per_minute", used.started, reset)
    if settings.calls_at_once is not None:
        yield UsedLimit(rule.name, agent, "calls_at_once", used.running, None)
    if settings.tokens_per_day is not None:
        yield UsedLimit(rule.name, agent, "tokens_per_day", used.tokens, ceil(used.day_seconds))


def _ratio(rule: Rule, most: tuple[int, int, int]) -> float:
    limits = rule.settings.calls_per_minute, rule.settings.calls_at_once, rule.settings.tokens_per_day
    return max(number / limit for number, limit in zip(most, limits, strict=True) if limit is not None)


def _away(rule: Rule) -> CallLimitedError:
    settings = rule.settings
    return CallLimitedError(
        f"The limits of this gateway cannot be checked now (rule '{rule.name}'), because their database is not "
        f"available. Try again in {RETRY_AFTER_SECONDS} s.",
        rule=rule.name,
        retry_after_seconds=RETRY_AFTER_SECONDS,
        limit=settings.calls_per_minute or settings.calls_at_once or settings.tokens_per_day or 0,
    )
