"""`gateway.audit_log`: who was allowed what, one line for each decision, in a chain of hashes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.calls.trail import facts_of
from pallas_gateway.core.feature import Feature
from pallas_gateway.features.audit.audit_log import AuditUnavailableError
from pallas_gateway.features.audit.audit_of_workers import RemoteTrail
from pallas_gateway.features.audit.trail import AuditTrail, audited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.calls import Gate, Listener
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.running_call import RunningCall
    from pallas_gateway.features.audit.trail import AuditWriter


class AuditGate:
    """The `Gate` of the audit log, which has the calls that the gates before it have admitted."""

    def __init__(self, writer: AuditWriter) -> None:
        self._writer = writer

    async def admit(self, call: RunningCall) -> None:
        writer, facts = self._writer, facts_of(call.call)
        try:
            recorder = call.call.recorder
            if recorder is not None and recorder.runs:  # its line before it runs is that of its first run
                writer.record("task_continued", "ok", {**facts, "reason": recorder.why})
            else:
                await writer.admit(facts)
        except asyncio.CancelledError:  # while it waited for the disk: its line is written
            writer.end(facts, CallEnd("error", "cancelled", 0.0))
            raise
        call.is_audited = True
        call.closers.append(lambda _, end: writer.end(facts, end))


class AuditFeature(Feature):
    """The audit log: a gate, and a listener for what other gates have refused."""

    settings = ("audit_log", "audit_names", "audit_sync", "audit_required")

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._own = AuditTrail()
        parent = gateway.parts.parent
        self._writer: AuditWriter = RemoteTrail(parent) if parent is not None else self._own
        gateway.trail.write = self._writer.record

    @asynccontextmanager
    @override
    async def opened(self) -> AsyncIterator[None]:
        """Write the log, unless the parent of this worker does.

        Raises:
            AuditLogError: another gateway writes the file, or it has other content.
        """
        if self._writer is not self._own:
            yield
            return
        with audited(self._gateway.configuration, self._gateway.parts.stdout) as opened:
            self._own.log = opened.log
            yield

    @override
    def apply(self, configuration: Configuration) -> None:
        self._writer.use(configuration.deployment.gateway)

    @property
    @override
    def gates(self) -> Sequence[Gate]:
        return (AuditGate(self._writer),) if self._is_on else ()

    @property
    @override
    def listeners(self) -> Sequence[Listener]:
        return (self._note_refusal,) if self._is_on else ()

    @property
    def _is_on(self) -> bool:
        return self._gateway.configuration.deployment.gateway.audit_log is not None

    def _note_refusal(self, call: RunningCall, end: CallEnd) -> None:
        # The end of a call with a line of its own is noted by its closer; a log that cannot be written takes none.
        if end.outcome == "refused" and not call.is_audited and end.reason != AuditUnavailableError.reason:
            why = {"rule": call.refused_by, "reason": end.reason}
            self._writer.record("call", "refused", {**facts_of(call.call), **why})

    @override
    async def measure(self) -> None:
        self._gateway.metrics.show_audit(await self._writer.state())
