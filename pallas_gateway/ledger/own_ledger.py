"""The ledger of a gateway: in its only process, or in the parent of its workers."""

from __future__ import annotations

from time import monotonic, time
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.permit import NO_PERMIT, Permit
from pallas_gateway.config.model.limits import LimitsSettings
from pallas_gateway.ledger.counters import Counters
from pallas_gateway.ledger.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pallas_gateway.calls.permit import CallEnd, Excess
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.ledger.counters import Lease
    from pallas_gateway.ledger.protocol import CallEntry, Decision, UsedLimit
    from pallas_gateway.telemetry.audit_state import AuditState


class OwnLedger:
    """The `Ledger` that counts by itself.

    Args:
        clock: the monotonic clock.
        wall_clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, wall_clock: Callable[[], float] = time) -> None:
        self._counters = Counters(clock, wall_clock)
        self._counters.use(Rules(LimitsSettings()))
        self._is_needed = False

    def use(self, settings: GatewaySettings) -> None:
        """Use these rules; the counters of rules that select the same calls as before stay."""
        self._is_needed = bool(settings.limits.rules)
        self._counters.use(Rules(settings.limits))

    async def begin(self, entry: CallEntry) -> Permit:
        """Admit a call; see `Ledger.begin`."""
        if not self._is_needed:
            return NO_PERMIT
        return _OwnPermit(self._counters, entry, self._counters.begin(entry))

    def note(self, decision: Decision) -> None:
        """Write a decision to the audit log, if there is one."""

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        return [*self._counters.used(caller, account, agents)]

    def ratios(self) -> Mapping[str, float]:
        """Return the used share of each rule."""
        return self._counters.ratios()

    def audit_state(self) -> AuditState | None:
        return None


class _OwnPermit(Permit):
    """The admission of a call by `OwnLedger`."""

    def __init__(self, counters: Counters, entry: CallEntry, lease: Lease) -> None:
        self.is_charged = counters.is_charged(entry)
        self._counters = counters
        self._entry = entry
        self._lease = lease

    @override
    async def charge(self, tokens: int) -> Excess | None:
        return self._counters.charge(self._entry, tokens)

    @override
    def end(self, end: CallEnd) -> None:
        self._lease.end()
