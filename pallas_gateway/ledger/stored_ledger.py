"""The ledger of a process whose limits are counted in the database: decides there, and has the other ledger audit.

While the database is away, the other ledger counts the calls of this gateway, or they are refused, as set.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.permit import Permit
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.errors import RETRY_AFTER_SECONDS, CallLimitedError
from pallas_gateway.ledger.protocol import Decision
from pallas_gateway.ledger.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.calls.permit import CallEnd, Excess
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.ledger.protocol import CallEntry, Ledger, UsedLimit
    from pallas_gateway.ledger.rules import Rule
    from pallas_gateway.ledger.stored_counters import StoredCounters
    from pallas_gateway.telemetry.audit_state import AuditState


class StoredLedger:
    """The `Ledger` with counters in the database.

    Args:
        inner: the ledger of this gateway, which writes the audit log. It counts without `store: database`.
        counters: in the database.
    """

    def __init__(self, inner: Ledger, counters: StoredCounters) -> None:
        self.inner = inner
        self.counters = counters
        self._rules: Rules | None = None
        self._refuses = self._is_audited = False

    def use(self, settings: GatewaySettings) -> None:
        limits = settings.limits
        self._rules = Rules(limits) if limits.store == "database" and limits.rules else None
        self._refuses = limits.when_store_is_away == "refuse"
        self._is_audited = settings.audit_log is not None
        self.counters.use(self._rules)
        self.inner.use(settings)

    async def begin(self, entry: CallEntry) -> Permit:
        if self._rules is None:
            return await self.inner.begin(entry)
        rules: Sequence[Rule] = self._rules.matching(entry.caller, entry.agent)
        charging = self.charging(entry) or ()
        if entry.parent is not None:
            rules = charging
        if not rules:
            return await self.inner.begin(entry)
        try:
            lease = await self.counters.begin(rules, entry)
        except DatabaseUnavailableError:
            return await self._begun_alone(rules, entry, is_charged=bool(charging))
        except CallLimitedError as refused:
            self._note(entry, refused)
            raise
        permit = _StoredPermit(self, entry, lease, is_charged=bool(charging))
        if self._is_audited:
            try:
                await permit.inner()
            except BaseException:
                permit.release()
                raise
        return permit

    def note(self, decision: Decision) -> None:
        self.inner.note(decision)

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        """Read what an account has used; return nothing while the database is away."""
        if self._rules is None:
            return await self.inner.used(caller, account, agents)
        try:
            return await self.counters.used([*self._rules.own(caller, agents)], account)
        except DatabaseUnavailableError:
            return []

    def ratios(self) -> Mapping[str, float]:
        return self.counters.ratios() if self._rules is not None else self.inner.ratios()

    def audit_state(self) -> AuditState | None:
        return self.inner.audit_state()

    def charging(self, entry: CallEntry) -> Sequence[Rule] | None:
        """Return the present rules that limit the tokens of a call; None if the database does not count."""
        if self._rules is None:
            return None
        matching = self._rules.matching(entry.caller, entry.agent)
        return [rule for rule in matching if rule.settings.tokens_per_day is not None]

    async def _begun_alone(self, rules: Sequence[Rule], entry: CallEntry, *, is_charged: bool) -> Permit:
        enforced = next((rule for rule in rules if rule.settings.enforce), None)
        if self._refuses and enforced is not None and entry.parent is None:
            self._note(entry, refused := _away(enforced))
            raise refused
        inner = await self.inner.begin(entry)
        return _StoredPermit(self, entry, self.counters.hold(rules, entry), inner, is_charged=is_charged)

    def _note(self, entry: CallEntry, refused: CallLimitedError) -> None:
        facts = {**entry.facts, "rule": refused.rule, "reason": refused.reason}
        self.inner.note(Decision(entry.action, "refused", facts))


class _StoredPermit(Permit):
    """The admission of a call that was decided in the database, or while that was away by the inner ledger."""

    def __init__(
        self,
        ledger: StoredLedger,
        entry: CallEntry,
        lease: int | None,
        inner: Permit | None = None,
        *,
        is_charged: bool,
    ) -> None:
        self.is_charged = is_charged
        self._ledger = ledger
        self._entry = entry
        self._lease = lease
        self._inner = inner
        self._asking = asyncio.Lock()
        self._end: CallEnd | None = None

    @override
    async def charge(self, tokens: int) -> Excess | None:
        rules = self._ledger.charging(self._entry)
        if rules is not None and not rules:
            return None
        if rules:
            try:
                return await self._ledger.counters.charge(rules, self._entry, tokens)
            except DatabaseUnavailableError:
                pass  # counted by this gateway alone, also where calls are refused: this one is running
        return await (await self.inner()).charge(tokens)

    @override
    def end(self, end: CallEnd) -> None:
        self.release()
        self._end = end
        if self._inner is not None:
            self._inner.end(end)

    async def inner(self) -> Permit:
        """Return the permit of the inner ledger, which has counted the call only while the database was away."""
        async with self._asking:  # agents of one call are charged at the same time
            if self._inner is None:
                self._inner = await self._ledger.inner.begin(replace(self._entry, is_decided=True))
                if self._end is not None:  # the call has ended meanwhile
                    self._inner.end(self._end)
        return self._inner

    def release(self) -> None:
        """Release the lease of the call."""
        if self._lease is not None:
            self._ledger.counters.end(self._lease)
            self._lease = None


def _away(rule: Rule) -> CallLimitedError:
    settings = rule.settings
    return CallLimitedError(
        f"The limits of this gateway cannot be checked now (rule '{rule.name}'), because their database is not "
        f"available. Try again in {RETRY_AFTER_SECONDS} s.",
        rule=rule.name,
        retry_after_seconds=RETRY_AFTER_SECONDS,
        limit=settings.calls_per_minute or settings.calls_at_once or settings.tokens_per_day or 0,
    )
