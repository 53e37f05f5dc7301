"""The verdict over an agent from its state, its probes and its model's provider. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pallas_gateway.core.health.probe import ProbeResult

Word = Literal["ok", "degraded", "error"]
WORTH: dict[Word, float] = {"ok": 1.0, "degraded": 0.5, "error": 0.0}
"""Value of `pallas_agent_health_status` for each word."""


@dataclass(frozen=True, slots=True)
class LlmResult:
    """The last preflight of one provider.

    `error` is the reason for `failed` or `not checked`; `warning` is what could not be checked of one that is `ok`.
    """

    provider: str
    model: str | None
    status: Literal["ok", "failed", "not checked"]
    error: str | None
    checked: datetime
    warning: str | None = None

    def document(self) -> dict[str, Any]:
        """The `llm` object of `get_health`, without unknown values."""
        document = {
            "provider": self.provider,
            "model": self.model,
            "status": self.status,
            "error": self.error,
            "warning": self.warning,
            "checked": _iso(self.checked),
        }
        return {key: value for key, value in document.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Life:
    """An agent's state, the time of its last change, and why the agent cannot take calls (None if it can).

    `problems` are errors in its definition that do not prevent calls, such as tools that do not exist; `open_questions`
    counts those to its callers. `model` is the name of its model, None before it is known.
    """

    state: str
    since: datetime
    not_ready: str | None = None
    problems: tuple[str, ...] = ()
    open_questions: int = 0
    model: str | None = None

    def document(self) -> dict[str, Any]:
        """The `agent` object of `get_health`."""
        questions = {"open_questions": self.open_questions} if self.open_questions else {}
        model = {"model": self.model} if self.model is not None else {}
        return {"state": self.state, "since": _iso(self.since), **model, **questions}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of `get_health`."""

    status: Word
    message: str | None = None
    probes: tuple[ProbeResult, ...] = ()
    llm: LlmResult | None = None
    life: Life | None = None

    def document(self, now: datetime) -> dict[str, Any]:
        """The JSON object of `get_health`; times are ISO 8601 in UTC."""
        document: dict[str, Any] = {"status": self.status, "timestamp": _iso(now)}
        if self.message is not None:
            document["message"] = self.message
        if self.life is not None:
            document["agent"] = self.life.document()
        if self.probes:
            document["downstream"] = [_probe_document(probe) for probe in self.probes]
        if self.llm is not None:
            document["llm"] = self.llm.document()
        return document


def judge(life: Life, probes: Sequence[ProbeResult], llm: LlmResult | None) -> Verdict:
    """The verdict over an agent, with the message in its documented form.

    `Unreachable: a, b; Without tools: d (why); Refuses callers: c (why); LLM: …; Tools: …`.
    """
    if life.not_ready is not None:
        return Verdict("error", life.not_ready, (), llm, life)
    wrong = []
    if unreachable := [probe.server for probe in probes if probe.error is not None and not probe.is_unlisted]:
        wrong.append(f"Unreachable: {', '.join(unreachable)}")
    if unlisted := [f"{probe.server} ({probe.error})" for probe in probes if probe.is_unlisted]:
        wrong.append(f"Without tools: {', '.join(unlisted)}")
    if refusing := [f"{probe.server} ({probe.refuses})" for probe in probes if probe.refuses is not None]:
        wrong.append(f"Refuses callers: {', '.join(refusing)}")
    if llm is not None and llm.status == "failed":
        wrong.append(f"LLM: {llm.provider}: {llm.error}")
    if life.problems:
        wrong.append(f"Tools: {', '.join(life.problems)}")
    return Verdict("degraded" if wrong else "ok", "; ".join(wrong) or None, tuple(probes), llm, life)


def document_of_all(verdicts: Mapping[str, Verdict], now: datetime) -> dict[str, Any]:
    """The JSON object of `get_health` over several agents: the overall status and each agent's own object.

    The overall status is `error` when all of them are, `degraded` when only some are or any is `degraded`.
    """
    words = {verdict.status for verdict in verdicts.values()}
    status: Word = "ok" if words <= {"ok"} else "error" if words == {"error"} else "degraded"
    document: dict[str, Any] = {"status": status, "timestamp": _iso(now)}
    if status != "ok":
        wrong = [f"{name}: {verdict.message}" for name, verdict in verdicts.items() if verdict.status != "ok"]
        document["message"] = "; ".join(wrong)
    return {**document, "agents": {name: verdict.document(now) for name, verdict in verdicts.items()}}


def _probe_document(probe: ProbeResult) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": probe.server,
        "status": _word(probe),
        "seconds": round(probe.seconds, 3),
        "error": probe.error or probe.refuses,
        "since": probe.since and _iso(probe.since),
        "protocol": probe.protocol,
    }
    return {key: value for key, value in document.items() if value is not None}


def _word(probe: ProbeResult) -> str:
    if probe.error is not None:
        return "unlisted" if probe.is_unlisted else "unreachable"
    return "refuses" if probe.refuses is not None else "ok"


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
