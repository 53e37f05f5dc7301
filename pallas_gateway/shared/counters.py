"""Counters in the memory of one process: calls of the last 60 seconds, calls at once, and tokens of the day.

All of it is synchronous, so a decision is atomic: either every counter of a call counts it, or none does. Windows are
measured by the monotonic clock, days by the wall clock. The same functions decide in the database.
"""

from __future__ import annotations

import collections
from bisect import bisect_right
from collections import OrderedDict
from time import monotonic, time
from typing import TYPE_CHECKING

from pallas_gateway.errors import RETRY_AFTER_SECONDS
from pallas_gateway.identity.caller import is_of_address, site_of
from pallas_gateway.shared.protocol import Over, SharedAnswer, UsedCounter, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pallas_gateway.shared.counter_rows import StoredCounter
    from pallas_gateway.shared.protocol import Scope

    type Counting = Counter | StoredCounter
    type Key = tuple[str, str]

MOST_COUNTERS = 10_000
"""Counters of one scope for keys and tokens, and as many for addresses; callers beyond them share one of each."""
_SITES = 40
"""Sites that fill all counters for addresses: in a table that is half full, further addresses of a site share one."""
WINDOW_SECONDS = 60.0
DAY_SECONDS = 86_400
_EXAMINED = 100
"""Counters that are examined for an empty one when there are too many; the next call goes on with the others."""


_NO_LEASES: frozenset[CountedLease] = frozenset()


class CountedLease:
    """One running call in the counters of calls at once."""

    __slots__ = ("_counters", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._counters: list[Counter] = []

    def held_at(self, counter: Counter) -> None:
        counter.acquire(self)
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
        self.leases: set[CountedLease] | frozenset[CountedLease] = _NO_LEASES
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

    def acquire(self, lease: CountedLease) -> None:
        """Count a running call."""
        if isinstance(self.leases, frozenset):
            self.leases = set()
        self.leases.add(lease)

    def release(self, lease: CountedLease) -> None:
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

    def most(self, now: float, wall: float) -> tuple[int, int, int]:
        """Return the most that any counter has counted, as `Shared.busiest`; only counters in use are read."""
        started = running = 0
        for one in [*self.counting]:
            calls, at_once = one.started(now), one.running()
            if not calls and not at_once:
                self.counting.remove(one)
            started, running = max(started, calls), max(running, at_once)
        return started, running, self._most.tokens(wall)


class Counters:
    """The counters of all scopes.

    Args:
        clock: the monotonic clock.
        wall_clock: seconds since 1970.
        most: counters of one scope for addresses, and for all other callers.
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

    def acquire(self, wanted: Sequence[Wanted]) -> tuple[SharedAnswer, CountedLease]:
        """Count a call, which runs until its lease ends; see `Shared.acquire`."""
        now, wall, lease = self._clock(), self._wall_clock(), CountedLease()
        counted = [(one, self._counter(one)) for one in wanted]
        answer = decided(limits_without_room(counted, now, wall), wanted)
        for one, counter in counted if answer.refused is None else ():
            if one.calls_per_minute is not None:
                counter.start(now)
            if one.calls_at_once is not None:
                lease.held_at(counter)
            if one.calls_per_minute is not None or one.calls_at_once is not None:
                self._table(one).counting.add(counter)
        return answer, lease

    def add(self, wanted: Sequence[Wanted], tokens: int) -> SharedAnswer:
        """Count tokens; see `Shared.add`."""
        wall = self._wall_clock()
        counted = [(one, self._counter(one)) for one in wanted]
        answer = charged(counted, tokens, wall)
        for one, counter in counted:
            self._table(one).note_tokens(counter, wall)
        return answer

    def read(self, wanted: Sequence[Wanted]) -> list[UsedCounter | None]:
        """Return what counters have counted; see `Shared.read`."""
        now, wall = self._clock(), self._wall_clock()
        return [self._used(one, now, wall) for one in wanted]

    def busiest(self, scopes: Sequence[Scope]) -> list[tuple[int, int, int]]:
        """Return the most of any counter of each scope; see `Shared.busiest`."""
        now, wall = self._clock(), self._wall_clock()
        tables = [[t for is_strange in (False, True) if (t := self._tables.get((one, is_strange)))] for one in scopes]
        return [_largest(table.most(now, wall) for table in of_scope) for of_scope in tables]

    def _used(self, one: Wanted, now: float, wall: float) -> UsedCounter | None:
        table, key = self._table(one), (one.account, one.agent)
        counter = table.own.get(key)
        if counter is None and (len(table.own) >= self._most or table.place_of(key, self._most) != key):
            return None  # its calls may be among the shared ones
        if counter is not None and counter.has_others:
            return None
        counter = counter or Counter()
        leaves = counter.next_leave(now) if (started := counter.started(now)) else None
        return UsedCounter(started, leaves, counter.running(), counter.tokens(wall), until_midnight(wall))

    def _table(self, one: Wanted) -> _Table:
        place = one.scope, is_of_address(one.account)
        if (table := self._tables.get(place)) is None:
            table = self._tables[place] = _Table()
        return table

    def _counter(self, one: Wanted) -> Counter:
        table = self._table(one)
        key = table.place_of((one.account, one.agent), self._most)
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


def decided(over: Sequence[Over], wanted: Sequence[Wanted]) -> SharedAnswer:
    """Return the answer to a request with these limits exceeded: the enforced one with the longest wait refuses."""
    enforced = [one for one in over if wanted[one.place].enforced]
    if enforced:
        return SharedAnswer(max(enforced, key=lambda one: one.wait_seconds))
    return SharedAnswer(None, tuple(over))


def limits_without_room(counted: Sequence[tuple[Wanted, Counting]], now: float, wall: float) -> list[Over]:
    """Return the limits that leave no room for a call, those of tokens first."""
    return [
        *(one for place, (wanted, counter) in enumerate(counted) for one in _used_up(place, wanted, counter, wall)),
        *(one for place, (wanted, counter) in enumerate(counted) for one in _without_room(place, wanted, counter, now)),
    ]


def charged(counted: Sequence[tuple[Wanted, Counting]], tokens: int, wall: float) -> SharedAnswer:
    """Count tokens; see `Shared.add`."""
    used_up, reported = [], []
    for place, (wanted, counter) in enumerate(counted):
        if (most := wanted.tokens_per_day) is None:
            continue
        used = counter.charge(max(0, tokens), wall)
        if used >= most:
            over = Over(place, "tokens per day", until_midnight(wall))
            if wanted.enforced:
                used_up.append(over)
            elif used - tokens < most:
                reported.append(over)
    return SharedAnswer(max(used_up, key=lambda one: one.wait_seconds, default=None), tuple(reported))


def _used_up(place: int, wanted: Wanted, counter: Counting, wall: float) -> Iterable[Over]:
    most = wanted.tokens_per_day
    if most is not None and counter.tokens(wall) >= most:
        yield Over(place, "tokens per day", until_midnight(wall))


def _without_room(place: int, wanted: Wanted, counter: Counting, now: float) -> Iterable[Over]:
    minute, at_once = wanted.calls_per_minute, wanted.calls_at_once
    if minute is not None and (wait := counter.wait_for_room(minute, now)) > 0:
        yield Over(place, "calls per minute", wait)
    if at_once is not None and counter.running() >= at_once:
        yield Over(place, "calls at once", RETRY_AFTER_SECONDS)


def _largest(numbers: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    started, running, tokens = 0, 0, 0
    for calls, at_once, of_day in numbers:
        started, running, tokens = max(started, calls), max(running, at_once), max(tokens, of_day)
    return started, running, tokens


def until_midnight(wall: float) -> float:
    """Return the seconds until the day of UTC ends."""
    return DAY_SECONDS - wall % DAY_SECONDS
