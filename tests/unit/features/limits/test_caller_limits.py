"""The limits of one process: admissions, charges and ends of calls, while its counters are there and while not."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, override

import pytest

from pallas_gateway.calls.permit import NO_PERMIT, CallEnd, Permit, duration_text
from pallas_gateway.config.model.limits import LimitsSettings
from pallas_gateway.core.offers import CallEntry, UsedLimit
from pallas_gateway.errors import AgentUnavailableError, CallLimitedError
from pallas_gateway.features.limits import caller_limits
from pallas_gateway.features.limits.caller_limits import MEASURE_EVERY_SECONDS, CallerLimits
from pallas_gateway.shared.counters import Counters
from pallas_gateway.shared.memory import MemoryState
from pallas_gateway.shared.protocol import SharedAwayError, Wanted
from pallas_gateway.shared.remote import Remote, SharedOfWorker
from tests.support.shared_state import Clock

ENDED = CallEnd("ok", "endTurn", 0.1, 5)
RULE = {"calls_per_minute": 3, "calls_at_once": 2, "tokens_per_day": 30}
NOON_TO_MIDNIGHT = 43_200
DECISION = "The gateway cannot decide on this call now; try again in a moment."


class Place(Remote):
    """Counters that may be away, and what they are asked; it stands for their other side too."""

    def __init__(self, clock: Clock, most: int) -> None:
        super().__init__(self)
        self.service = SharedOfWorker(MemoryState(Counters(lambda: clock.now, lambda: clock.wall, most)))
        self.is_away = False
        self.asked: list[str] = []
        self.to_hold: dict[int, Sequence[Wanted]] = {}

    def is_behind(self) -> bool:
        return self.is_away

    def tell(self, _: str, method: str, *values: Any) -> None:
        getattr(self.service, method)(*values)

    async def ask(self, _: str, method: str, *values: Any) -> Any:
        self.asked.append(method)
        if self.is_away:
            raise SharedAwayError
        return await getattr(self.service, method)(*values)

    @override
    def hold(self, lease: int, wanted: Sequence[Wanted]) -> None:
        self.to_hold[lease] = wanted

    @override
    def release(self, lease: int) -> None:
        self.to_hold.pop(lease, None)
        super().release(lease)


class Stage:
    """Limits with counters of their own, and with those of a store."""

    def __init__(self, *rules: dict[str, Any], most: int = 100, **settings: Any) -> None:
        self.clock = Clock()
        self.own, self.stored = Place(self.clock, most), Place(self.clock, most)
        self.limits = CallerLimits(self.own, self.stored)
        self.use(*rules, **settings)

    def use(self, *rules: dict[str, Any], **settings: Any) -> None:
        self.limits.use(LimitsSettings.model_validate({"rules": rules, **settings}))

    async def begin(self, caller: str = "key:ann", agent: str = "echo", **of: Any) -> Permit:
        return await self.limits.begin(replace(CallEntry("c", agent, caller, caller), **of))

    async def refused(self, caller: str = "key:ann", agent: str = "echo", **of: Any) -> CallLimitedError:
        with pytest.raises(CallLimitedError) as refused:
            await self.begin(caller, agent, **of)
        return refused.value

    async def ratios(self) -> dict[str, float]:
        await self.limits.measure()
        return dict(self.limits.ratios())


def in_database(*rules: dict[str, Any], **settings: Any) -> Stage:
    return Stage(*rules, store="database", **settings)


async def test_calls_that_no_rule_limits_ask_nobody() -> None:
    stage = Stage()
    assert not stage.limits.are_on
    assert await stage.begin() is NO_PERMIT
    stage.use({"caller": "key:bob", **RULE}, {"calls_per_minute": 1})
    assert stage.limits.are_on
    assert await stage.begin(is_nested=True) is NO_PERMIT
    assert stage.own.asked == []
    assert await stage.begin() is not NO_PERMIT
    assert stage.own.asked == ["acquire"]
    assert stage.stored.asked == []


@pytest.mark.parametrize(
    ("rule", "sentence", "unit"),
    [
        ({"calls_per_minute": 1}, "calls per minute to 1. Try again in 40 s.", "requests"),
        ({"calls_at_once": 1}, "calls at once to 1. Try again in 5 s.", "requests"),
        ({"tokens_per_day": 5}, "tokens per day to 5. Try again in 12 h 0 min.", "tokens"),
    ],
)
async def test_a_refusal_names_the_rule_its_limit_and_the_wait(rule: dict[str, Any], sentence: str, unit: str) -> None:
    stage = Stage({"name": "wide", "calls_per_minute": 9}, {"name": "narrow", **rule})
    await (await stage.begin()).charge(5)
    stage.clock.add(20.5)
    refused = await stage.refused()
    assert str(refused) == f"Rule 'narrow' limits {sentence}"
    assert (refused.rule, refused.limit, refused.unit) == ("narrow", next(iter(rule.values())), unit)
    assert f" {duration_text(refused.retry_after_seconds)}." in sentence
    assert (await stage.ratios())["wide"] == 1 / 9  # the refused call has taken nothing


async def test_an_ended_call_leaves_room_for_another() -> None:
    stage = Stage({"calls_at_once": 1})
    permit = await stage.begin()
    await stage.refused()
    permit.end(ENDED)
    (await stage.begin()).end(ENDED)
    permit.end(ENDED)
    await stage.begin()
    await stage.refused()


async def test_a_search_counts_as_a_call_and_requires_no_tokens() -> None:
    stage = Stage({"calls_per_minute": 2}, {"tokens_per_day": 5})
    await (await stage.begin()).charge(5)
    await stage.begin(agent="", action="search")
    assert (await stage.refused(agent="", action="search")).rule == "rule-1"
    assert (await stage.refused()).rule == "rule-2"


async def test_a_nested_call_counts_no_call_and_is_refused_without_a_budget() -> None:
    stage = Stage({"calls_per_minute": 1, "calls_at_once": 1, "tokens_per_day": 5, "per": "agent"})
    await stage.begin()
    nested = [await stage.begin("key:bob", is_nested=True) for _ in range(3)]
    assert await nested[0].charge(5) is not None
    assert (await stage.refused(is_nested=True)).unit == "tokens"


async def test_a_rule_that_is_not_enforced_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage({"calls_per_minute": 2, "calls_at_once": 1, "tokens_per_day": 5, "enforce": False})
    with caplog.at_level(logging.INFO, "pallas.limits"):
        permits = [await stage.begin() for _ in range(3)]
        assert [await permits[0].charge(tokens) for tokens in (4, 6, 5)] == [None, None, None]
    assert await stage.ratios() == {"rule-1": 3}
    reported = [record.__dict__ for record in caplog.records]
    assert [(one["measure"], one["limit"]) for one in reported] == [
        ("calls at once", 1),
        ("calls per minute", 2),
        ("calls at once", 1),
        ("tokens per day", 5),
    ]
    about = {(one["message"], one["rule"], one["agent"], one["call_id"], one["caller"]) for one in reported}
    assert about == {("limit exceeded", "rule-1", "echo", "c", "key:ann")}


@pytest.mark.parametrize(("rule", "charged"), [({"tokens_per_day": 9}, True), ({"calls_at_once": 9}, False)])
async def test_turns_are_charged_only_where_a_rule_limits_tokens(rule: dict[str, Any], *, charged: bool) -> None:
    assert (await Stage(rule).begin()).is_charged is charged


async def test_tokens_of_nested_calls_use_up_the_budget_that_an_agent_has_for_all_callers() -> None:
    stage = Stage({"agent": "search", "per": "agent", "tokens_per_day": 10})
    assert await stage.begin() is NO_PERMIT
    nested = await stage.begin(agent="search", is_nested=True)
    assert await nested.charge(9) is None
    other = await stage.begin("key:bob", "search")
    assert await nested.charge(1) is not None
    excess = await other.charge(0)
    assert excess is not None
    assert (excess.rule, excess.retry_after_seconds) == ("rule-1", NOON_TO_MIDNIGHT)
    assert excess.sentence == "Rule 'rule-1' limits tokens per day to 10. Try again in 12 h 0 min."
    await stage.refused("key:eve", "search", is_nested=True)
    await stage.begin()


async def test_a_reload_changes_limits_and_keeps_counters() -> None:
    stage = Stage({"calls_per_minute": 4}, {"agent": "echo", "calls_per_minute": 4})
    for _ in range(4):
        await stage.begin()
        stage.clock.add(1)
    stage.use({"agent": "echo", "name": "echo", "calls_per_minute": 5})
    assert stage.limits.ratios() == {}
    assert await stage.ratios() == {"echo": 0.8}
    await stage.begin()
    stage.use({"agent": "echo", "name": "echo", "calls_per_minute": 2})
    refused = await stage.refused()
    # Five calls, at 0, 1, 2, 3 and 4: the fourth must have left.
    assert (refused.rule, refused.retry_after_seconds) == ("echo", 59)


async def test_a_reload_changes_what_running_calls_are_charged_by_and_where() -> None:
    stage = in_database({"tokens_per_day": 5, "calls_at_once": 1})
    permit = await stage.begin()
    assert await permit.charge(5) is not None
    stage.use({"tokens_per_day": 100}, store="database")
    assert await permit.charge(0) is None
    stage.use({"calls_per_minute": 1}, store="database")
    assert await permit.charge(100) is None
    stage.use({"tokens_per_day": 5})
    assert await permit.charge(4) is None
    assert await permit.charge(1) is not None
    permit.end(ENDED)
    stage.use({"tokens_per_day": 50, "calls_at_once": 1}, store="database")
    await stage.begin()  # the lease in the database was released there


async def test_a_caller_reads_what_it_has_used_of_its_own_limits() -> None:
    rules = {"name": "all", **RULE}, {"name": "each", "per": "caller_and_agent", "calls_per_minute": 9}
    stage = Stage(*rules, {"per": "agent", "calls_per_minute": 9}, most=1)
    await (await stage.begin()).charge(7)
    stage.clock.add(20)
    await stage.begin("key:bob")
    assert await stage.limits.used("key:ann", "key:ann", ["echo", "search"]) == [
        UsedLimit("all", "", "calls_per_minute", 1, 40),
        UsedLimit("all", "", "calls_at_once", 1, None),
        UsedLimit("all", "", "tokens_per_day", 7, NOON_TO_MIDNIGHT - 20),
        UsedLimit("each", "echo", "calls_per_minute", 1, 40),
    ]
    assert await stage.limits.used("key:bob", "key:bob", ["echo"]) == []  # it shares its counters
    stage.own.is_away = True
    assert await stage.limits.used("key:ann", "key:ann", ["echo"]) == []


async def test_the_share_of_a_rule_is_the_largest_of_its_limits_as_last_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = in_database({"calls_per_minute": 4, "calls_at_once": 10}, {"name": "day", "tokens_per_day": 10})
    monkeypatch.setattr(caller_limits, "monotonic", lambda: stage.clock.now)
    assert stage.limits.ratios() == {}
    await (await stage.begin()).charge(8)
    assert await stage.ratios() == {"rule-1": 0.25, "day": 0.8}
    await stage.begin()
    stage.clock.add(MEASURE_EVERY_SECONDS - 1)
    assert (await stage.ratios())["rule-1"] == 0.25  # a database is read every few seconds
    stage.clock.add(1)
    assert (await stage.ratios())["rule-1"] == 0.5
    await stage.begin()
    stage.clock.add(MEASURE_EVERY_SECONDS)
    stage.stored.is_away = True
    assert (await stage.ratios())["rule-1"] == 0.5
    stage.use()
    assert await stage.ratios() == {}


async def test_what_was_measured_by_the_rules_before_a_reload_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage({"calls_per_minute": 1})

    async def reloaded(_: object) -> Sequence[tuple[int, int, int]]:
        stage.use({"name": "new", "calls_per_minute": 1})
        return [(1, 0, 0)]

    monkeypatch.setattr(stage.own, "busiest", reloaded)
    assert await stage.ratios() == {}


async def test_the_store_decides_alone_while_it_is_there() -> None:
    stage = in_database({"calls_per_minute": 1, "tokens_per_day": 9})
    stage.own.is_away = True
    permit = await stage.begin()
    assert await permit.charge(9) is not None
    assert (await stage.refused()).unit == "tokens"
    assert stage.own.asked == []


async def test_calls_are_counted_here_and_held_for_the_store_until_they_end() -> None:
    stage = in_database({"calls_at_once": 2})
    before = await stage.begin()
    stage.stored.is_away = True
    alone = [await stage.begin() for _ in range(2)]
    assert str(await stage.refused()) == "Rule 'rule-1' limits calls at once to 2. Try again in 5 s."
    assert [[one.calls_at_once for one in wanted] for wanted in stage.stored.to_hold.values()] == [[2], [2]]
    alone[0].end(ENDED)
    assert len(stage.stored.to_hold) == 1
    await stage.begin()
    stage.stored.is_away = False
    before.end(ENDED)  # released at the store, which has admitted it
    for _ in range(2):
        await stage.begin()
    await stage.refused()


async def test_calls_are_refused_if_so_set_and_those_that_run_go_on() -> None:
    rules = {"caller": "key:ann", **RULE}, {"caller": "key:eve", "calls_at_once": 1, "enforce": False}
    stage = in_database(*rules, when_store_is_away="refuse")
    running = await stage.begin()
    stage.stored.is_away = True
    refused = await stage.refused()
    assert str(refused) == (
        "The limits of this gateway cannot be checked now (rule 'rule-1'), because their database is not available. "
        "Try again in 5 s."
    )
    assert (refused.rule, refused.retry_after_seconds, refused.limit) == ("rule-1", 5, 3)
    assert await stage.begin("key:bob") is NO_PERMIT
    await stage.begin("key:eve")  # by a rule that is not enforced
    nested = await stage.begin(is_nested=True)
    assert await nested.charge(20) is None
    assert await running.charge(5) is None
    excess = await running.charge(5)
    assert excess is not None
    assert excess.sentence.startswith("Rule 'rule-1' limits tokens per day to 30.")
    stage.stored.is_away = False
    running.end(ENDED)
    nested.end(ENDED)
    # What was charged alone is not charged again, and the lease is gone.
    again = await stage.begin()
    assert await again.charge(29) is None
    assert await again.charge(1) is not None


@pytest.mark.parametrize("store", [None, "database"])
async def test_without_any_counters_only_calls_that_no_rule_can_refuse_are_admitted(store: str | None) -> None:
    stage = Stage(RULE, {"caller": "key:eve", "calls_at_once": 1, "enforce": False}, store=store)
    running = await stage.begin()
    stage.own.is_away = stage.stored.is_away = True
    with pytest.raises(AgentUnavailableError, match=DECISION):
        await stage.begin()
    nested = await stage.begin(is_nested=True)
    for permit in (running, nested):
        assert permit.is_charged
        assert await permit.charge(100) is None
        permit.end(ENDED)
    assert stage.stored.to_hold == {}
    stage.use({"calls_at_once": 1, "enforce": False}, store=store)
    for _ in range(2):
        (await stage.begin()).end(ENDED)
