"""Counters against a plain model that keeps every event, with time moved by the test."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pallas_gateway.config.model.limits import LimitsSettings
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.ledger.counters import Counter, Counters
from pallas_gateway.ledger.protocol import CallEntry, UsedLimit
from pallas_gateway.ledger.rules import Rules

if TYPE_CHECKING:
    from pallas_gateway.ledger.counters import Lease

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2
CALLERS, AGENTS = ("key:ann", "key:bob", "key:ci-1"), ("echo", "search")


@dataclass
class Clock:
    now: float = 0.0
    wall: float = NOON

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


def rules(*of: dict[str, Any]) -> Rules:
    return Rules(LimitsSettings.model_validate({"rules": of}))


def entry(caller: str = "key:ann", agent: str = "echo", *, parent: str | None = None, call_id: str = "c") -> CallEntry:
    return CallEntry(call_id, agent, caller, caller, None, "mcp", parent)


def counters(clock: Clock, *of: dict[str, Any], most: int = 10_000) -> Counters:
    made = Counters(lambda: clock.now, lambda: clock.wall, most)
    made.use(rules(*of))
    return made


def refusal(counted: Counters, asked: CallEntry) -> CallLimitedError | None:
    try:
        counted.begin(asked)
    except CallLimitedError as error:
        return error
    return None


def test_a_call_waits_until_the_oldest_of_the_window_leaves_it() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2})
    counted.begin(entry())
    clock.move(20)
    counted.begin(entry())
    clock.move(20.5)

    refused = refusal(counted, entry())

    assert refused is not None
    assert (refused.rule, refused.retry_after_seconds, refused.limit, refused.unit) == ("rule-1", 20, 2, "requests")
    assert str(refused) == "Rule 'rule-1' limits calls per minute to 2. Try again in 20 s."
    clock.move(refused.retry_after_seconds)
    assert refusal(counted, entry()) is None
    assert refusal(counted, entry()) is not None


def test_a_refused_call_takes_nothing_of_other_rules() -> None:
    clock = Clock()
    wide, narrow = {"calls_per_minute": 3, "calls_at_once": 3}, {"calls_per_minute": 1, "agent": "echo"}
    counted = counters(clock, wide, narrow)
    counted.begin(entry())
    for _ in range(5):
        refused = refusal(counted, entry())
        assert refused is not None
        assert refused.rule == "rule-2"
    assert counted.ratios() == pytest.approx({"rule-1": 1 / 3, "rule-2": 1})
    assert [refusal(counted, entry(agent="search")) is None for _ in range(3)] == [True, True, False]


def test_the_rule_with_the_longest_wait_is_named() -> None:
    clock = Clock()
    at_once, minute, day = {"calls_at_once": 1}, {"calls_per_minute": 1}, {"tokens_per_day": 5}
    counted = counters(clock, at_once, minute, day)
    lease = counted.begin(entry())
    assert (refused := refusal(counted, entry())) is not None
    assert (refused.rule, refused.retry_after_seconds) == ("rule-2", 60)
    clock.move(60)
    assert (refused := refusal(counted, entry())) is not None
    assert (refused.rule, refused.retry_after_seconds) == ("rule-1", 5)
    lease.end()
    counted.charge(entry(), 5)
    assert (refused := refusal(counted, entry())) is not None
    assert (refused.rule, refused.unit, refused.limit) == ("rule-3", "tokens", 5)
    assert refused.retry_after_seconds == DAY / 2 - 60


def test_a_budget_is_there_again_at_midnight_of_utc_and_only_once_if_the_clock_is_set_back() -> None:
    clock = Clock(wall=NOON + DAY / 2 - 1)
    counted = counters(clock, {"tokens_per_day": 10})
    assert counted.charge(entry(), 9) is None
    excess = counted.charge(entry(), 1)
    assert excess is not None
    assert (excess.rule, excess.retry_after_seconds) == ("rule-1", 1)
    clock.wall += 1
    assert counted.charge(entry(), 0) is None
    assert counted.charge(entry(), 10) is not None
    clock.wall -= 3 * DAY
    assert counted.charge(entry(), 0) is not None
    clock.wall += DAY
    assert counted.charge(entry(), 0) is None


def test_a_window_does_not_depend_on_the_wall_clock() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 1})
    counted.begin(entry())
    clock.wall += 10 * DAY
    assert refusal(counted, entry()) is not None


def test_a_search_counts_as_a_call_and_requires_no_tokens() -> None:
    counted = counters(Clock(), {"calls_per_minute": 2}, {"tokens_per_day": 5})
    counted.begin(entry())
    counted.charge(entry(), 5)
    search = replace(entry(agent=""), action="search")
    assert refusal(counted, search) is None
    assert (refused := refusal(counted, search)) is not None
    assert refused.rule == "rule-1"
    assert (refused := refusal(counted, entry())) is not None
    assert refused.rule == "rule-2"


def test_a_nested_call_counts_no_call_and_is_refused_without_a_budget() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 1, "calls_at_once": 1, "tokens_per_day": 5, "per": "agent"})
    counted.begin(entry())
    for _ in range(3):
        assert refusal(counted, entry(parent="p")) is None
    counted.charge(entry("key:bob", parent="p"), 5)
    refused = refusal(counted, entry(parent="p"))
    assert refused is not None
    assert refused.unit == "tokens"


def test_a_rule_that_is_not_enforced_counts_and_reports(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2, "calls_at_once": 1, "tokens_per_day": 5, "enforce": False})
    with caplog.at_level(logging.INFO, "pallas.limits"):
        for _ in range(4):
            assert refusal(counted, entry()) is None
        assert counted.charge(entry(), 4) is None
        assert counted.charge(entry(), 6) is None
        assert counted.charge(entry(), 5) is None
    assert counted.ratios() == {"rule-1": 4}
    reported = [(record.measure, record.rule, record.limit) for record in caplog.records]  # type: ignore[attr-defined]
    assert reported == [
        ("calls at once", "rule-1", 1),
        *[("calls per minute", "rule-1", 2), ("calls at once", "rule-1", 1)] * 2,
        ("tokens per day", "rule-1", 5),
    ]


def test_a_reload_changes_limits_and_keeps_counters() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 4}, {"agent": "echo", "calls_per_minute": 4})
    for _ in range(4):
        counted.begin(entry())
        clock.move(1)
    counted.use(rules({"agent": "echo", "name": "echo", "calls_per_minute": 5}))
    assert counted.ratios() == {"echo": 0.8}
    assert refusal(counted, entry()) is None
    counted.use(rules({"agent": "echo", "name": "echo", "calls_per_minute": 2}))
    refused = refusal(counted, entry())
    assert refused is not None
    # Five calls, at 0, 1, 2, 3 and 4: the fourth must have left.
    assert (refused.rule, refused.retry_after_seconds) == ("echo", 59)


def test_callers_beyond_the_limit_share_one_counter_and_an_empty_one_is_dropped_first() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2, "calls_at_once": 2}, most=2)
    leases = {name: counted.begin(entry(name)) for name in ("key:a", "key:b")}
    third = counted.begin(entry("key:c"))
    counted.begin(entry("key:d"))
    for shared in ("key:c", "key:d", "key:e"):
        assert refusal(counted, entry(shared)) is not None
    assert refusal(counted, entry("key:a")) is None
    clock.move(61)
    assert refusal(counted, entry("key:c")) is not None  # two calls of the shared counter run
    leases["key:b"].end()
    # A place is free. The calls of the shared counter may be of this caller, so they count for it until they end.
    assert refusal(counted, entry("key:c")) is not None
    third.end()
    assert refusal(counted, entry("key:c")) is None
    assert refusal(counted, entry("key:c")) is not None


def test_addresses_take_no_places_of_callers_with_a_key() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2, "tokens_per_day": 9}, most=2)
    for number in range(5):
        stranger = replace(entry("anonymous"), account=f"anonymous:2001:db8:{number}::/64")
        refusal(counted, stranger)
        counted.charge(stranger, 5)
    assert refusal(counted, stranger) is not None  # the counter that addresses share is used up
    for name in ("key:a", "key:b"):
        assert [refusal(counted, entry(name)) for _ in range(2)] == [None, None]
        assert [one.used for one in counted.used(name, name, ["echo"])] == [2, 0]
    assert counted.ratios() == {"rule-1": 15 / 9}


def test_one_site_does_not_take_the_counters_of_all_addresses() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2}, most=80)

    def calls(network: str) -> bool:
        """Call from a network; return True if that is allowed."""
        return refusal(counted, replace(entry("anonymous"), account=f"anonymous:{network}")) is None

    site = [calls(f"2001:db8:0:{number:x}::/64") for number in range(400)]
    assert site == [True] * 42 + [False] * 358  # half of all, and two calls from the counter of the site
    others = [calls(f"2001:db8:{number:x}::/64") for number in range(1, 21)]
    others += [calls(f"192.0.2.{number}") for number in range(10)]
    assert all(others)
    assert calls("2001:db8:0:1::/64")  # it has a counter
    own = [*counted.used("anonymous", "anonymous:2001:db8:0:ff::/64", ["echo"])]
    assert own == []  # it would show the calls of others
    clock.move(61)
    assert calls("2001:db8:0:ff::/64")


def test_a_caller_that_shares_a_counter_does_not_see_it() -> None:
    clock = Clock()
    counted = counters(clock, {"caller": "key:*", "calls_per_minute": 9}, most=1)
    counted.begin(entry("key:ann"))
    clock.move(20)
    counted.begin(entry("key:bob"))
    assert [*counted.used("key:ann", "key:ann", ["echo", "search"])] == [
        UsedLimit("rule-1", "", "calls_per_minute", 1, 40)
    ]
    assert [*counted.used("key:bob", "key:bob", ["echo"])] == []


def test_a_caller_does_not_see_the_calls_of_others_that_its_new_counter_begins_with() -> None:
    clock = Clock()
    counted = counters(clock, {"caller": "key:*", "calls_per_minute": 9}, most=1)
    counted.begin(entry("key:ann"))
    clock.move(30)
    counted.begin(entry("key:bob"))
    clock.move(31)
    counted.begin(entry("key:carl"))  # in the place of ann, with the shared call of bob
    assert [*counted.used("key:carl", "key:carl", ["echo"])] == []
    clock.move(60)
    counted.begin(entry("key:dora"))
    assert [*counted.used("key:dora", "key:dora", ["echo"])] == [UsedLimit("rule-1", "", "calls_per_minute", 1, 60)]


def test_the_ratios_read_only_counters_that_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 8, "calls_at_once": 4, "tokens_per_day": 10})
    for number in range(100):
        counted.begin(one := entry(f"key:{number}")).end()
        counted.charge(one, 3 if number == 50 else 1)
    counted.begin(entry("key:runs"))
    assert counted.ratios() == {"rule-1": 3 / 10}
    clock.move(61)
    assert counted.ratios() == {"rule-1": 3 / 10}
    read: list[Counter] = []
    started = Counter.started

    def noted(counter: Counter, now: float) -> int:
        read.append(counter)
        return started(counter, now)

    monkeypatch.setattr(Counter, "started", noted)
    clock.move(DAY)
    assert counted.ratios() == {"rule-1": 1 / 4}
    assert len(read) == 1


def test_a_counter_of_tokens_takes_few_bytes_once_its_calls_have_left_the_window() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 8, "calls_at_once": 4, "tokens_per_day": 10})
    tracemalloc.start()
    try:
        for number in range(1000):
            counted.begin(one := entry(f"key:{number}")).end()
            counted.charge(one, 1)
        clock.move(61)
        counted.ratios()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1000 * 700


def test_no_counter_is_left_of_a_caller_whose_place_another_has_taken() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 8, "calls_at_once": 4}, most=2)
    before = sum(isinstance(one, Counter) for one in gc.get_objects())
    for number in range(20):
        counted.begin(entry(f"key:{number}")).end()
        clock.move(61)
    assert sum(isinstance(one, Counter) for one in gc.get_objects()) <= before + 2


def test_most_callers_have_a_counter_of_their_own() -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 1})
    for number in range(10_000):
        assert refusal(counted, entry(f"key:{number}")) is None
    assert refusal(counted, entry("key:shared")) is None
    assert refusal(counted, entry("key:another")) is not None
    assert refusal(counted, entry("key:0")) is not None
    clock.move(60)
    assert refusal(counted, entry("key:another")) is None
    assert refusal(counted, entry("key:shared")) is None


@dataclass
class Plain:
    """Every event of one rule; numbers are counted by looking at all of them."""

    limits: dict[str, Any]
    starts: list[tuple[float, CallEntry]] = field(default_factory=list)
    running: list[tuple[CallEntry, Lease]] = field(default_factory=list)
    charges: list[tuple[int, CallEntry, int]] = field(default_factory=list)

    def matches(self, asked: CallEntry) -> bool:
        return self.limits["caller"] in {"*", asked.caller} and self.limits["agent"] in {"*", asked.agent}

    def is_same(self, one: CallEntry, other: CallEntry) -> bool:
        same_caller, same_agent = one.account == other.account, one.agent == other.agent
        return {"caller": same_caller, "agent": same_agent, "caller_and_agent": same_caller and same_agent}[
            self.limits["per"]
        ]

    def waits(self, asked: CallEntry, now: float, wall: float) -> list[float]:
        """The waits for room by each limit that has none."""
        most, begun = self.limits.get("calls_per_minute"), sorted(self.begun(asked, now))
        waits = [begun[-most] + 60 - now] if most and len(begun) >= most else []
        if (most := self.limits.get("calls_at_once")) and self.at_once(asked) >= most:
            waits.append(5)
        return [*waits, *self.budget_waits(asked, wall)]

    def budget_waits(self, asked: CallEntry, wall: float) -> list[float]:
        most = self.limits.get("tokens_per_day")
        return [DAY - wall % DAY] if most and self.tokens(asked, wall) >= most else []

    def begun(self, asked: CallEntry, now: float) -> list[float]:
        return [at for at, one in self.starts if at + 60 > now and self.is_same(one, asked)]

    def at_once(self, asked: CallEntry) -> int:
        return sum(self.is_same(one, asked) for one, _ in self.running)

    def tokens(self, asked: CallEntry, wall: float) -> int:
        return sum(tokens for day, one, tokens in self.charges if day == wall // DAY and self.is_same(one, asked))


LIMITS = st.fixed_dictionaries(
    {
        "caller": st.sampled_from(["*", *CALLERS]),
        "agent": st.sampled_from(["*", *AGENTS]),
        "per": st.sampled_from(["caller", "agent", "caller_and_agent"]),
        "enforce": st.sampled_from([True, True, True, False]),
        "calls_per_minute": st.integers(1, 4),
    },
    optional={"calls_at_once": st.integers(1, 3), "tokens_per_day": st.integers(1, 30)},
)
ENTRIES = st.builds(entry, st.sampled_from(CALLERS), st.sampled_from(AGENTS), parent=st.sampled_from([None, None, "p"]))


class CountersAndModel(RuleBasedStateMachine):
    """Every decision, wait, excess and ratio is that of the model."""

    calls = Bundle("calls")

    @initialize(of=st.lists(LIMITS, min_size=1, max_size=3))
    def begin(self, of: list[dict[str, Any]]) -> None:
        self.clock = Clock()
        self.counted = counters(self.clock, *of)
        self.plain = [Plain(limits) for limits in of]

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 7.5, 20.0, 59.75, 60.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.move(seconds)

    @rule(days=st.sampled_from([0.25, 1.0]))
    def clock_is_set_forward(self, days: float) -> None:
        self.clock.wall += days * DAY

    @rule(target=calls, asked=ENTRIES)
    def call(self, asked: CallEntry) -> tuple[CallEntry, Lease | None]:
        matching = [one for one in self.plain if one.matches(asked)]
        now, wall = self.clock.now, self.clock.wall
        enforced = [one for one in matching if one.limits["enforce"]]
        waits = [
            wait
            for one in enforced
            for wait in (one.budget_waits(asked, wall) if asked.parent else one.waits(asked, now, wall))
        ]
        if waits:
            with pytest.raises(CallLimitedError) as refused:
                self.counted.begin(asked)
            assert refused.value.retry_after_seconds == max(1, -(-max(waits) // 1))
            return asked, None
        lease = self.counted.begin(asked)
        for one in matching if asked.parent is None else ():
            one.starts.append((now, asked))
            one.running.append((asked, lease))
        return asked, lease

    @rule(call=consumes(calls))
    def end(self, call: tuple[CallEntry, Lease | None]) -> None:
        _, lease = call
        if lease is not None:
            lease.end()
            lease.end()
            for one in self.plain:
                one.running = [held for held in one.running if held[1] is not lease]

    @rule(asked=ENTRIES, tokens=st.integers(0, 20))
    def turn(self, asked: CallEntry, tokens: int) -> None:
        excess = self.counted.charge(asked, tokens)
        over = []
        for one in self.plain:
            if one.matches(asked) and "tokens_per_day" in one.limits:
                one.charges.append((int(self.clock.wall // DAY), asked, tokens))
                over += one.budget_waits(asked, self.clock.wall) if one.limits["enforce"] else []
        assert (excess is not None) == bool(over)

    @invariant()
    def ratios_are_those_of_the_busiest_counter(self) -> None:
        if not hasattr(self, "plain"):
            return
        some = [entry(caller, agent) for caller in CALLERS for agent in AGENTS]
        expected = {
            f"rule-{place}": max(
                max(
                    len(one.begun(asked, self.clock.now)) / one.limits["calls_per_minute"],
                    one.at_once(asked) / one.limits.get("calls_at_once", 1) * ("calls_at_once" in one.limits),
                    one.tokens(asked, self.clock.wall) / one.limits.get("tokens_per_day", 1),
                )
                for asked in some
            )
            for place, one in enumerate(self.plain, 1)
        }
        assert self.counted.ratios() == pytest.approx(expected)


TestCountersAndModel = CountersAndModel.TestCase
TestCountersAndModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 0.5, 10.0, 45.0]), st.booleans()), max_size=60
    ),
    most=st.integers(1, 4),
)
def test_few_counters_never_allow_a_caller_more_than_the_limit(
    events: list[tuple[str, float, bool]], most: int
) -> None:
    clock = Clock()
    counted = counters(clock, {"calls_per_minute": 2, "calls_at_once": 2}, most=most)
    begun: list[tuple[str, float]] = []
    running: list[tuple[str, Lease]] = []
    for caller, seconds, ends in events:
        clock.move(seconds)
        if ends and running:
            running.pop(0)[1].end()
        try:
            lease = counted.begin(entry(caller))
        except CallLimitedError:
            continue
        begun.append((caller, clock.now))
        running.append((caller, lease))
        assert sum(one == caller and at + 60 > clock.now for one, at in begun) <= 2
        assert sum(one == caller for one, _ in running) <= 2
    clock.move(60)
    for _, lease in running:
        lease.end()
    assert counted.ratios() == {"rule-1": 0}
