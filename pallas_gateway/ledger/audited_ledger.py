"""A ledger whose decisions are in the audit log: the line of a call is written before it runs, another at its end."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, override

from pallas_gateway.audit.audit_log import AuditLog
from pallas_gateway.calls.permit import CallEnd, Permit
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller
from pallas_gateway.ledger.protocol import Decision
from pallas_gateway.ledger.refused_requests import FewLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pallas_gateway.audit.chain import Entry
    from pallas_gateway.calls.permit import Excess
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.ledger.protocol import CallEntry, Ledger, UsedLimit
    from pallas_gateway.telemetry.audit_state import AuditState


@contextmanager
def audited(ledger: Ledger, configuration: Configuration, stdout: int = 1) -> Iterator[AuditedLedger]:
    """Open the audit log of a configuration around `ledger`, and close it at the end of the block.

    Raises:
        AuditLogError: another gateway writes the file, or it has other content.
    """
    audit = AuditLog.open(configuration.deployment.gateway, configuration.folder, stdout)
    try:
        yield AuditedLedger(ledger, audit)
    finally:
        audit.close()


class AuditedLedger:
    """A `Ledger` that admits by `ledger`, and writes to `audit`; refused calls of strangers have few lines."""

    def __init__(self, ledger: Ledger, audit: AuditLog, clock: Callable[[], float] = monotonic) -> None:
        self._ledger = ledger
        self._audit = audit
        self._strangers = FewLines(clock)

    def use(self, settings: GatewaySettings) -> None:
        self._ledger.use(settings)
        self._audit.use(settings)

    async def begin(self, entry: CallEntry) -> Permit:
        """Admit a call; see `Ledger.begin`."""
        if not self._audit.is_on:
            return await self._ledger.begin(entry)
        about = entry.facts
        try:
            permit = await self._ledger.begin(entry)
        except CallLimitedError as error:
            self.note(Decision(entry.action, "refused", {**about, "rule": error.rule, "reason": "limited"}))
            raise
        if entry.action != "call":
            return permit
        try:
            await self._audit.admit({"action": "call", "outcome": "allowed", **about})
        except asyncio.CancelledError:  # while it waited for the disk: its line is written
            _AuditedPermit(permit, self._audit, about).end(CallEnd("error", "cancelled", 0.0))
            raise
        except BaseException:
            permit.end(CallEnd("error", "audit_unavailable", 0.0))
            raise
        return _AuditedPermit(permit, self._audit, about)

    def note(self, decision: Decision) -> None:
        if not self._audit.is_on:
            return
        facts = decision.facts
        is_refused = decision.action in {"call", "search", "copy"} and decision.outcome == "refused"
        if is_refused and facts.get("caller") == ANONYMOUS_NAME:
            if (left_out := self._strangers.take(Caller(address=facts.get("address")).account)) is None:
                return
            facts = {**facts, "left_out": left_out or None}
        self._audit.note({"action": decision.action, "outcome": decision.outcome, **facts})

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        return await self._ledger.used(caller, account, agents)

    def ratios(self) -> Mapping[str, float]:
        return self._ledger.ratios()

    def audit_state(self) -> AuditState | None:
        return self._audit.state


class _AuditedPermit(Permit):
    """A permit whose end is in the audit log."""

    def __init__(self, permit: Permit, audit: AuditLog, about: Entry) -> None:
        self.is_charged = permit.is_charged
        self._permit = permit
        self._audit = audit
        self._about = about

    @override
    async def charge(self, tokens: int) -> Excess | None:
        return await self._permit.charge(tokens)

    @override
    def end(self, end: CallEnd) -> None:
        self._permit.end(end)
        result: Entry = {"reason": end.reason, "seconds": end.seconds, "tokens": end.tokens}
        self._audit.note({"action": "call_end", "outcome": end.outcome, **self._about, **result})
