"""Usage of agents by callers: today (UTC), and since the gateway has started.

Each process counts in memory. Of several workers, each sends its changes to the parent every few seconds, which has the
usage of all. Nothing of it is stored. Over their channel go plain rows: the values of a `UsageKey` and of a `Used`.
Long lists of them are packed in parts, so that neither process does nothing else for long.
"""

from __future__ import annotations

import asyncio
import marshal
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import batched
from operator import attrgetter
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.core.feature import InParent
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.identity.caller import is_of_address
from pallas_gateway.shared.protocol import SharedAwayError
from pallas_gateway.tasks import TaskOwner, give_way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.shared.remote import ParentProcess

MOST_ACCOUNTS = 10_000
"""Keys and tokens of one table, and as many addresses; further ones share one row for each agent."""
OTHERS = "(others)"
DAY_SECONDS = 86_400
_ROWS_AT_ONCE = 100
SERVICE = "usage"
SEND_SECONDS = 5.0
MOST_ROWS = 100
"""Of one call to the parent, between which it carries out those of other workers."""
_values_of_key: Callable[[UsageKey], tuple[Any, ...]] = attrgetter(*UsageKey.__slots__)
_values_of_used: Callable[[Used], tuple[Any, ...]] = attrgetter(*Used.__slots__)

type Rows = Mapping[UsageKey, Used]
type _Counted = tuple[UsageKey, Used]
type _Row = tuple[Any, ...]


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
        self._today, self._before = UsageRows(most), UsageRows(most)

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        self._turn_day()
        self._today.add(key, used)

    async def read(self, account: str | None = None) -> UsageReport:
        """Return all rows, or those of one account. Sums of all take a while, so they are made from copies."""
        self._turn_day()
        if account is not None:
            account = UsageKey.of("", account, "").account
        day, before, today = date_of(self._day), self._before.copied(account), self._today.copied(account)
        is_whole = account is None or (self._today.has_own(account) and self._before.has_own(account))
        total = UsageRows(self._most)
        for rows in (before, today):
            async for some in in_parts(rows.items()):
                total.add_all(dict(some))
        return UsageReport(day, self._since, today, total.rows, is_whole)

    def _turn_day(self) -> None:
        if (day := self._present_day()) != self._day:
            self._before.add_all(self._today.rows)
            self._day, self._today = day, UsageRows(self._most)

    def _present_day(self) -> int:
        return int(self._clock() // DAY_SECONDS)


def date_of(day: int) -> str:
    """Return the date of a day since 1970."""
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).date().isoformat()


class UsageRows:
    """The rows of one period, of a limited number of accounts; addresses take no places of keys and tokens."""

    def __init__(self, most: int = MOST_ACCOUNTS) -> None:
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
        return {key: Used(*_values_of_used(self.rows[key])) for key in keys}

    def has_own(self, account: str) -> bool:
        """Return False for an account that may be among the others."""
        return account in self._agents_of or is_of_address(account) not in self._shared


class UsageOfWorker:
    """Counts the calls of a worker, sends its changes to the parent from time to time, and asks it."""

    def __init__(self, parent: ParentProcess) -> None:
        self._parent = parent
        self._unsent = UsageRows()

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        self._unsent.add(key, used)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send changes during the block, and the last ones at its end."""
        async with TaskOwner(close_seconds=0) as tasks:
            tasks.spawn(self._keep_sending(), name="usage of a worker", report=True)
            yield
        self.send_changes(is_last=True)

    async def _keep_sending(self) -> None:
        while True:
            await asyncio.sleep(SEND_SECONDS)
            self.send_changes()

    def send_changes(self, *, is_last: bool = False) -> None:
        """Send what was counted since the last time. While the parent hangs, it stays here, where rows are joined."""
        if self._parent.is_behind() and not is_last:
            return
        unsent, self._unsent = self._unsent, UsageRows()
        for some in batched(unsent.rows.items(), MOST_ROWS):
            self._parent.tell(SERVICE, "add", _plain(some))

    async def read(self, account: str | None = None) -> UsageReport:
        """Return all rows, or those of one account; those of other workers as of their last report.

        Raises:
            AgentUnavailableError: the parent is gone, or does not answer.
        """
        self.send_changes()  # a caller reads its latest calls, at least those of this worker
        try:
            day, since, today, total, is_whole = await self._parent.ask(SERVICE, "read", account)
        except SharedAwayError:
            raise AgentUnavailableError("The usage of all workers cannot be read now. Try again later.") from None
        return UsageReport(day, since, await _unpacked(today), await _unpacked(total), is_whole)


@contextmanager
def usage_in_parent(_: Configuration) -> Iterator[InParent]:
    sums = UsageOfWorkers()
    yield InParent(SERVICE, lambda _: nullcontext(sums))


class UsageOfWorkers:
    """The sums of all workers, in the parent: the service `usage` of each worker's channel."""

    def __init__(self) -> None:
        self._table = UsageTable()

    def add(self, rows: Iterable[_Row]) -> None:
        """Add what a worker has counted since the last time, to the present day."""
        for key, used in _counted(rows):
            self._table.add(key, used)

    async def read(self, account: str | None) -> tuple[Any, ...]:
        """Return the values of a `UsageReport`."""
        usage = await self._table.read(account)
        return usage.day, usage.since, await _packed(usage.today), await _packed(usage.total), usage.is_whole


async def _packed(rows: Rows) -> list[bytes]:
    return [marshal.dumps(_plain(some)) async for some in in_parts(rows.items())]


async def _unpacked(parts: Sequence[bytes]) -> Rows:
    rows: dict[UsageKey, Used] = {}
    async for (some,) in in_parts(parts, 1):
        rows.update(_counted(marshal.loads(some)))  # noqa: S302  written by `_packed`
    return rows


def _plain(rows: Iterable[_Counted]) -> list[_Row]:
    return [(*_values_of_key(key), *_values_of_used(used)) for key, used in rows]


def _counted(rows: Iterable[_Row]) -> Iterator[_Counted]:
    for caller, account, agent, *used in rows:
        yield UsageKey(caller, account, agent), Used(*used)
