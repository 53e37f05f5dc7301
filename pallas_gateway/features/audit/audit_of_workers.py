"""The audit log of several workers: only their parent writes it, and notes the end of calls whose worker has ended."""

from __future__ import annotations

import hashlib
from contextlib import closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.core.feature import InParent
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.features.audit.audit_log import AuditState
from pallas_gateway.features.audit.trail import audited
from pallas_gateway.shared.protocol import SharedAwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.features.audit.chain import Entry
    from pallas_gateway.features.audit.trail import AuditTrail
    from pallas_gateway.shared.remote import ParentProcess

WORKER_ENDED = "worker_ended"
"""Reason of the end of calls whose worker ended before them."""
SERVICE = "audit"
_SETTINGS = {"audit_log", "audit_names", "audit_sync", "audit_required", "state_keys"}


def digest_of(settings: GatewaySettings) -> str:
    """Return a hash of the settings of the audit log."""
    return hashlib.sha256(settings.model_dump_json(include=_SETTINGS).encode()).hexdigest()


class RemoteTrail:
    """The `Trail` of a worker. While the audit log is off it sends nothing."""

    def __init__(self, parent: ParentProcess) -> None:
        self._parent = parent
        self._is_on = self._is_required = False

    def use(self, settings: GatewaySettings) -> None:
        """Have the parent reread its configuration if its audit log has other settings than these."""
        self._is_on = settings.audit_log is not None
        self._is_required = settings.audit_required
        self._parent.tell(SERVICE, "compare", digest_of(settings))

    async def admit(self, facts: Entry) -> None:
        if not self._is_on:
            return
        try:
            refusal = await self._parent.ask(SERVICE, "admit", facts)
        except SharedAwayError:
            if not self._is_required:
                return
            self.end(facts, CallEnd("error", "audit_unavailable", 0.0))  # the parent may note the call yet
            refusal = "The audit log is not available; try again later."
        if refusal is not None:
            raise CallRefusedError(refusal, reason="audit_unavailable")

    def end(self, facts: Entry, end: CallEnd) -> None:
        self._parent.tell(SERVICE, "end", facts, end.outcome, end.reason, end.seconds, end.tokens)

    def record(self, action: str, outcome: str, facts: Entry) -> None:
        if self._is_on:
            self._parent.tell(SERVICE, "record", action, outcome, facts)

    async def state(self) -> AuditState | None:
        try:
            row = await self._parent.ask(SERVICE, "state") if self._is_on else None
        except SharedAwayError:
            return None
        return AuditState(*row) if row is not None else None


@contextmanager
def audit_in_parent(configuration: Configuration) -> Iterator[InParent]:
    with audited(configuration) as trail:
        use: Callable[[Configuration], None] = lambda read: trail.use(read.deployment.gateway)  # noqa: E731
        yield InParent(SERVICE, lambda reread: closing(AuditOfWorker(trail, reread)), use)


class AuditOfWorker:
    """The parent's service for the `RemoteTrail` of one worker.

    Args:
        trail: of the parent.
        reread: reads the configuration again, because the worker has reloaded by itself.
    """

    def __init__(self, trail: AuditTrail, reread: Callable[[], object]) -> None:
        self.record = trail.record
        self._trail = trail
        self._reread = reread
        self._open: dict[str, tuple[float, Entry]] = {}

    def compare(self, digest: str) -> None:
        """Compare the settings of the worker, as a hash, at its start and after a reload."""
        if digest != digest_of(self._trail.settings):
            self._reread()

    async def admit(self, facts: Entry) -> str | None:
        """Note a call; return why it must not run, or None."""
        call_id = str(facts["call_id"])
        self._open[call_id] = monotonic(), facts
        try:
            await self._trail.admit(facts)
        except CallRefusedError as refused:
            self._open.pop(call_id, None)
            return str(refused)
        return None

    def end(self, facts: Entry, *end: Any) -> None:
        self._open.pop(str(facts["call_id"]), None)
        self._trail.end(facts, CallEnd(*end))

    async def state(self) -> tuple[Any, ...] | None:
        state = await self._trail.state()
        return tuple(state) if state is not None else None

    def close(self) -> None:
        """Note the end of the calls that are left: the worker has ended."""
        for begun_at, facts in self._open.values():
            ended: Entry = {"reason": WORKER_ENDED, "seconds": round(monotonic() - begun_at, 3)}
            self._trail.record("call_end", "error", {**facts, **ended})
        self._open.clear()
