"""The audit log has both lines of each call that was allowed."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.audit.audit_log import AuditLog
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.identity.caller import Caller
from pallas_gateway.ledger.audited_ledger import AuditedLedger
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.protocol import CallEntry, Decision

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


async def test_calls_that_are_refused_to_strangers_have_few_lines(tmp_path: Path) -> None:
    settings = GatewaySettings.model_validate(
        {"audit_log": "audit.log", "limits": {"rules": [{"calls_per_minute": 1}]}}
    )
    audit = AuditLog.open(settings, tmp_path)
    ledger = AuditedLedger(OwnLedger(), audit, clock=lambda: 0.0)
    ledger.use(settings)
    strangers = [("anonymous", Caller(address=address)) for address in ("2001:db8::1", "192.0.2.7")]
    for caller, one in [*strangers, ("key:ci", Caller("ci", kind="key", owner="key:ci", address="192.0.2.7"))]:
        await ledger.begin(entry := CallEntry("1", "agent", caller, one.account, one.address, "mcp"))
        for number in range(25):
            last = f"2001:db8::{number}" if one.address == "2001:db8::1" else one.address  # of the same network
            with pytest.raises(CallLimitedError):
                await ledger.begin(replace(entry, address=last))
            ledger.note(Decision("call", "refused", {**entry.facts, "address": last, "reason": "bad_input"}))
    audit.close()

    written = [json.loads(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]
    refused = [one for one in written if (one["action"], one["outcome"]) == ("call", "refused")]
    assert Counter(one["caller"] for one in refused) == {"anonymous": 20, "key:ci": 50}
    assert [one["left_out"] for one in refused if "left_out" in one] == [40]
