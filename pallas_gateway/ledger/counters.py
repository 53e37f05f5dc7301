"""Counters of one process: calls of the last 60 seconds, calls at once, and tokens of the day, for each rule.

All of it is synchronous, so an admission is atomic: either every matching rule counts the call, or none does. Windows
are measured by the monotonic clock, days by the wall clock.
"""

from __future__ import annotations

import collections
import logging
from bisect import bisect_right
from collections import OrderedDict
from math import ceil
from time import monotonic, time
from typing import TYPE_CHECKING

from pallas_gateway.errors import RETRY_AFTER_SECONDS
from pallas_gateway.identity.caller import site_of
from pallas_gateway.ledger.protocol import UsedLimit
from pallas_gateway.ledger.rules import Exceeded, tightest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pallas_gateway.calls.permit import Excess
    from pallas_gateway.config.model.limits import RuleSettings
    from pallas_gateway.ledger.counter_rows import StoredCounter
    from pallas_gateway.ledger.protocol import CallEntry
    from pallas_gateway.ledger.rules import Key, Rule, Rules, Scope

    type Counting = Counter | StoredCounter

MOST_COUNTERS = 10_000
"""Counters of one rule for keys and tokens, and as many for addresses; callers beyond them share one of each."""
_SITES = 40
"""Sites that fill all counters for addresses: in a table that is half full, further addresses of a site share one."""
WINDOW_SECONDS = 60.0
DAY_SECONDS = 86_400
_EXAMINED = 100
"""Counters that are examined for an empty one when there are too many; the next call goes on with the others."""
_log = logging.getLogger("pallas.limits")


_NO_LEASES: frozenset[Lease] = frozenset()


class Lease:
    """One running call in the counters of calls at once."""

    __slots__ = ("_counters", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._counters: list[Counter] = []

    def taken_from(self, counter: Counter) -> None:
        counter.take(self)
        self._counters.append(counter)

    def end(self) -> None:
        """Release the lease; a second time does nothing."""
        self.ended = True
        while self._counters:
            self._counters.pop().release(self)


class Counter:
    """What one rule has counted for one caller, agent, or both. `has_others`: it began with the numbers of others."""

    __slots__ = ("_day", "_leave", "_tokens", "has_others", "leases")

    def __init__(self) -> None:
        self._leave: list[float] = []  # when each call of the window leaves it; an empty deque takes 700 bytes
        self.leases: set[Lease] | frozenset[Lease] = _NO_LEASES
        self._day = 0
        self._tokens = 0
        self.has_others = False

    def copy(self) -> Counter:
        """Return a counter with the same numbers; leases that end are removed from it by `is_empty` and `running`."""
        other = Counter()
        other.has_others = True
        other._leave = [*self._leave]
        other.leases = set(self.leases)
        other._day, other._tokens = self._day, self._tokens
        return other

    def started(self, now: float) -> int:
        """Return the number of calls that began in the last 60 seconds."""
        del self._leave[: bisect_right(self._leave, now)]
        return len(self._leave)

    def next_leave(self, now: float) -> float | None:
        """Return the seconds until the oldest call leaves the window; None for an empty one."""
        return self._leave[0] - now if self._leave else None

    def start(self, now: float) -> None:
        """Count a call that begins."""
        self._leave.append(now + WINDOW_SECONDS)

    def take(self, lease: Lease) -> None:
        """Count a running call."""
        if isinstance(self.leases, frozenset):
            self.leases = set()
        self.leases.add(lease)

    def release(self, lease: Lease) -> None:
        """Count a running call no more."""
        if isinstance(self.leases, set):
            self.leases.discard(lease)
            self.leases = self.leases or _NO_LEASES

    def wait_for_room(self, most: int, now: float) -> float:
        """Return the seconds until fewer than `most` calls began in the last 60 seconds; 0 if that is so."""
        started = self.started(now)
        return self._leave[started - most] - now if started >= most else 0.0

    def running(self) -> int:
        """Return the number of calls at once."""
        if self.has_others:  # whose leases do not know this counter
            self.leases = {lease for lease in self.leases if not lease.ended}
        return len(self.leases)

    def tokens(self, wall: float) -> int:
        """Return the tokens of the present day.

        If the clock was set back by a day or more, the tokens count for that day: a budget is not given twice.
        """
        day = int(wall // DAY_SECONDS)
        if day > self._day:
            self._tokens = 0
        self._day = day
        return self._tokens

    def charge(self, tokens: int, wall: float) -> int:
        """Add tokens; return those of the day."""
        self._tokens = self.tokens(wall) + tokens
        return self._tokens

    def is_empty(self, now: float, wall: float) -> bool:
        """Return True if the counter is the same as a new one."""
        return not (self.started(now) or self.running() or self.tokens(wall))


class _Table:
    """The counters of one rule, of addresses or of all other callers.

    Attributes:
        own: by the keys of calls.
        shared: of the callers without a counter of their own.
        counting: those with calls of the last minute, or running calls, and others that had some.
        sites: the number of counters of each network that a provider gives to one site.
    """

    __slots__ = ("_most", "counting", "own", "shared", "sites")

    def __init__(self) -> None:
        self.own: OrderedDict[Key, Counter] = OrderedDict()
        self.shared = Counter()
        self.counting: set[Counter] = set()
        self.sites: collections.Counter[str | None] = collections.Counter()
        self._most = Counter()  # the most tokens of any counter

    def place_of(self, key: Key, most: int) -> Key:
        """Return the key under which a call is counted: its own, or that of its site."""
        account, agent = key
        if key in self.own or len(self.own) < most // 2 or (site := site_of(account)) is None:
            return key
        return (site, agent) if self.sites[site] >= max(1, most // _SITES) else key

    def add(self, key: Key, counter: Counter) -> Counter:
        self.sites[site_of(key[0])] += 1
        self.own[key] = counter
        return counter

    def drop(self, key: Key, counter: Counter) -> None:
        """Forget the site and the calls of a counter that was removed."""
        self.counting.discard(counter)
        site = site_of(key[0])
        self.sites[site] -= 1
        if not self.sites[site]:
            del self.sites[site]

    def note_tokens(self, counter: Counter, wall: float) -> None:
        """Note that tokens were charged to a counter."""
        more = counter.tokens(wall) - self._most.tokens(wall)
        self._most.charge(max(0, more), wall)

    def ratio(self, limits: RuleSettings, now: float, wall: float) -> float:
        """Return the largest share of a limit that any counter has used; only counters that are in use are read."""
        started = running = 0
        for one in [*self.counting]:
            calls, at_once = one.started(now), one.running()
            if not calls and not at_once:
                self.counting.remove(one)
            started, running = max(started, calls), max(running, at_once)
        return max(
            self._most.tokens(wall) / (limits.tokens_per_day or 1),
            started / (limits.calls_per_minute or 1),
            running / (limits.calls_at_once or 1),
        )


class Counters:
    """The counters of all rules.

    Args:
        clock: the monotonic clock.
        wall_clock: seconds since 1970.
        most: counters of one rule for addresses, and for all other callers.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time,
        most: int = MOST_COUNTERS,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._most = most
        self._tables: dict[tuple[Scope, bool], _Table] = {}

    def use(self, rules: Rules) -> None:
        """Count by these rules from now on; counters of rules that select the same calls as before stay."""
        self._rules = rules
        places = [(rule.scope, of_strangers) for rule in rules.all for of_strangers in (False, True)]
        self._tables = {place: self._tables.get(place) or _Table() for place in places}

    def is_charged(self, entry: CallEntry) -> bool:
        """Return True if a rule limits the tokens of this call."""
        matching = self._rules.matching(entry.caller, entry.agent)
        return any(rule.settings.tokens_per_day is not None for rule in matching)

    def begin(self, entry: CallEntry) -> Lease:
        """Count a call. A nested call is not counted; it is refused if a budget of tokens is used up.

        Raises:
            CallLimitedError: by the rule with the longest wait; nothing was counted.
        """
        lease = Lease()
        if entry.is_decided:
            return lease
        now, wall, is_nested = self._clock(), self._wall_clock(), entry.parent is not None
        counted = [(rule, self._counter(rule, entry)) for rule in self._rules.matching(entry.caller, entry.agent)]
        exceeded = limits_without_room(counted, now, wall, entry)
        if (refused := tightest(exceeded)) is not None:
            raise refused.error()
        for one in exceeded:
            report(one, entry)
        for rule, counter in counted if not is_nested else ():
            self._table(rule, entry.account).counting.add(counter)
            if rule.settings.calls_per_minute is not None:
                counter.start(now)
            if rule.settings.calls_at_once is not None:
                lease.taken_from(counter)
        return lease

    def charge(self, entry: CallEntry, tokens: int) -> Excess | None:
        """Charge tokens to each rule that limits those of this call; return the excess of one that is used up."""
        matching, wall = self._rules.matching(entry.caller, entry.agent), self._wall_clock()
        counted = [(rule, self._counter(rule, entry)) for rule in matching if rule.settings.tokens_per_day is not None]
        refused, passed = charged(counted, tokens, wall)
        for rule, counter in counted:
            self._table(rule, entry.account).note_tokens(counter, wall)
        for one in passed:
            report(one, entry)
        return refused.excess() if refused is not None else None

    def used(self, caller: str, account: str, agents: Sequence[str]) -> Iterator[UsedLimit]:
        """Yield what an account has used; see `Ledger.used`."""
        now, wall = self._clock(), self._wall_clock()
        for rule, agent in self._rules.own(caller, agents):
            table = self._table(rule, account)
            key = rule.key(account, agent)
            counter = table.own.get(key)
            if counter is None and (len(table.own) >= self._most or table.place_of(key, self._most) != key):
                continue  # its calls may be among the shared ones
            if counter is not None and counter.has_others:
                continue
            counter = counter or Counter()
            minute = counter.started(now), counter.next_leave(now)
            yield from used_limits(rule, agent, minute, counter.running(), (counter.tokens(wall), wall))

    def ratios(self) -> Mapping[str, float]:
        """Return the largest share of its limits that any counter of a rule has used, by the name of the rule."""
        now, wall = self._clock(), self._wall_clock()
        return {
            rule.name: max(self._tables[rule.scope, one].ratio(rule.settings, now, wall) for one in (False, True))
            for rule in self._rules.all
        }

    def _table(self, rule: Rule, account: str) -> _Table:
        return self._tables[rule.scope, rule.is_of_stranger(account)]

    def _counter(self, rule: Rule, entry: CallEntry) -> Counter:
        table = self._table(rule, entry.account)
        key = table.place_of(rule.key(entry.account, entry.agent), self._most)
        if (known := table.own.get(key)) is not None:
            return known
        if len(table.own) >= self._most and not self._drops_empty(table):
            return table.shared
        # The earlier calls of this caller may be among the shared ones.
        if table.shared.is_empty(self._clock(), self._wall_clock()):
            return table.add(key, Counter())
        table.counting.add(copy := table.shared.copy())
        return table.add(key, copy)

    def _drops_empty(self, table: _Table) -> bool:
        now, wall = self._clock(), self._wall_clock()
        for _ in range(min(_EXAMINED, len(table.own))):
            key, counter = table.own.popitem(last=False)
            if counter.is_empty(now, wall):
                table.drop(key, counter)
                return True
            table.own[key] = counter
        return False


def limits_without_room(
    counted: Sequence[tuple[Rule, Counting]], now: float, wall: float, entry: CallEntry
) -> list[Exceeded]:
    """Return the limits that leave no room for a call.

    For a nested one, which is not counted, those of tokens; for a search or a copy, which uses none, the others.
    """
    exceeded: list[Exceeded] = []
    if entry.action == "call":
        exceeded += [one for rule, counter in counted for one in _used_up(rule, counter, wall)]
    if entry.parent is None:
        exceeded += [one for rule, counter in counted for one in _without_room(rule, counter, now)]
    return exceeded


def charged(
    counted: Sequence[tuple[Rule, Counting]], tokens: int, wall: float
) -> tuple[Exceeded | None, list[Exceeded]]:
    """Charge tokens; return the enforced limit that is used up, and others that these tokens have used up."""
    used_up, passed = [], []
    for rule, counter in counted:
        if (limit := rule.settings.tokens_per_day) is None:
            continue
        used = counter.charge(max(0, tokens), wall)
        if used >= limit:
            used_up.append(Exceeded(rule, "tokens per day", limit, _until_midnight(wall)))
            if used - tokens < limit and not rule.settings.enforce:
                passed.append(used_up[-1])
    return tightest(used_up), passed


def used_limits(
    rule: Rule, agent: str, minute: tuple[int, float | None], running: int, day: tuple[int, float]
) -> Iterator[UsedLimit]:
    """Yield the use of each limit of a rule.

    Args:
        rule: the rule.
        agent: of the counter.
        minute: calls of the window, and seconds until the oldest leaves it.
        running: calls at once.
        day: tokens, and the present time in seconds since 1970.
    """
    settings, agent = rule.settings, rule.counted_agent(agent)
    (started, leaves), (tokens, wall) = minute, day
    if settings.calls_per_minute is not None:
        reset = ceil(leaves) if leaves is not None else None
        yield UsedLimit(rule.name, agent, "calls_per_minute", started, reset)
    if settings.calls_at_once is not None:
        yield UsedLimit(rule.name, agent, "calls_at_once", running, None)
    if settings.tokens_per_day is not None:
        yield UsedLimit(rule.name, agent, "tokens_per_day", tokens, ceil(_until_midnight(wall)))


def _used_up(rule: Rule, counter: Counting, wall: float) -> Iterator[Exceeded]:
    most = rule.settings.tokens_per_day
    if most is not None and counter.tokens(wall) >= most:
        yield Exceeded(rule, "tokens per day", most, _until_midnight(wall))


def _without_room(rule: Rule, counter: Counting, now: float) -> Iterator[Exceeded]:
    minute, at_once = rule.settings.calls_per_minute, rule.settings.calls_at_once
    if minute is not None and (wait := counter.wait_for_room(minute, now)) > 0:
        yield Exceeded(rule, "calls per minute", minute, wait)
    if at_once is not None and counter.running() >= at_once:
        yield Exceeded(rule, "calls at once", at_once, RETRY_AFTER_SECONDS)


def _until_midnight(wall: float) -> float:
    return DAY_SECONDS - wall % DAY_SECONDS


def report(exceeded: Exceeded, entry: CallEntry) -> None:
    """Log that a rule which is not enforced would have refused or ended a call."""
    about = {"rule": exceeded.rule.name, "limit": exceeded.limit, "measure": exceeded.measure}
    call = {"agent": entry.agent, "call_id": entry.call_id, "caller": entry.caller}
    # A rule with `enforce: false` would have refused this call, or would have ended it.
    _log.info("limit exceeded", extra={**about, **call})
