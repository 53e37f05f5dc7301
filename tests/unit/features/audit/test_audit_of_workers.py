"""What a worker asks its parent, over a real channel: the audit log, and answers that do not come."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, override

import pytest

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.core.offers import CallEntry
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError
from pallas_gateway.features.audit.audit_log import AuditState
from pallas_gateway.features.audit.audit_of_workers import AuditOfWorker, RemoteTrail
from pallas_gateway.features.audit.trail import AuditTrail
from pallas_gateway.features.limits.caller_limits import CallerLimits
from pallas_gateway.process.workers.channel import AskedParent
from pallas_gateway.shared.memory import MemoryState
from pallas_gateway.shared.protocol import SharedAwayError
from pallas_gateway.shared.remote import Remote, SharedOfWorker
from tests.support.channels import channel
from tests.support.fair_time import hastened
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.features.audit.chain import Entry
    from tests.support.channels import Ends

HOSTILE = "\n\x1b[31m\u202e\ud800\N{GRINNING FACE}\x00\u2028"
FACTS = {"caller": f"token:{HOSTILE}", "address": None, "agent": HOSTILE, "api": "mcp", "call_id": "00c0ffee"}
END = CallEnd("ok", "end_turn", 1.25, 42)
AUDITED: dict[str, Any] = {"audit_log": "audit.log"}
UNWRITTEN = CallRefusedError("No line can be written.", reason="audit_unavailable")


class Lines(AuditTrail):
    """Keeps what it is told; answers once `may_answer` is set, or raises `refuses`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refuses: BaseException | None = None
        self.lines: list[tuple[str, str, Entry]] = []

    @override
    async def admit(self, facts: Entry) -> None:
        await self.may_answer.wait()
        if self.refuses is not None:
            raise self.refuses
        self.lines.append(("call", "allowed", facts))

    @override
    def record(self, action: str, outcome: str, facts: Entry) -> None:
        self.lines.append((action, outcome, facts))

    @override
    async def state(self) -> AuditState:
        return AuditState("file", 7, 0xABC, is_up=True)


@dataclass(frozen=True)
class Pair:
    """A worker's trail, and the parent's end. `reread`: how often the parent has read the configuration again."""

    trail: RemoteTrail
    asked: AskedParent
    far: Lines
    service: AuditOfWorker
    reread: list[bool]
    ends: Ends

    def use(self, **settings: Any) -> None:
        self.trail.use(GatewaySettings.model_validate(settings))


@asynccontextmanager
async def pair(**settings: Any) -> AsyncGenerator[Pair]:
    far, reread = Lines(), list[bool]()
    service = AuditOfWorker(far, lambda: reread.append(True))
    services = {"audit": service, "shared": SharedOfWorker(MemoryState())}
    async with channel(worker={}, parent=services) as ends:
        asked = AskedParent(ends.worker)
        made = Pair(RemoteTrail(asked), asked, far, service, reread, ends)
        made.use(**settings)
        yield made


async def test_the_lines_of_a_call_have_all_their_values() -> None:
    async with pair(**AUDITED) as it:
        await it.trail.admit(FACTS)
        it.trail.end(FACTS, END)
        it.trail.record("approve", "allowed", {"caller": HOSTILE, "seconds": 3})
        assert await it.trail.state() == AuditState("file", 7, 0xABC, is_up=True)
        numbers = {"reason": "end_turn", "seconds": 1.25, "tokens": 42}
        assert it.far.lines == [
            ("call", "allowed", FACTS),
            ("call_end", "ok", {**FACTS, **numbers}),
            ("approve", "allowed", {"caller": HOSTILE, "seconds": 3}),
        ]


async def test_nothing_is_sent_without_an_audit_log() -> None:
    async with pair() as it:
        await it.trail.admit(FACTS)
        it.trail.record("approve", "allowed", {})
        assert await it.trail.state() is None
        assert await it.asked.ask("shared", "busiest", []) == []  # after all that was sent before
        assert it.far.lines == []


async def test_the_parents_refusal_is_that_of_the_worker() -> None:
    async with pair(**AUDITED) as it:
        it.far.refuses = UNWRITTEN
        with pytest.raises(CallRefusedError, match="No line can be written") as refused:
            await it.trail.admit(FACTS)
        it.service.close()
    assert refused.value.reason == "audit_unavailable"
    assert it.far.lines == []


@pytest.mark.parametrize("is_required", [True, False])
async def test_a_fault_of_the_parent_is_logged_there_and_refuses_calls_that_need_their_line(
    is_required: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(**AUDITED, audit_required=is_required) as it:
        it.far.refuses = RuntimeError("by a test")
        if is_required:
            with pytest.raises(CallRefusedError, match="The audit log is not available"):
                await it.trail.admit(FACTS)
        else:
            await it.trail.admit(FACTS)
    assert caplog.messages == ["worker message failed"]


async def test_a_parent_that_hangs_holds_no_call(caplog: pytest.LogCaptureFixture) -> None:
    rule = GatewaySettings.model_validate({"limits": {"rules": [{"calls_at_once": 1}]}}).limits
    async with pair(**AUDITED) as it:
        limits, entry = CallerLimits(Remote(it.asked)), CallEntry("1", "agent", "key:ci", "key:ci")
        limits.use(rule)
        it.far.may_answer.clear()
        for _ in range(2):
            with pytest.raises(SharedAwayError):
                await hastened(it.asked.ask("audit", "admit", FACTS))
        assert caplog.messages == ["parent does not answer"]
        it.far.may_answer.set()
        (await limits.begin(entry)).end(END)
        it.far.may_answer.clear()
        with pytest.raises(SharedAwayError):
            await hastened(it.asked.ask("audit", "admit", FACTS))
        assert caplog.messages == ["parent does not answer"] * 2  # it has answered meanwhile
        it.ends.writer.close()
        with pytest.raises(AgentUnavailableError):
            await limits.begin(entry)


async def test_a_call_that_is_refused_because_the_parent_is_late_is_not_open_there() -> None:
    async with pair(**AUDITED, audit_required=True) as it:
        it.far.may_answer.clear()
        with pytest.raises(CallRefusedError, match="The audit log is not available"):
            await hastened(it.trail.admit(FACTS))
        it.far.may_answer.set()
        assert await it.trail.state() is not None
        assert not it.service._open
    assert {facts["reason"] for action, _, facts in it.far.lines if action == "call_end"} == {"audit_unavailable"}


async def test_a_call_that_runs_while_the_log_is_switched_off_is_not_open_at_the_parent() -> None:
    async with pair(**AUDITED) as it:
        await it.trail.admit(FACTS)
        it.use()
        it.trail.end(FACTS, END)
        await eventually(lambda: not it.service._open, what="its end")


async def test_a_worker_that_ends_while_its_call_waits_for_the_disk_ends_the_call() -> None:
    async with pair(**AUDITED) as it:
        it.far.may_answer.clear()
        waiting = asyncio.create_task(it.trail.admit(FACTS))
        await eventually(lambda: it.service._open, what="a call at the parent")
    await waiting  # without its parent, a call that needs no line runs
    it.service.close()
    [(action, outcome, facts)] = it.far.lines
    assert (action, outcome, facts["reason"]) == ("call_end", "error", "worker_ended")


async def test_calls_of_a_worker_that_has_ended_have_an_end() -> None:
    async with pair(**AUDITED) as it:
        for call_id in ("one", "two"):
            await it.trail.admit({**FACTS, "call_id": call_id})
        it.trail.end({**FACTS, "call_id": "one"}, END)
        assert await it.trail.state() is not None
        it.service.close()
        it.service.close()
    ended = [
        (outcome, facts["call_id"], facts["reason"]) for action, outcome, facts in it.far.lines if action != "call"
    ]
    assert ended == [("ok", "one", "end_turn"), ("error", "two", "worker_ended")]


async def test_a_worker_with_other_settings_of_the_log_has_its_parent_reread_the_configuration() -> None:
    others: list[dict[str, Any]] = [{}, {"limits": {"rules": [{"calls_at_once": 1}]}}, {"max_nesting": 3}]
    of_log: list[dict[str, Any]] = [{"audit_log": "a"}, {"audit_sync": "line"}, {"state_keys": ["k" * 32]}]
    async with pair() as it:
        for settings in (*others, *of_log):
            it.use(**settings)
        await eventually(lambda: len(it.reread) == 3, what="those of the log")
        it.far.use(GatewaySettings(audit_log="a"))
        it.use(audit_log="a")
        assert await it.asked.ask("shared", "busiest", []) == []  # after all that was sent before
    assert len(it.reread) == 3
