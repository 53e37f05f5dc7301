"""Usage of agents by callers: today (UTC), and since the gateway has started.

Each process counts in memory. Of several workers, each sends its changes to the parent every few seconds, which has the
usage of all. Nothing of it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import batched
from operator import attrgetter
from time import perf_counter, time
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.identity.caller import is_of_address
from pallas_gateway.tasks import give_way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

MOST_ACCOUNTS = 10_000
"""Keys and tokens of one table, and as many addresses; further ones share one row for each agent."""
OTHERS = "(others)"
DAY_SECONDS = 86_400
_ROWS_AT_ONCE = 100


_numbers_of = attrgetter(*Used.__slots__)


type Rows = Mapping[UsageKey, Used]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """An answer: the rows of the day that began at `day` (UTC, `YYYY-MM-DD`), and those since `since` (seconds).

    `is_whole`: False for an account that shares rows with others, because the table was full.
    """

    day: str
    since: float
    today: Rows
    total: Rows
    is_whole: bool = True


async def in_parts[T](rows: Iterable[T], most: int = _ROWS_AT_ONCE) -> AsyncIterator[tuple[T, ...]]:
    """Yield rows in parts, between which the event loop does other work: there may be ten thousand."""
    began = perf_counter()
    for some in batched(rows, most):
        yield some
        await give_way(began)
        began = perf_counter()


class UsageSource(Protocol):
    """Counts the calls of this process, and returns the usage of all processes."""

    def add(self, key: UsageKey, used: Used) -> None: ...

    async def read(self, account: str | None = None) -> UsageReport:
        """Return all rows, or those of one account."""


class UsageTable:
    """The usage that this process knows of.

    Args:
        clock: seconds since 1970.
        most: accounts of one table.
    """

    def __init__(self, clock: Callable[[], float] = time, most: int = MOST_ACCOUNTS) -> None:
        self._clock = clock
        self._since = clock()
        self._most = most
        self._day = self._present_day()
        self._today, self._before = _Rows(most), _Rows(most)

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        self._turn_day()
        self._today.add(key, used)

    def add_of_day(self, day: str, rows: Iterable[tuple[UsageKey, Used]]) -> None:
        """Count what another process has counted on a day."""
        self._turn_day()
        counted = self._today if day == date_of(self._day) else self._before
        for key, used in rows:
            counted.add(key, used)

    async def read(self, account: str | None = None) -> UsageReport:
        """Return all rows, or those of one account. Sums of all take a while, so they are made from copies."""
        self._turn_day()
        if account is not None:
            account = UsageKey.of("", account, "").account
        day, before, today = date_of(self._day), self._before.copied(account), self._today.copied(account)
        is_whole = account is None or (self._today.has_own(account) and self._before.has_own(account))
        total = _Rows(self._most)
        for rows in (before, today):
            async for some in in_parts(rows.items()):
                total.add_all(dict(some))
        return UsageReport(day, self._since, today, total.rows, is_whole)

    def _turn_day(self) -> None:
        if (day := self._present_day()) != self._day:
            self._before.add_all(self._today.rows)
            self._day, self._today = day, _Rows(self._most)

    def _present_day(self) -> int:
        return int(self._clock() // DAY_SECONDS)


class UnsentUsage:
    """What was counted since the last report to another process, by day.

    Args:
        clock: seconds since 1970.
        most: accounts of a day.
    """

    def __init__(self, clock: Callable[[], float] = time, most: int = MOST_ACCOUNTS) -> None:
        self._clock = clock
        self._most = most
        self._days: dict[int, _Rows] = {}

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        day = int(self._clock() // DAY_SECONDS)
        if (rows := self._days.get(day)) is None:
            rows = self._days[day] = _Rows(self._most)
        rows.add(key, used)

    def taken(self) -> Iterable[tuple[str, Iterable[tuple[UsageKey, Used]]]]:
        """Return the rows of each day, and begin without rows."""
        days, self._days = self._days, {}
        return [(date_of(day), rows.rows.items()) for day, rows in days.items()]


def date_of(day: int) -> str:
    """Return the date of a day since 1970."""
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).date().isoformat()


class _Rows:
    """The rows of one period, of a limited number of accounts; addresses take no places of keys and tokens."""

    def __init__(self, most: int) -> None:
        self._most = most
        # By True for addresses, and False for keys and tokens: how many there are, and if further ones share rows.
        self._accounts = {True: 0, False: 0}
        self._shared: set[bool] = set()
        self._agents_of: dict[str, set[UsageKey]] = {}
        self._names: dict[str, str] = {}
        self.rows: dict[UsageKey, Used] = {}

    def add(self, key: UsageKey, used: Used) -> None:
        if key.account == OTHERS:
            self._shared |= {False, True}
        elif (known := self._names.get(key.account)) is not None:  # a name that changes must not make more rows
            key = UsageKey(known, key.account, key.agent)
        else:
            is_address = is_of_address(key.account)
            if self._accounts[is_address] < self._most:
                self._accounts[is_address] += 1
            else:
                self._shared.add(is_address)
                key = UsageKey(OTHERS, OTHERS, key.agent)
        if (row := self.rows.get(key)) is None:
            self._names.setdefault(key.account, key.caller)
            self._agents_of.setdefault(key.account, set()).add(key)
            row = self.rows[key] = Used()
        row += used

    def add_all(self, rows: Rows) -> None:
        for key, used in rows.items():
            self.add(key, used)

    def copied(self, account: str | None) -> Rows:
        """Return the rows of one account, or of all."""
        keys = self.rows if account is None else self._agents_of.get(account, ())
        return {key: Used(*_numbers_of(self.rows[key])) for key in keys}

    def has_own(self, account: str) -> bool:
        """Return False for an account that may be among the others."""
        return account in self._agents_of or is_of_address(account) not in self._shared
