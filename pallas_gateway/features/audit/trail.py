"""The decisions of a gateway in its audit log: a line before each call runs, and another at its end.

Refusals have so many lines a minute: strangers must not fill the disk.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.calls.call import Call
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.features.audit.audit_log import AuditState
    from pallas_gateway.features.audit.chain import Entry

MINUTE_SECONDS = 60.0
MOST_OF_CLIENT = 10
"""Lines for the refused requests of one client a minute."""
MOST_OF_ALL = 300
"""The same of all clients together."""
_ACTIONS_OF_LIMITS = frozenset({"call", "search", "copy"})


def facts_of(call: Call) -> Entry:
    """Return a call in the audit log."""
    caller = call.caller
    return {
        "caller": caller.principal,
        "address": caller.address,
        "agent": call.agent,
        "api": call.api,
        "call_id": call.call_id,
        "parent": call.parent_call_id,
        "grant": caller.grants.deciding("run:agents", call.agent),
    }


class Trail(Protocol):
    """Takes the decisions of one process; in one of several workers, they are sent to the process that writes."""

    def use(self, settings: GatewaySettings) -> None:
        """Use these settings from the next decision on."""

    async def admit(self, facts: Entry) -> None:
        """Note a call before it runs; `facts` of it are noted again at its `end`, also if this is cancelled.

        Raises:
            CallRefusedError: `audit_unavailable`, because the line cannot be written and `audit_required` is set.
        """

    def end(self, facts: Entry, end: CallEnd) -> None:
        """Note the end of a call that was admitted."""

    def record(self, action: str, outcome: str, facts: Entry) -> None:
        """Note another decision.

        Args:
            action: one word, such as `approve`, `end_call`, `reload`.
            outcome: one word, such as `allowed`, `refused`, `accepted`.
            facts: plain values of `chain.FIELDS`.
        """

    async def state(self) -> AuditState | None:
        """Return the state of the log for the metrics; None while it is off."""


class FewLines:
    """Says which refusals have a line; those above the limits are counted in the next one."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._minute = -1.0
        self._by_client: dict[str, int] = {}
        self._noted = self._left_out = 0

    def take(self, client: str) -> int | None:
        """Return how many refusals before this one have no line; None if this one must not have one either."""
        if (minute := self._clock() // MINUTE_SECONDS) != self._minute:
            self._minute, self._noted = minute, 0
            self._by_client.clear()
        of_client = self._by_client.get(client, 0)
        if of_client >= MOST_OF_CLIENT or self._noted >= MOST_OF_ALL:
            self._left_out += 1
            return None
        self._by_client[client] = of_client + 1
        self._noted += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class AuditTrail:
    """The `Trail` of the process that writes the log."""

    def __init__(self, log: AuditLog | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._strangers = FewLines(clock)

    def use(self, settings: GatewaySettings) -> None:
        if self._log is not None:
            self._log.use(settings)

    async def admit(self, facts: Entry) -> None:
        if self._log is None or not self._log.is_on:
            return
        await self._log.admit({"action": "call", "outcome": "allowed", **facts})

    def end(self, facts: Entry, end: CallEnd) -> None:
        numbers: Entry = {"reason": end.reason, "seconds": end.seconds, "tokens": end.tokens}
        self.record("call_end", end.outcome, {**facts, **numbers})

    def record(self, action: str, outcome: str, facts: Entry) -> None:
        """Note a decision; refusals of strangers have few lines."""
        if self._log is None or not self._log.is_on:
            return
        if action in _ACTIONS_OF_LIMITS and outcome == "refused" and facts.get("caller") == ANONYMOUS_NAME:
            address = facts.get("address")
            client = Caller(address=address if isinstance(address, str) else None).account
            if (left_out := self._strangers.take(client)) is None:
                return
            facts = {**facts, "left_out": left_out or None}
        self._log.record({"action": action, "outcome": outcome, **facts})

    async def state(self) -> AuditState | None:
        return self._log.state if self._log is not None else None


class RefusedRequests:
    """The refused requests of one process."""

    def __init__(self, trail: Trail, clock: Callable[[], float] = monotonic) -> None:
        self._trail = trail
        self._lines = FewLines(clock)

    def record(self, reason: str, caller: Caller, more: Mapping[str, str | None], action: str = "request") -> None:
        """Note the refusal of a request that is no call; `more` are other facts of the audit log."""
        if (left_out := self._lines.take(caller.account)) is not None:
            facts = {"caller": caller.principal, "address": caller.address, **more, "reason": reason}
            self._trail.record(action, "refused", {**facts, "left_out": left_out or None})


@contextmanager
def audited(configuration: Configuration, stdout: int = 1) -> Iterator[AuditTrail]:
    """Open the audit log of a configuration, and close it at the end of the block.

    Raises:
        AuditLogError: another gateway writes the file, or it has other content.
    """
    log = AuditLog.open(configuration.deployment.gateway, configuration.folder, stdout)
    try:
        yield AuditTrail(log)
    finally:
        log.close()
