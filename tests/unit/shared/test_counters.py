"""Counters in memory: their number, their size, and what those without a counter of their own share."""

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.shared.counters import MOST_COUNTERS, CountedLease, Counter, Counters
from pallas_gateway.shared.protocol import UsedCounter, Wanted
from tests.support.shared_state import DAY, Clock, wanted


class Counted(Counters):
    def __init__(self, most: int = MOST_COUNTERS) -> None:
        self.clock = Clock()
        super().__init__(lambda: self.clock.now, lambda: self.clock.wall, most)

    def begin(self, *of: Wanted) -> CountedLease | None:
        """Return the lease of a call; None if it is refused."""
        answer, lease = self.acquire(of)
        return lease if answer.refused is None else None

    def call(self, of: Wanted) -> None:
        """Count a call that ends at once."""
        lease = self.begin(of)
        assert lease is not None
        lease.end()

    def used(self, of: Wanted) -> UsedCounter | None:
        (used,) = self.read([of])
        return used

    def most(self) -> tuple[int, int, int]:
        (most,) = self.busiest([wanted().scope])
        return most


def test_a_window_does_not_depend_on_the_wall_clock() -> None:
    counted = Counted()
    assert counted.begin(wanted(minute=1))
    counted.clock.wall += 10 * DAY
    assert not counted.begin(wanted(minute=1))


def test_a_clock_that_was_set_back_gives_the_budget_of_the_next_day() -> None:
    counted = Counted()
    of = [wanted(tokens=10)]
    assert counted.add(of, 10).refused is not None
    counted.clock.wall -= 3 * DAY
    assert counted.add(of, 0).refused is not None
    counted.clock.wall += DAY
    assert counted.add(of, 0).refused is None


def test_an_empty_counter_makes_place_for_a_caller_which_begins_with_the_shared_numbers() -> None:
    counted = Counted(most=2)
    of = {name: wanted(name, minute=2, at_once=2) for name in ("key:a", "key:b", "key:c", "key:d", "key:e")}
    leases = {name: counted.begin(of[name]) for name in ("key:a", "key:b", "key:c", "key:d")}
    assert not any(counted.begin(of[shared]) for shared in ("key:c", "key:d", "key:e"))
    counted.clock.add(61)
    assert not counted.begin(of["key:c"])  # two calls of the shared counter run
    for name in ("key:b", "key:c"):
        # A place is free. The calls of the shared counter may be of this caller, so they count for it until they end.
        assert not counted.begin(of["key:c"])
        lease = leases[name]
        assert lease is not None
        lease.end()
    assert counted.begin(of["key:c"])
    assert not counted.begin(of["key:c"])


def test_one_site_does_not_take_the_counters_of_all_addresses() -> None:
    counted = Counted(most=80)

    def calls(network: str) -> bool:
        """Call from a network; return True if that is allowed."""
        return counted.begin(wanted(f"anonymous:{network}", minute=2)) is not None

    site = [calls(f"2001:db8:0:{number:x}::/64") for number in range(400)]
    assert site == [True] * 42 + [False] * 358  # half of all, and two calls from the counter of the site
    others = [calls(f"2001:db8:{number:x}::/64") for number in range(1, 21)]
    others += [calls(f"192.0.2.{number}") for number in range(10)]
    assert all(others)
    assert calls("2001:db8:0:1::/64")  # it has a counter
    assert counted.used(wanted("anonymous:2001:db8:0:ff::/64")) is None  # it would show the calls of others
    counted.clock.add(61)
    assert calls("2001:db8:0:ff::/64")


def test_a_caller_does_not_see_the_calls_of_others_that_its_counter_has_or_began_with() -> None:
    counted = Counted(most=1)
    counted.begin(wanted("key:ann", minute=9))
    counted.clock.add(30)
    counted.begin(wanted("key:bob", minute=9))
    assert counted.used(wanted("key:ann")) == UsedCounter(1, 30, 0, 0, DAY / 2 - 30)
    assert counted.used(wanted("key:bob")) is None
    counted.clock.add(31)
    counted.begin(wanted("key:carl", minute=9))  # in the place of ann, with the shared call of bob
    assert counted.used(wanted("key:carl")) is None
    counted.clock.add(60)
    counted.begin(wanted("key:dora", minute=9))
    assert counted.used(wanted("key:dora")) == UsedCounter(1, 60, 0, 0, DAY / 2 - 121)


def test_the_busiest_are_found_among_counters_in_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    for number in range(100):
        of = wanted(f"key:{number}", minute=8, at_once=4, tokens=10)
        counted.call(of)
        counted.add([of], 3 if number == 50 else 1)
    counted.begin(wanted("key:runs", minute=8, at_once=4))
    assert counted.most() == (1, 1, 3)
    counted.clock.add(61)
    assert counted.most() == (0, 1, 3)
    read: list[Counter] = []
    started = Counter.started

    def noted(counter: Counter, now: float) -> int:
        read.append(counter)
        return started(counter, now)

    monkeypatch.setattr(Counter, "started", noted)
    counted.clock.add(DAY)
    assert counted.most() == (0, 1, 0)
    assert len(read) == 1


def test_a_counter_of_tokens_takes_few_bytes_once_its_calls_have_left_the_window() -> None:
    counted = Counted()
    tracemalloc.start()
    try:
        for number in range(1000):
            of = wanted(f"key:{number}", minute=8, at_once=4, tokens=10)
            counted.call(of)
            counted.add([of], 1)
        counted.clock.add(61)
        counted.most()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1000 * 700


def test_no_counter_is_left_of_a_caller_whose_place_another_has_taken() -> None:
    counted = Counted(most=2)
    before = sum(isinstance(one, Counter) for one in gc.get_objects())
    for number in range(20):
        counted.call(wanted(f"key:{number}", minute=8, at_once=4))
        counted.clock.add(61)
    of_table = 2  # what callers share, and the most of any
    assert sum(isinstance(one, Counter) for one in gc.get_objects()) <= before + of_table + 2


def test_most_callers_have_a_counter_of_their_own() -> None:
    counted = Counted()
    assert all(counted.begin(wanted(f"key:{number}", minute=1)) for number in range(MOST_COUNTERS))
    assert counted.begin(wanted("key:shared", minute=1))
    assert not counted.begin(wanted("key:another", minute=1))
    assert not counted.begin(wanted("key:0", minute=1))
    counted.clock.add(60)
    assert counted.begin(wanted("key:another", minute=1))
    assert counted.begin(wanted("key:shared", minute=1))


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
    counted = Counted(most)
    begun: list[tuple[str, float]] = []
    running: list[tuple[str, CountedLease]] = []
    for caller, seconds, ends in events:
        counted.clock.add(seconds)
        if ends and running:
            running.pop(0)[1].end()
        if (lease := counted.begin(wanted(caller, minute=2, at_once=2))) is None:
            continue
        begun.append((caller, counted.clock.now))
        running.append((caller, lease))
        assert sum(one == caller and at + 60 > counted.clock.now for one, at in begun) <= 2
        assert sum(one == caller for one, _ in running) <= 2
    counted.clock.add(60)
    for _, lease in running:
        lease.end()
    assert counted.most() == (0, 0, 0)
