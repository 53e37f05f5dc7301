"""Usage of all workers: each counts its own and sends the changes to the parent, which has the sums and is asked.

Over their channel go plain rows: the values of a `UsageKey` and of a `Used`. Long lists of them are packed in parts, so
that neither process does nothing else for long.
"""

from __future__ import annotations

import marshal
from itertools import batched
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.used import UsageKey, Used
from pallas_gateway.features.usage.usage_table import UnsentUsage, UsageReport, UsageTable, in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pallas_gateway.features.usage.usage_table import Rows
    from pallas_gateway.process.workers.channel import Channel

MOST_ROWS = 100
"""Of one call to the parent, between which it carries out those of other workers."""
MOST_UNREAD = 256 * 1024
"""Bytes that the parent has not read, with which changes are held back; they add up until it reads again."""
_values_of_key: Callable[[UsageKey], tuple[Any, ...]] = attrgetter(*UsageKey.__slots__)
_values_of_used: Callable[[Used], tuple[Any, ...]] = attrgetter(*Used.__slots__)

type _Counted = tuple[UsageKey, Used]
type _Row = tuple[Any, ...]


class UsageOfWorker:
    """The `UsageSource` of a worker: sends its changes to the parent from time to time, and asks it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._unsent = UnsentUsage()

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        self._unsent.add(key, used)

    def send_changes(self) -> None:
        """Send what was counted since the last time."""
        for day, rows in self._unsent.taken():
            for some in batched(rows, MOST_ROWS):
                self._channel.tell("usage", "add_of_day", day, _plain(some))

    async def read(self, account: str | None = None) -> UsageReport:
        """Return all rows, or those of one account; those of other workers as of their last report.

        Raises:
            ChannelEndedError: the parent is gone.
        """
        self.send_changes()  # a caller reads its latest calls, at least those of this worker
        day, since, today, total, is_whole = await self._channel.ask("usage", "read", account)
        return UsageReport(day, since, await _unpacked(today), await _unpacked(total), is_whole)


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
