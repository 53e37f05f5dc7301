"""The decisions of a gateway in its audit log: both lines of each call, and few of strangers."""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.calls.trail import Trail
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.features.audit.feature import AuditFeature, AuditGate
from pallas_gateway.features.audit.trail import AuditTrail
from tests.support.memory_runtime import a_call
from tests.support.waiting import cancelled

ENDED = CallEnd("ok", "endTurn", 0.1, 5)
FACTS = {"caller": "key:ci", "agent": "echo", "call_id": "1", "address": "192.0.2.7"}


def settings(**audit: Any) -> GatewaySettings:
    return GatewaySettings.model_validate({"audit_log": "audit.log", **audit})


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "audit.log").read_bytes().splitlines()]


def outcomes(path: Path) -> list[tuple[str, str, str | None]]:
    return [(one["action"], one["outcome"], one.get("reason")) for one in written(path)]


async def test_a_call_has_a_line_before_it_runs_and_one_at_its_end(tmp_path: Path) -> None:
    audit = AuditLog.open(settings(), tmp_path)
    trail = AuditTrail(audit)
    trail.use(settings())
    await trail.admit(FACTS)
    assert outcomes(tmp_path)[-1] == ("call", "allowed", None)
    trail.end(FACTS, ENDED)
    trail.record("reload", "ok", {"problems": 0})
    state = await trail.state()
    audit.close()

    assert outcomes(tmp_path)[1:-1] == [
        ("call", "allowed", None),
        ("call_end", "ok", "endTurn"),
        ("reload", "ok", None),
    ]
    end = written(tmp_path)[2]
    assert end.items() >= {**FACTS, "seconds": 0.1, "tokens": 5}.items()
    assert state is not None
    assert state.is_up


async def test_a_trail_without_a_log_takes_all_decisions() -> None:
    trail = AuditTrail()
    trail.use(settings())
    await trail.admit(FACTS)
    trail.end(FACTS, ENDED)
    assert await trail.state() is None


async def test_a_call_that_is_cancelled_while_it_waits_for_the_disk_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Event()
    monkeypatch.setattr(os, "fsync", lambda _: answered.wait(30))
    audit = AuditLog.open(settings(audit_sync="line"), tmp_path)
    trail = AuditTrail(audit)

    running: Any = SimpleNamespace(call=a_call(), closers=[], is_audited=False)
    call = asyncio.create_task(AuditGate(trail).admit(running))
    await asyncio.sleep(0)
    await cancelled(call)
    assert not running.is_audited
    assert not running.closers
    answered.set()
    audit.close()

    assert outcomes(tmp_path) == [
        ("start", "ok", None),
        ("call", "allowed", None),
        ("call_end", "error", "cancelled"),
        ("stop", "ok", None),
    ]


async def test_calls_that_are_refused_to_strangers_have_few_lines(tmp_path: Path) -> None:
    audit = AuditLog.open(settings(), tmp_path)
    trail = AuditTrail(audit, clock=lambda: 0.0)
    for number in range(25):
        for caller, address in (
            ("anonymous", f"2001:db8::{number}"),  # of one network
            ("anonymous", "192.0.2.7"),
            ("key:ci", "192.0.2.7"),
        ):
            facts = {**FACTS, "caller": caller, "address": address}
            for action in ("call", "search"):
                trail.record(action, "refused", {**facts, "reason": "limited"})
            trail.record("approve", "refused", facts)  # not of limits
    trail.record("call", "refused", {"caller": "anonymous", "address": None})
    audit.close()

    refused = [one for one in written(tmp_path) if one["outcome"] == "refused"]
    of_limits = Counter(one["caller"] for one in refused if one["action"] != "approve")
    assert of_limits == {"anonymous": 21, "key:ci": 50}
    assert Counter(one["caller"] for one in refused if one["action"] == "approve") == {"anonymous": 50, "key:ci": 25}
    assert [one["left_out"] for one in refused if "left_out" in one] == [80]


def test_a_call_without_a_line_because_the_audit_log_is_away_is_no_refusal_in_it() -> None:
    noted: list[str] = []
    writer: Any = SimpleNamespace(record=lambda _action, _outcome, facts: noted.append(facts["reason"]))
    gateway: Any = SimpleNamespace(parts=SimpleNamespace(parent=None), trail=Trail())
    feature = AuditFeature(gateway)
    feature._writer = writer
    refused: Any = SimpleNamespace(call=a_call(), is_audited=False, refused_by=None)
    for reason in ("busy", "audit_unavailable"):
        feature._note_refusal(refused, CallEnd("refused", reason, 0.0))
    assert noted == ["busy"]
