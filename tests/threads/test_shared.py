"""The shared state, by any carrier: what several holders have in common."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from pallas_gateway.errors import RETRY_AFTER_SECONDS
from pallas_gateway.shared.protocol import Over, SharedAnswer, SharedAwayError, UsedCounter, Wanted
from tests.support.fair_time import FairLoop
from tests.support.shared_state import CARRIERS, DAY, wanted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pallas_gateway.shared.protocol import Shared
    from tests.support.postgresql import PostgreSql
    from tests.support.shared_state import Carrier, Clock

MARKS = {"postgresql": [pytest.mark.needs("postgresql"), pytest.mark.whole]}
ADMITTED = SharedAnswer(None)


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in CARRIERS])
async def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Carrier]:
    url = f"sqlite:///{tmp_path}/shared.db"
    if request.param == "postgresql":
        server: PostgreSql = request.getfixturevalue("server")
        url = server.new_database()
    async with CARRIERS[request.param](url) as opened:
        yield opened


async def two_of(carrier: Carrier) -> tuple[Shared, Shared]:
    return await carrier.holder(), await carrier.holder()


async def is_admitted(holder: Shared, lease: int, *of: Wanted) -> bool:
    return (await holder.acquire(lease, of)).refused is None


def about(answer: SharedAnswer) -> Any:
    """An answer that is compared with another one but for milliseconds."""
    refused = [answer.refused] if answer.refused is not None else []
    return [(one.place, one.measure, pytest.approx(one.wait_seconds, abs=0.002)) for one in refused], [
        (one.place, one.measure, pytest.approx(one.wait_seconds, abs=0.002)) for one in answer.reported
    ]


# Calls of a minute


async def test_a_call_waits_until_the_oldest_of_all_holders_leaves_the_window(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    of = wanted(minute=2)
    assert await one.acquire(1, [of]) == ADMITTED
    await carrier.clock.move(20)
    assert await two.acquire(1, [of]) == ADMITTED
    await carrier.clock.move(20.5)
    for holder in (one, two):
        assert about(await holder.acquire(2, [of])) == about(SharedAnswer(Over(0, "calls per minute", 19.5)))
    assert await is_admitted(one, 3, wanted("key:bob", minute=2))
    assert await is_admitted(one, 4, wanted(agent="echo", minute=2))
    assert await is_admitted(one, 5, wanted(scope=2, minute=2))
    await carrier.clock.move(19.5)
    assert await is_admitted(two, 6, of)
    assert not await is_admitted(one, 6, of)


async def test_of_many_calls_at_once_exactly_as_many_begin_as_are_allowed(carrier: Carrier) -> None:
    holders = await two_of(carrier)
    wide, narrow = wanted(scope=1, minute=100), wanted(scope=2, minute=40)
    asked = [is_admitted(one, number, wide, narrow) for number in range(60) for one in holders]
    assert sum(await asyncio.gather(*asked)) == 40
    others = [is_admitted(one, number, wide) for number in range(60, 120) for one in holders]
    assert sum(await asyncio.gather(*others)) == 60  # a refused call has counted nowhere


# Calls at once


async def test_a_running_call_counts_at_all_holders_until_its_lease_is_released(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    of = wanted(at_once=2)
    assert await is_admitted(one, 1, of)
    assert await is_admitted(two, 1, of)
    for holder in (one, two):
        assert (await holder.acquire(2, [of])).refused == Over(0, "calls at once", RETRY_AFTER_SECONDS)
    for lease in (1, 1, 2, 99):  # ended, refused, and unknown
        one.release(lease)
    await carrier.settle(one)
    assert await is_admitted(two, 3, of)
    assert not await is_admitted(one, 3, of)
    two.release(1)
    assert await is_admitted(two, 4, of)  # the end is there with the next call of the same holder


async def test_what_a_holder_held_ends_with_it(carrier: Carrier) -> None:
    killed, other = await two_of(carrier)
    of = wanted(at_once=2, tokens=9)
    assert await is_admitted(killed, 1, of)
    assert await is_admitted(other, 1, of)
    await killed.add([of], 5)
    assert not await is_admitted(other, 2, of)
    await carrier.kill(killed)
    assert await is_admitted(other, 2, of)
    assert not await is_admitted(other, 3, of)
    assert (await other.add([of], 4)).refused is not None  # the tokens stay


async def test_an_acquire_that_is_cancelled_holds_nothing(carrier: Carrier) -> None:
    one, other = await two_of(carrier)
    of = wanted(at_once=1)
    for turns in range(30):
        asking = asyncio.ensure_future(one.acquire(turns + 1, [of]))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not asking.cancel():
            one.release(turns + 1)
        await asyncio.wait({asking})
        await carrier.settle(one)
        [used] = await other.read([of])
        assert used is not None
        assert used.running == 0


# Tokens


async def test_tokens_of_a_day_are_used_up_at_all_holders_until_midnight(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    of = wanted(tokens=10, minute=5)
    used_up = SharedAnswer(Over(0, "tokens per day", DAY / 2))
    assert await one.add([of], 9) == ADMITTED
    assert await two.add([of], 0) == ADMITTED
    assert await two.add([of], 1) == used_up
    assert await one.add([of], 0) == await one.acquire(1, [of]) == used_up
    assert await one.add([wanted(minute=5)], 50) == ADMITTED  # what is not limited is not counted
    carrier.clock.wall -= 3 * DAY  # a clock that is set back gives no budget twice
    assert (await one.add([of], 0)).refused is not None
    carrier.clock.wall += 3 * DAY + DAY / 2
    assert await one.acquire(1, [of]) == ADMITTED
    assert await two.add([of], 9) == ADMITTED
    assert await one.add([of], 1) == SharedAnswer(Over(0, "tokens per day", DAY))


# Several counters


async def test_the_limit_with_the_longest_wait_refuses(carrier: Carrier) -> None:
    one = await carrier.holder()
    of = [wanted(scope=1, at_once=1), wanted(scope=2, minute=1), wanted(scope=3, tokens=5)]
    assert await one.acquire(1, of) == ADMITTED
    assert about(await one.acquire(2, of)) == about(SharedAnswer(Over(1, "calls per minute", 60)))
    await carrier.clock.move(60)
    assert await one.acquire(2, of) == SharedAnswer(Over(0, "calls at once", RETRY_AFTER_SECONDS))
    await one.add(of, 5)
    assert await one.acquire(2, of) == SharedAnswer(Over(2, "tokens per day", DAY / 2 - 60))


async def test_a_refused_call_counts_nowhere_and_adds_nothing_to_what_is_read(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    wide, narrow = wanted(scope=1, minute=9, at_once=9), wanted(scope=2, minute=1)
    assert await is_admitted(one, 1, wide, narrow)
    await carrier.clock.move(7)
    for lease in range(2, 5):
        assert (await two.acquire(lease, [wide, narrow])).refused is not None
    await two.add([wanted(scope=3, tokens=5)], 3)
    read = await two.read([wide, narrow, wanted(scope=3), wanted("key:bob"), wanted(agent="echo")])
    left = DAY / 2 - 7
    none = UsedCounter(0, None, 0, 0, left)
    assert [pytest.approx(used) for used in read] == [
        UsedCounter(1, 53, 1, 0, left),
        UsedCounter(1, 53, 0, 0, left),
        none._replace(tokens=3),
        none,
        none,
    ]


async def test_what_is_not_enforced_is_counted_and_reported(carrier: Carrier) -> None:
    one = await carrier.holder()
    of = [wanted(scope=1, minute=2, at_once=1, tokens=5, enforced=False), wanted(scope=2, minute=4)]
    at_once, minute = Over(0, "calls at once", RETRY_AFTER_SECONDS), Over(0, "calls per minute", 60)
    day = Over(0, "tokens per day", DAY / 2)
    assert await one.acquire(1, of) == ADMITTED
    assert await one.acquire(2, of) == SharedAnswer(None, (at_once,))
    assert about(await one.acquire(3, of)) == about(SharedAnswer(None, (minute, at_once)))
    assert await one.add(of, 4) == ADMITTED
    assert await one.add(of, 6) == SharedAnswer(None, (day,))
    assert await one.add(of, 5) == ADMITTED  # reported already
    assert about(await one.acquire(4, of)) == about(SharedAnswer(None, (day, minute, at_once)))
    assert about(await one.acquire(5, of)) == about(SharedAnswer(Over(1, "calls per minute", 60)))
    [used, _] = await one.read(of)
    assert used is not None
    assert used[2:4] == (4, 15)


async def test_the_busiest_counters_of_each_scope_are_found(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    scopes = [wanted(scope=number).scope for number in (1, 2, 3)]
    assert [*await one.busiest(scopes)] == [(0, 0, 0)] * 3
    for lease, account in enumerate(["key:ann", "key:bob", "key:bob", "anonymous:192.0.2.7"], 1):
        await one.acquire(lease, [wanted(account, minute=9, at_once=9)])
    one.release(2)
    await carrier.settle(one)
    await two.add([wanted("anonymous:192.0.2.7", tokens=9)], 7)
    await two.add([wanted(scope=2, tokens=9)], 3)
    assert [*await two.busiest(scopes)] == [(2, 1, 7), (0, 0, 3), (0, 0, 0)]
    await carrier.clock.move(DAY)
    assert [*await two.busiest(scopes)] == [(0, 1, 0), (0, 0, 0), (0, 0, 0)]


async def test_counters_beyond_the_most_of_a_scope_share_one(carrier: Carrier) -> None:
    carrier.most = 2
    one, two = await two_of(carrier)
    for account in ("key:a", "key:b", "key:c", "key:d"):
        assert await is_admitted(one, 1, wanted(account, minute=2))
    assert not await is_admitted(two, 1, wanted("key:e", minute=2))
    assert await is_admitted(two, 1, wanted("key:a", minute=2))
    # Addresses take no places of callers with a key.
    strangers = [wanted(f"anonymous:192.0.2.{number}", minute=2) for number in range(5)]
    assert [await is_admitted(one, 1, stranger) for stranger in strangers] == [True] * 4 + [False]
    assert await is_admitted(two, 1, wanted("key:e", minute=2, scope=2))


# Values


async def test_the_first_value_of_a_key_is_kept_for_all_holders(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    assert await one.first("key", "one", 60) == "one"
    assert await two.first("key", "two", 60) == "one"
    assert await two.first("another", "two", 60) == "two"
    for holder, key, value in ((two, "key", "two"), (one, "another", "one"), (one, "unknown", "one")):
        await holder.forget(key, value)
    assert await two.first("key", "two", 60) == "one"
    await one.forget("key", "one")
    assert await two.first("key", "two", 60) == "two"
    await carrier.kill(two)
    assert await one.first("key", "one", 60) == "two"


async def test_one_of_many_values_at_once_is_kept(carrier: Carrier) -> None:
    holders = await two_of(carrier)
    asked = [one.first("key", f"{number}", 60) for number, one in enumerate(holders * 10)]
    assert len({*await asyncio.gather(*asked)}) == 1


async def test_a_value_is_kept_until_it_expires(carrier: Carrier) -> None:
    one, two = await two_of(carrier)
    await one.first("short", "one", 10)
    await one.first("long", "one", 20)
    await carrier.clock.move(9)
    await carrier.clean()
    assert await two.first("short", "two", 60) == "one"
    await carrier.clock.move(2)
    await carrier.clean()
    assert await two.first("short", "two", 60) == "two"
    assert await two.first("long", "two", 60) == "one"


@pytest.mark.parametrize("name", ["remote", "sqlite"])
async def test_a_state_that_is_away_is_reported_by_every_method(name: str, tmp_path: Path) -> None:
    of, told = [wanted(minute=9, at_once=9, tokens=9)], (1, "key", "value")
    async with CARRIERS[name](f"sqlite:///{tmp_path}/shared.db") as carrier:
        one, two = await two_of(carrier)
        await one.acquire(1, of)
        carrier.cut(one)
        for asked in (one.acquire(2, of), one.add(of, 1), one.read(of), one.busiest([of[0].scope])):
            with pytest.raises(SharedAwayError):
                await asked
        with pytest.raises(SharedAwayError):
            await one.first(*told[1:], 60)
        one.release(1)
        assert await two.first("key", "other", 60) == "other"
        [used] = await two.read(of)
        assert used is not None
        assert (used.started, used.tokens) == (1, 0)


# The random walk


@dataclass
class Plain:
    """Every event of one rule; numbers are counted by looking at all of them."""

    scope: int
    limits: dict[str, Any]
    starts: list[tuple[float, Wanted]] = field(default_factory=list)
    running: dict[int, Wanted] = field(default_factory=dict)  # by their leases
    charges: list[tuple[int, Wanted, int]] = field(default_factory=list)

    def wanted(self, account: str, agent: str, *, counts: bool = True) -> Wanted:
        per, limits = self.limits["per"], self.limits
        return Wanted(
            ("*", limits["agent"], per, self.scope),
            account if per != "agent" else "",
            agent if per != "caller" else "",
            limits["minute"] if counts else None,
            limits.get("at_once") if counts else None,
            limits.get("tokens"),
            limits["enforced"],
        )

    def over(self, place: int, of: Wanted, clock: Clock) -> tuple[list[Over], list[Over]]:
        """The limits without room: of tokens, and others."""
        begun = sorted(at for at, one in self.starts if at + 60 > clock.now and is_same(one, of))
        others = []
        if of.calls_per_minute and len(begun) >= of.calls_per_minute:
            others.append(Over(place, "calls per minute", begun[-of.calls_per_minute] + 60 - clock.now))
        if of.calls_at_once and sum(is_same(one, of) for one in self.running.values()) >= of.calls_at_once:
            others.append(Over(place, "calls at once", RETRY_AFTER_SECONDS))
        is_used_up = of.tokens_per_day and self.tokens(of, clock) >= of.tokens_per_day
        return [Over(place, "tokens per day", DAY - clock.wall % DAY)] if is_used_up else [], others

    def tokens(self, of: Wanted, clock: Clock) -> int:
        return sum(tokens for day, one, tokens in self.charges if day == clock.wall // DAY and is_same(one, of))


def is_same(one: Wanted, other: Wanted) -> bool:
    return (one.account, one.agent) == (other.account, other.agent)


AGENTS, ACCOUNTS = ("echo", "search"), ("key:ann", "key:bob", "anonymous:192.0.2.7")
LIMITS = st.fixed_dictionaries(
    {
        "agent": st.sampled_from(["*", *AGENTS]),
        "per": st.sampled_from(["caller", "agent", "caller_and_agent"]),
        "enforced": st.sampled_from([True, True, True, False]),
        "minute": st.integers(1, 4),
    },
    optional={"at_once": st.integers(1, 3), "tokens": st.integers(1, 30)},
)
CALLERS = st.tuples(st.sampled_from(ACCOUNTS), st.sampled_from(AGENTS))
PLACES = st.integers(0, 1)


class Walk(RuleBasedStateMachine):
    """All carriers, each with two holders, answer as the model, while the test moves their time."""

    names: Sequence[str]
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=FairLoop)
        self.folder = Path(tempfile.mkdtemp())
        self.open = AsyncExitStack()
        self.carriers: list[tuple[Carrier, list[Shared]]] = []
        self.holders: dict[int, int] = {}
        self.values: dict[str, tuple[str, float]] = {}

    @override
    def teardown(self) -> None:
        self.runner.run(self.open.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize(of=st.lists(LIMITS, min_size=1, max_size=3))
    def begin(self, of: list[dict[str, Any]]) -> None:
        self.plain = [Plain(scope, limits) for scope, limits in enumerate(of, 1)]
        self.runner.run(self._opened())

    async def _opened(self) -> None:
        for name in self.names:
            carrier = await self.open.enter_async_context(CARRIERS[name](f"sqlite:///{self.folder}/{name}.db"))
            self.carriers.append((carrier, [*await two_of(carrier)]))
        self.clock = self.carriers[0][0].clock

    def answers(self, at: int, method: str, *values: Any) -> list[Any]:
        """What a holder of each carrier answers."""

        async def asked() -> list[Any]:
            return [await getattr(holders[at], method)(*values) for _, holders in self.carriers]

        return self.runner.run(asked())

    def at_all(self, work: Any) -> None:
        async def done() -> None:
            for carrier, holders in self.carriers:
                await work(carrier, holders)

        self.runner.run(done())

    def of(self, caller: tuple[str, str], *, counts: bool = True) -> list[tuple[Plain, Wanted]]:
        account, agent = caller
        matching = [one for one in self.plain if one.limits["agent"] in {"*", agent}]
        return [(one, one.wanted(account, agent, counts=counts)) for one in matching]

    @rule(seconds=st.sampled_from([0.25, 1.0, 7.5, 20.0, 59.75, 60.0, 61.0, DAY]))
    def time_passes(self, seconds: float) -> None:
        self.at_all(lambda carrier, _: carrier.clock.move(seconds))

    @rule()
    def what_is_over_is_removed(self) -> None:
        self.at_all(lambda carrier, _: carrier.clean())

    @rule(target=calls, caller=CALLERS, counts=st.sampled_from([True, True, False]), at=PLACES)
    def call(self, caller: tuple[str, str], at: int, *, counts: bool) -> int:
        lease = len(self.holders) + 1
        self.holders[lease] = at
        of = self.of(caller, counts=counts)
        over = [one.over(place, asked, self.clock) for place, (one, asked) in enumerate(of)]
        found = [*(one for tokens, _ in over for one in tokens), *(one for _, others in over for one in others)]
        enforced = [one for one in found if of[one.place][1].enforced]
        refused = max(enforced, key=lambda one: one.wait_seconds, default=None)
        expected = SharedAnswer(refused, () if refused is not None else tuple(found))
        answers = self.answers(at, "acquire", lease, [asked for _, asked in of])
        assert [about(one) for one in answers] == [about(expected)] * len(answers)
        for one, asked in of if refused is None else ():
            if counts:
                one.starts.append((self.clock.now, asked))
                one.running[lease] = asked
        return lease

    @rule(lease=consumes(calls))
    def end(self, lease: int) -> None:
        at = self.holders[lease]

        async def released(carrier: Carrier, holders: list[Shared]) -> None:
            holders[at].release(lease)
            await carrier.settle(holders[at])

        self.at_all(released)
        for one in self.plain:
            one.running.pop(lease, None)

    @rule(caller=CALLERS, tokens=st.integers(0, 20), at=PLACES)
    def turn(self, caller: tuple[str, str], tokens: int, at: int) -> None:
        of = self.of(caller, counts=False)
        day, used_up, reported = int(self.clock.wall // DAY), list[Over](), list[Over]()
        for place, (one, asked) in enumerate(of):
            before = one.over(place, asked, self.clock)[0]
            one.charges.append((day, asked, tokens))
            after = one.over(place, asked, self.clock)[0]
            if asked.enforced:
                used_up += after
            elif not before:
                reported += after
        expected = SharedAnswer(used_up[0] if used_up else None, tuple(reported))
        answers = self.answers(at, "add", [asked for _, asked in of], tokens)
        assert [about(one) for one in answers] == [about(expected)] * len(answers)

    @rule(at=PLACES)
    def look(self, at: int) -> None:
        for one in self.plain:
            of = {one.wanted(account, agent) for account in ACCOUNTS for agent in AGENTS}
            read = self.answers(at, "read", [*of])
            started = [[at for at, two in one.starts if at + 60 > self.clock.now and is_same(two, x)] for x in of]
            running = [sum(is_same(two, x) for two in one.running.values()) for x in of]
            tokens = [one.tokens(x, self.clock) if x.tokens_per_day else 0 for x in of]
            for used in read:
                assert [(x.started, x.running, x.tokens) for x in used] == [
                    *zip(map(len, started), running if "at_once" in one.limits else [0] * len(of), tokens, strict=True)
                ]
                leaves = [x.leaves_seconds for x in used]
                assert leaves == [
                    pytest.approx(min(x) + 60 - self.clock.now, abs=0.002) if x else None for x in started
                ]
            most = max(map(len, started)), max(running) if "at_once" in one.limits else 0, max(tokens)
            busiest = self.answers(at, "busiest", [next(iter(of)).scope])
            assert [[*found] for found in busiest] == [[most]] * len(busiest)

    @rule(at=PLACES)
    def kill(self, at: int) -> None:
        async def killed(carrier: Carrier, holders: list[Shared]) -> None:
            await carrier.kill(holders[at])
            holders[at] = await carrier.holder()

        self.at_all(killed)
        for one in self.plain:
            one.running = {lease: of for lease, of in one.running.items() if self.holders[lease] != at}

    @rule(key=st.sampled_from("ab"), at=PLACES, seconds=st.sampled_from([5.0, 60.0]))
    def first(self, key: str, at: int, seconds: float) -> None:
        self.at_all(lambda carrier, _: carrier.clean())
        kept, until = self.values.get(key, ("", 0.0))
        if until <= self.clock.now:
            kept, until = self.values[key] = f"{at}", self.clock.now + seconds
        assert self.answers(at, "first", key, f"{at}", seconds) == [kept] * len(self.carriers)

    @rule(key=st.sampled_from("ab"), at=PLACES)
    def forget(self, key: str, at: int) -> None:
        self.answers(at, "forget", key, f"{at}")
        if self.values.get(key, ("", 0.0))[0] == f"{at}":
            del self.values[key]


class WalkInMemory(Walk):
    names = ("memory", "remote")


class WalkOnSqlite(Walk):
    names = ("memory", "sqlite")


TestWalkInMemory = WalkInMemory.TestCase
TestWalkInMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWalkOnSqlite = WalkOnSqlite.TestCase
TestWalkOnSqlite.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
