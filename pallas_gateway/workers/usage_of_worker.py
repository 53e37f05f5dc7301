"""Usage as a worker counts it, and reads it for all workers."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from pallas_gateway.errors import STOPPING, AgentUnavailableError
from pallas_gateway.ledger.usage import UnsentUsage, Usage, in_parts
from pallas_gateway.workers.usage_rows import UsageAnswer, UsageAsked, changes_of, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.ledger.usage import UsageKey, Used
    from pallas_gateway.workers.worker_messages import WorkerMessage


class UsageOfWorker:
    """The `UsageSource` of a worker: sends its changes to the parent from time to time, and asks it.

    Args:
        send: sends a message to the parent; does nothing when the parent is gone.
    """

    def __init__(self, send: Callable[[WorkerMessage], object]) -> None:
        self._send = send
        self._unsent = UnsentUsage()
        self._numbers = count(1)
        self._asked: dict[int, tuple[list[UsageAnswer], asyncio.Future[None]]] = {}
        self._is_over = False

    def add(self, key: UsageKey, used: Used) -> None:
        """Count what a call has used at its end."""
        self._unsent.add(key, used)

    def send_changes(self) -> None:
        """Send what was counted since the last time."""
        for day, rows in self._unsent.taken():
            for message in changes_of(day, rows):
                self._send(message)

    def take(self, answer: UsageAnswer) -> None:
        """Take a part of an answer; the request that has asked may be cancelled."""
        if (asked := self._asked.get(answer.number)) is None:
            return
        parts, done = asked
        parts.append(answer)
        if answer.is_last and not done.done():
            done.set_result(None)

    def end(self) -> None:
        """Ask no more: the parent is gone."""
        self._is_over = True
        for _, done in self._asked.values():
            if not done.done():
                done.set_exception(AgentUnavailableError(STOPPING))

    async def read(self, account: str | None = None) -> Usage:
        """Return all rows, or those of one account; those of other workers as of their last report."""
        if self._is_over:
            raise AgentUnavailableError(STOPPING)
        self.send_changes()  # a caller reads its latest calls, at least those of this worker
        number = next(self._numbers)
        parts, done = self._asked[number] = [], asyncio.get_running_loop().create_future()
        self._send(UsageAsked(number, account))
        try:
            await done
        finally:
            del self._asked[number]
        last = parts[-1]
        today: dict[UsageKey, Used] = {}
        total: dict[UsageKey, Used] = {}
        async for (one,) in in_parts(parts, 1):
            today.update(counted(one.today))
            total.update(counted(one.total))
        return Usage(last.day, last.since, today, total, last.is_whole)
