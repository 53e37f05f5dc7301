"""The decisions of a gateway in its audit log: a line before each call runs, and another at its end.

Refusals have so many lines a minute: strangers must not fill the disk.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.calls.trail import FewLines
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.features.audit.audit_log import AuditState
    from pallas_gateway.features.audit.chain import Entry

_ACTIONS_OF_LIMITS = frozenset({"call", "search", "copy"})


class AuditWriter(Protocol):
    """Writes the decisions of one process; in one of several workers, they are sent to the process that writes."""

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
        """Note another decision; see `Trail.record`."""

    async def state(self) -> AuditState | None:
        """Return the state of the log for the metrics; None while it is off."""


class AuditTrail:
    """The `AuditWriter` of the process that writes the log."""

    def __init__(self, log: AuditLog | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.log = log
        self.settings = GatewaySettings()
        self._strangers = FewLines(clock)

    def use(self, settings: GatewaySettings) -> None:
        self.settings = settings
        if self.log is not None:
            self.log.use(settings)

    async def admit(self, facts: Entry) -> None:
        if self.log is None or not self.log.is_on:
            return
        await self.log.admit({"action": "call", "outcome": "allowed", **facts})

    def end(self, facts: Entry, end: CallEnd) -> None:
        numbers: Entry = {"reason": end.reason, "seconds": end.seconds, "tokens": end.tokens}
        self.record("call_end", end.outcome, {**facts, **numbers})

    def record(self, action: str, outcome: str, facts: Entry) -> None:
        """Note a decision; refusals of strangers have few lines."""
        if self.log is None or not self.log.is_on:
            return
        if action in _ACTIONS_OF_LIMITS and outcome == "refused" and facts.get("caller") == ANONYMOUS_NAME:
            address = facts.get("address")
            client = Caller(address=address if isinstance(address, str) else None).account
            if (left_out := self._strangers.take(client)) is None:
                return
            facts = {**facts, "left_out": left_out or None}
        self.log.record({"action": action, "outcome": outcome, **facts})

    async def state(self) -> AuditState | None:
        return self.log.state if self.log is not None else None


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
