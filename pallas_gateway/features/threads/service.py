"""The gateway's threads, stored in its database."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.call import StepLog
from pallas_gateway.core.long_calls import rows as task_rows
from pallas_gateway.core.long_calls.service import LongCalls
from pallas_gateway.core.offers import ThreadsOfAgents
from pallas_gateway.features.threads import older_questions
from pallas_gateway.features.threads.records import ClaimedExchange, QuestionNotOpenError
from pallas_gateway.features.threads.sizes import UNKNOWN_WINDOW, Quota, Room
from pallas_gateway.features.threads.store import Store
from pallas_gateway.features.threads.thread_changes import ThreadChanges
from pallas_gateway.features.threads.turns import Exchanges, Lines
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.shared.database.errors import DatabaseBusyError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.features.threads.older_questions import MakeTask
    from pallas_gateway.shared.database.connections import LeaseTerms
    from pallas_gateway.shared.database.service import GatewayDatabase


class Threads(ThreadsOfAgents):
    """The threads of a database: a part of it, opened and closed with it.

    Attributes:
        store: the stored threads.
        changes: changes of threads by their owners.
        turns: begins turns of threads.
    """

    def __init__(
        self, database: GatewayDatabase, leases: LeaseTerms, limits: ThreadLimits, long_calls: LongCalls
    ) -> None:
        self._limits = limits
        self.database = database.connections
        self.quota = Quota()
        self.expire_days: float | None = None
        self.long_calls = long_calls
        long_calls.turns = self
        self.store = Store(self.database, leases, self.long_calls, limits, self.quota)
        self.changes = ThreadChanges(self.database, limits, self.quota)
        self.turns = Exchanges(self.store, leases.seconds)
        self.lock, self.take, self.cancel = self.store.lock, self.store.take, self.changes.cancel
        self._long_work = Lines()

    async def remove_expired(self, seconds: float) -> None:
        await self.database.write(partial(older_questions.remove_expired, seconds=seconds), share="services")
        if self.expire_days is not None:
            await self.changes.remove_unchanged_for(self.expire_days)

    async def close(self) -> None:
        """Wait (bounded) for running writes. A turn whose end is not written by then ends with its lease."""
        await self.turns.close()

    def room_for(self, window: int | None) -> Room:
        """Return the room for a history in a context window of so many tokens, None if it is unknown.

        A quarter of the window is left for the instruction, the tools, the new message and its answer.
        """
        return Room(self._limits.replayed_turns, self._limits.replayed_bytes, (window or UNKNOWN_WINDOW) * 3 // 4)

    def step_log(self) -> StepLog:
        """Return a log for the steps of a turn."""
        return StepLog(self._limits.step_bytes)

    def long_work(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Exclude other searches and copies of an owner during the block.

        Raises:
            DatabaseBusyError: they take too long.
        """
        latest = asyncio.get_running_loop().time() + self._limits.long_work_seconds
        return self._long_work.turn(owner, latest, DatabaseBusyError())

    async def claim(self, thread_id: str, number: int, owner: str) -> ClaimedExchange | None:
        """Take the turn of an owner that nobody runs, as `LongCalls.claim`."""
        task = await self.long_calls.claim(task_rows.is_of(thread_id, number), owner=owner)
        return ClaimedExchange(task) if task is not None else None

    @override
    async def remove_of_agent(self, agent_id: str) -> None:
        await self.changes.remove_of_agent(agent_id)

    async def give(
        self, thread_id: str, number: int, answers: Mapping[str, Answer], older: MakeTask | None = None
    ) -> None:
        """Write answers to open questions of a turn, all or none, and deliver them if it runs in this process.

        `older` makes the task of a turn that release 0.1.0 has left.

        Raises:
            QuestionNotOpenError: one of the questions is not open.
            DatabaseUnavailableError: the database cannot be used.
        """

        async def written(sql: AsyncConnection) -> None:
            is_older = older is not None and not await older_questions.adopt(sql, thread_id, number, older)
            if is_older and await older_questions.give(sql, thread_id, answers):
                return
            if (missing := await task_rows.give(sql, task_rows.is_of(thread_id, number), answers)) is not None:
                raise QuestionNotOpenError(missing)

        await self.database.write(written)
        self.long_calls.deliver(answers)
