"""The audit log has both lines of each call that was allowed."""

from __future__ import annotations

import asyncio
import json
import os
from threading import Event
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.audit.audit_log import AuditLog
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.ledger.audited_ledger import AuditedLedger
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.protocol import CallEntry

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_call_that_is_cancelled_while_it_waits_for_the_disk_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{"name": "one", "calls_at_once": 1}]
    settings = GatewaySettings.model_validate(
        {"audit_log": "audit.log", "audit_sync": "line", "limits": {"rules": rules}}
    )
    answered = Event()
    monkeypatch.setattr(os, "fsync", lambda _: answered.wait(30))
    audit = AuditLog.open(settings, tmp_path)
    ledger = AuditedLedger(OwnLedger(), audit)
    ledger.use(settings)

    call = asyncio.create_task(ledger.begin(CallEntry("1", "agent", "anonymous", "anonymous:", None, "mcp")))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    answered.set()
    audit.close()

    written = [json.loads(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]
    assert [(one["action"], one["outcome"], one.get("reason")) for one in written] == [
        ("start", "ok", None),
        ("call", "allowed", None),
        ("call_end", "error", "cancelled"),
        ("stop", "ok", None),
    ]
    assert ledger.ratios() == {"one": 0.0}
