"""A ledger that counts in the database, around that of the gateway, which audits and counts while the other is away."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, override

import pytest

from pallas_gateway.calls.permit import CallEnd, Permit
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.errors import CallLimitedError, CallRefusedError
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.protocol import CallEntry
from tests.support.stored_threads import services
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from pallas_gateway.calls.permit import Excess
    from pallas_gateway.hosting.stored_services import StoredServices
    from pallas_gateway.ledger.protocol import Decision
    from pallas_gateway.ledger.stored_ledger import StoredLedger

ENDED = CallEnd("ok", "endTurn", 0.1, 5)


class EndedPermit(Permit):
    """A permit of `OwnLedger` that keeps its ends."""

    def __init__(self, permit: Permit) -> None:
        self.is_charged = permit.is_charged
        self.permit = permit
        self.ends: list[CallEnd] = []

    @override
    async def charge(self, tokens: int) -> Excess | None:
        return await self.permit.charge(tokens)

    @override
    def end(self, end: CallEnd) -> None:
        self.ends.append(end)
        self.permit.end(end)


class NotingLedger(OwnLedger):
    """Keeps what it is asked; without `can_write`, its audit log is full."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[CallEntry] = []
        self.noted: list[Decision] = []
        self.can_write = True
        self.answers = asyncio.Event()
        self.answers.set()
        self.permits: list[EndedPermit] = []

    @override
    async def begin(self, entry: CallEntry) -> Permit:
        self.begun.append(entry)
        await self.answers.wait()
        if not self.can_write:
            raise CallRefusedError("full", reason="audit_unavailable")
        self.permits.append(EndedPermit(await super().begin(entry)))
        return self.permits[-1]

    @override
    def note(self, decision: Decision) -> None:
        self.noted.append(decision)


class Stage:
    def __init__(self, stored: StoredServices) -> None:
        self.stored = stored
        self.inner = NotingLedger()
        self.ledger: StoredLedger = stored.ledger_around(self.inner)

    def use(self, *rules: dict[str, Any], audit: str | None = None, **limits: Any) -> None:
        limits = {"store": "database", "rules": rules, **limits}
        self.ledger.use(GatewaySettings.model_validate({"limits": limits, "audit_log": audit}))

    def is_away(self, away: bool) -> None:
        self.stored.database.connections.is_up = not away

    async def begin(self, **of: Any) -> Permit:
        return await self.ledger.begin(entry(**of))


def entry(caller: str = "key:ann", agent: str = "echo", parent: str | None = None) -> CallEntry:
    return CallEntry("c1", agent, caller, caller, "192.0.2.1", "mcp", parent, "run:agents")


@asynccontextmanager
async def stage_at(path: Path, *rules: dict[str, Any], **settings: Any) -> AsyncGenerator[Stage]:
    # Without tries: only the test decides when the database is away.
    async with services(f"sqlite:///{path}/threads.db", try_again_seconds=3600) as stored:
        stage = Stage(stored)
        stage.use(*rules, **settings)
        yield stage


async def test_the_gateways_ledger_is_asked_for_nothing_without_an_audit_log(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"calls_per_minute": 2}) as stage:
        for _ in range(2):
            (await stage.begin()).end(ENDED)
        with pytest.raises(CallLimitedError):
            await stage.begin()
    assert stage.inner.begun == []
    [refused] = stage.inner.noted
    assert (refused.action, refused.outcome) == ("call", "refused")
    assert refused.facts == {**entry().facts, "rule": "rule-1", "reason": "limited"}


async def test_the_gateways_ledger_writes_the_lines_of_a_call_and_counts_nothing(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"calls_per_minute": 2, "calls_at_once": 2}, audit="audit.log") as stage:
        for _ in range(2):
            await stage.begin()
        assert [one.is_decided for one in stage.inner.begun] == [True, True]
        assert stage.inner.ratios() == {"rule-1": 0}
        await stage.stored.counters.measure()
        assert stage.ledger.ratios() == {"rule-1": 1}


async def test_a_call_that_the_audit_log_refuses_keeps_no_lease(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"calls_at_once": 1}, audit="audit.log") as stage:
        stage.inner.can_write = False
        with pytest.raises(CallRefusedError, match="full"):
            await stage.begin()
        stage.inner.can_write = True
        permit = await stage.begin()
        permit.end(ENDED)
        permit.end(ENDED)
        await stage.begin()


async def test_calls_that_no_rule_matches_do_not_ask_the_database(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"caller": "key:bob", "calls_per_minute": 1}, when_store_is_away="refuse") as stage:
        stage.is_away(True)
        for _ in range(3):
            await stage.begin()
        with pytest.raises(CallLimitedError, match=r"cannot be checked now \(rule 'rule-1'\), because their database"):
            await stage.begin(caller="key:bob")
    assert [decision.facts["rule"] for decision in stage.inner.noted] == ["rule-1"]


async def test_without_a_store_the_gateways_ledger_counts(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"calls_per_minute": 1, "tokens_per_day": 5}, store=None) as stage:
        permit = await stage.begin()
        assert permit.is_charged
        assert await permit.charge(5) is not None
        with pytest.raises(CallLimitedError):
            await stage.begin()
        assert stage.ledger.ratios() == {"rule-1": 1}


async def test_running_and_nested_calls_go_on_while_calls_are_refused(tmp_path: Path) -> None:
    rule = {"calls_at_once": 1, "tokens_per_day": 30}
    async with stage_at(tmp_path, rule, when_store_is_away="refuse") as stage:
        running = await stage.begin()
        stage.is_away(True)
        with pytest.raises(CallLimitedError):
            await stage.begin()
        nested = await stage.begin(parent="c1")
        assert await nested.charge(20) is None
        assert await running.charge(5) is None
        excess = await running.charge(5)
        assert excess is not None
        assert "tokens per day to 30" in excess.sentence
        running.end(ENDED)
        nested.end(ENDED)
        stage.is_away(False)
        # What was charged alone is not charged again, and the lease is gone.
        again = await stage.begin()
        assert await again.charge(29) is None
        assert await again.charge(1) is not None


async def test_a_call_that_is_charged_twice_in_an_outage_begins_once_and_ends(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"tokens_per_day": 30}) as stage:
        permit = await stage.begin()
        stage.is_away(True)
        stage.inner.answers.clear()
        charges = [asyncio.create_task(permit.charge(5)) for _ in range(2)]
        await eventually(lambda: stage.inner.begun, what="a begin in the gateway's ledger")
        permit.end(ENDED)
        stage.inner.answers.set()
        assert await asyncio.gather(*charges) == [None, None]
        assert [one.ends for one in stage.inner.permits] == [[ENDED]]


async def test_a_nested_call_is_refused_by_a_used_up_budget_only(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"calls_per_minute": 1, "calls_at_once": 1, "tokens_per_day": 5}) as stage:
        outer = await stage.begin()
        for _ in range(3):
            nested = await stage.begin(parent="c1")
        assert await nested.charge(5) is not None
        with pytest.raises(CallLimitedError, match="tokens per day to 5"):
            await stage.begin(parent="c1")
        nested.end(ENDED)
        outer.end(ENDED)


async def test_calls_of_an_outage_are_counted_here_and_hold_leases_when_it_has_ended(tmp_path: Path) -> None:
    async with (
        stage_at(tmp_path, {"calls_at_once": 2}) as stage,
        services(f"sqlite:///{tmp_path}/threads.db") as stored,
    ):
        other = Stage(stored)
        other.use({"calls_at_once": 2})
        stage.is_away(True)
        alone = [await stage.begin() for _ in range(2)]
        with pytest.raises(CallLimitedError):
            await stage.begin()
        stage.is_away(False)
        with pytest.raises(CallLimitedError):  # this call brings the leases
            await stage.begin()
        with pytest.raises(CallLimitedError):
            await other.begin()
        alone[0].end(ENDED)

        async def has_room() -> bool:
            try:
                (await other.begin()).end(ENDED)
            except CallLimitedError:
                return False
            return True

        await eventually(has_room, what="the end of a lease that was taken alone")


async def test_a_reload_changes_what_running_calls_are_charged_by(tmp_path: Path) -> None:
    async with stage_at(tmp_path, {"tokens_per_day": 5}) as stage:
        permit = await stage.begin()
        assert await permit.charge(5) is not None
        stage.use({"tokens_per_day": 100})
        assert await permit.charge(0) is None
        stage.use({"calls_per_minute": 1})
        assert await permit.charge(100) is None
        stage.use({"tokens_per_day": 5}, store=None)
        assert await permit.charge(4) is None
        assert await permit.charge(1) is not None
