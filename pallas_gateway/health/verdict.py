"""From an agent's state and its probes to one word and one sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pallas_gateway.health.probe import ProbeResult

Word = Literal["ok", "degraded", "error"]
WORTH: dict[Word, float] = {"ok": 1.0, "degraded": 0.5, "error": 0.0}
"""Value of `pallas_agent_health_status` for each word."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `get_health` says."""

    status: Word
    message: str | None = None
    probes: tuple[ProbeResult, ...] = ()

    def document(self, now: datetime) -> dict[str, Any]:
        """The JSON object of `get_health`; `timestamp` is ISO 8601 in UTC."""
        document: dict[str, Any] = {"status": self.status, "timestamp": now.isoformat().replace("+00:00", "Z")}
        if self.message is not None:
            document["message"] = self.message
        if self.probes:
            document["downstream"] = [_probe_document(probe) for probe in self.probes]
        return document


def cannot_take_calls(reason: str) -> Verdict:
    """The verdict over an agent that is not ready."""
    return Verdict("error", reason)


def judge(probes: Sequence[ProbeResult]) -> Verdict:
    """The verdict over a ready agent."""
    unreachable = [probe.server for probe in probes if probe.error is not None]
    if unreachable:
        return Verdict("degraded", f"Unreachable: {', '.join(unreachable)}", tuple(probes))
    return Verdict("ok", None, tuple(probes))


def _probe_document(probe: ProbeResult) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": probe.server,
        "status": "ok" if probe.error is None else "unreachable",
        "seconds": round(probe.seconds, 3),
    }
    if probe.error is not None:
        document["error"] = probe.error
    if probe.protocol is not None:
        document["protocol"] = probe.protocol
    return document
