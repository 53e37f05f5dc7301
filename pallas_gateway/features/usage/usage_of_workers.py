"""Usage of all workers: each counts its own and sends the changes to the parent, which has the sums and is asked.

Over their channel go plain rows: the values of a `UsageKey` and of a `Used`. Long lists of them are packed in parts, so
that neither process does nothing else for long.
"""

from __future__ import annotations

import asyncio
import marshal
from contextlib import asynccontextmanager, contextmanager, nullcontext
from itertools import batched
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.core.feature import InParent
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.features.usage.usage_table import UnsentUsage, UsageReport, UsageTable, in_parts
from pallas_gateway.shared.protocol import SharedAwayError
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.features.usage.usage_table import Rows
    from pallas_gateway.shared.remote import ParentProcess

SERVICE = "usage"
SEND_SECONDS = 5.0
MOST_ROWS = 100
"""Of one call to the parent, between which it carries out those of other workers."""
_values_of_key: Callable[[UsageKey], tuple[Any, ...]] = attrgetter(*UsageKey.__slots__)
_values_of_used: Callable[[Used], tuple[Any, ...]] = attrgetter(*Used.__slots__)

type _Counted = tuple[UsageKey, Used]
type _Row = tuple[Any, ...]


class UsageOfWorker:
    """The `UsageSource` of a worker: sends its changes to the parent from time to time, and asks it."""

    def __init__(self, parent: ParentProcess) -> None:
        self._parent = parent
        self._unsent = UnsentUsage()

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
        for day, rows in self._unsent.taken():
            for some in batched(rows, MOST_ROWS):
                self._parent.tell(SERVICE, "add_of_day", day, _plain(some))

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

    def add_of_day(self, day: str, rows: Iterable[_Row]) -> None:
        """Add what a worker has counted on a day since the last time."""
        self._table.add_of_day(day, _counted(rows))

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
