"""The ledger of a worker: it asks that of the parent, by one message for each call and each charged LLM turn."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from itertools import count
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.permit import NO_PERMIT, CallEnd, Excess, Permit
from pallas_gateway.errors import AgentUnavailableError, CallLimitedError, CallRefusedError
from pallas_gateway.ledger.protocol import UsedLimit
from pallas_gateway.telemetry.audit_state import AuditState
from pallas_gateway.workers.ledger_rows import (
    ASK_USED,
    BEGIN,
    CHARGE,
    END,
    LIMITED,
    REFUSED,
    row_of_decision,
    values_of_end,
    values_of_entry,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.ledger.protocol import CallEntry, Decision
    from pallas_gateway.workers.channel import Channel
    from pallas_gateway.workers.ledger_rows import Row

ANSWER_SECONDS = 15.0
"""The parent itself waits for the disk, with `audit_sync: line` up to 5 s."""
_UNDECIDED = "The gateway cannot decide on this call now; try again in a moment."
_log = logging.getLogger("pallas.workers")
_SETTINGS = {"limits", "audit_log", "audit_names", "audit_sync", "audit_required", "state_keys"}


def digest_of(settings: GatewaySettings) -> str:
    """Return a hash of the settings that a ledger uses."""
    return hashlib.sha256(settings.model_dump_json(include=_SETTINGS).encode()).hexdigest()


class ParentLedger:
    """The `Ledger` of a worker. Without rules and without an audit log it sends nothing.

    Args:
        channel: to the parent.
        answer_seconds: longest wait for an answer. A parent that hangs must not hold calls.
    """

    def __init__(self, channel: Channel, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._channel = channel
        self._answer_seconds = answer_seconds
        self._is_silent = False
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Row | None]] = {}
        self._is_used = self._is_over = False
        self._has_rules = self._is_audited = self._requires_audit = False
        self._ratios: Mapping[str, float] = {}
        self._audit: AuditState | None = None

    def use(self, settings: GatewaySettings) -> None:
        """Have the parent reread its configuration if it has other rules, or another audit log, than these."""
        rules = settings.limits.rules
        self._is_used = bool(rules) or settings.audit_log is not None
        self._has_rules = any(rule.enforce for rule in rules)
        self._is_audited = settings.audit_log is not None
        self._requires_audit = self._is_audited and settings.audit_required
        self._channel.tell("parent", "ledger_settings", digest_of(settings))

    async def begin(self, entry: CallEntry) -> Permit:
        """Have the parent admit a call.

        Raises:
            CallLimitedError: a rule refuses it.
            CallRefusedError: `audit_unavailable`.
            AgentUnavailableError: the parent is gone or hangs, and a rule may limit the call.
        """
        if not self._is_used:
            return NO_PERMIT
        number = next(self._numbers)
        try:
            answer = await self._answer(number, [BEGIN, number, *values_of_entry(entry)])
        except asyncio.CancelledError:
            self._send([END, number, *values_of_end(CallEnd("error", "cancelled", 0.0))])
            raise
        if answer is None:
            self._send([END, number, *values_of_end(CallEnd("error", "cancelled", 0.0))])
            return self._without_parent(entry)
        kind, *values = answer
        if kind == LIMITED:
            message, rule, seconds, limit, unit = values
            raise CallLimitedError(message, rule=rule, retry_after_seconds=seconds, limit=limit, unit=unit)
        if kind == REFUSED:
            message, reason = values
            raise CallRefusedError(message, reason=reason)
        return _ParentPermit(self, number, is_charged=values[0])

    def note(self, decision: Decision) -> None:
        if self._is_used:
            self._send(row_of_decision(decision))

    async def used(self, caller: str, account: str, agents: Sequence[str]) -> Sequence[UsedLimit]:
        """Ask the parent; return nothing if it is gone."""
        number = next(self._numbers)
        answer = await self._answer(number, [ASK_USED, number, caller, account, [*agents]]) if self._is_used else None
        return [UsedLimit(*row) for row in answer[1]] if answer is not None and len(answer) > 1 else []

    def ratios(self) -> Mapping[str, float]:
        """Return what the parent has reported last."""
        return self._ratios

    def audit_state(self) -> AuditState | None:
        """Return what the parent has reported last."""
        return self._audit if self._is_audited else None

    async def charge(self, admission: int, tokens: int) -> Excess | None:
        number = next(self._numbers)
        answer = await self._answer(number, [CHARGE, number, admission, tokens])
        # Without the parent, the call may finish: this worker drains, and the counters ended with the parent.
        return Excess(*answer[1:]) if answer is not None and len(answer) > 1 else None

    def end_call(self, admission: int, end: CallEnd) -> None:
        self._send([END, admission, *values_of_end(end)])

    def take(self, number: int, *answer: Any) -> None:
        """Hand an answer to the call that waits for it, if it has not been cancelled."""
        if (asked := self._asked.get(number)) is not None and not asked.done():
            asked.set_result([*answer])

    def state(self, ratios: Mapping[str, float], audit: tuple[Any, ...] | None) -> None:
        """Take a report of the parent: the used share of each rule and the fields of an `AuditState`."""
        self._ratios = ratios
        self._audit = AuditState(*audit) if audit is not None else None

    def end(self) -> None:
        """Ask no more: the parent is gone."""
        self._is_over = True
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)

    def _send(self, row: Row) -> None:
        self._channel.tell("ledger", "take", *row)

    async def _answer(self, number: int, row: Row) -> Row | None:
        """Send a row and return its answer; None if the parent is gone, or hangs."""
        if self._is_over:
            return None
        asked: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._send(row)
        try:
            async with asyncio.timeout(self._answer_seconds):
                answer = await asked
            self._is_silent = False
        except TimeoutError:
            if not self._is_silent:
                self._is_silent = True
                # Calls that a rule may limit are refused until it does.
                _log.error("parent does not answer", extra={"seconds": self._answer_seconds})
            return None
        else:
            return answer
        finally:
            del self._asked[number]

    def _without_parent(self, entry: CallEntry) -> Permit:
        """Admit nested calls, so that running calls can finish, and all calls if no rule limits any."""
        if self._requires_audit:
            raise CallRefusedError("The audit log is not available; try again later.", reason="audit_unavailable")
        if self._has_rules and entry.parent is None:
            raise AgentUnavailableError(_UNDECIDED)
        return NO_PERMIT


class _ParentPermit(Permit):
    """The admission of a call by the parent."""

    def __init__(self, ledger: ParentLedger, number: int, *, is_charged: bool) -> None:
        self.is_charged = is_charged
        self._ledger = ledger
        self._number = number

    @override
    async def charge(self, tokens: int) -> Excess | None:
        return await self._ledger.charge(self._number, tokens)

    @override
    def end(self, end: CallEnd) -> None:
        self._ledger.end_call(self._number, end)
