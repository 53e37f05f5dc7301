"""The gateway's threads, stored in its database."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
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
from pallas_gateway.limits import TaskLimits, ThreadLimits
from pallas_gateway.shared.database.errors import DatabaseBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.core.long_calls.records import Cancelled, ClaimedTask
    from pallas_gateway.features.threads.older_questions import MakeTask
    from pallas_gateway.shared.database.connections import LeaseTerms
    from pallas_gateway.shared.database.service import GatewayDatabase
    from pallas_gateway.shared.database.tables import AnyRow


class Threads(ThreadsOfAgents):
    """The threads of a database: a part of it, opened and closed with it."""

    def __init__(
        self,
        database: GatewayDatabase,
        leases: LeaseTerms,
        limits: ThreadLimits | None = None,
        long_calls: LongCalls | None = None,
    ) -> None:
        self._limits = limits = limits or ThreadLimits()
        self._service = database
        self.database = database.connections
        self.quota = Quota()
        self.expire_days: float | None = None
        self.long_calls = long_calls or LongCalls(database, leases.process or secrets.token_hex(4), TaskLimits())
        self.long_calls.turns = self
        self._store = Store(self.database, leases, self.long_calls, limits, self.quota)
        self._changes = ThreadChanges(self.database, limits, self.quota)
        self._turns = Exchanges(self._store, leases.seconds)
        self._long_work = Lines()

    async def remove_expired(self, seconds: float) -> None:
        await self.database.write(partial(older_questions.remove_expired, seconds=seconds), share="services")
        if self.expire_days is not None:
            await self._changes.remove_unchanged_for(self.expire_days)

    async def close(self) -> None:
        """Wait (bounded) for running writes. A turn whose end is not written by then ends with its lease."""
        await self._turns.close()

    @property
    def store(self) -> Store:
        """The stored threads.

        Raises:
            DatabaseUnavailableError: the database was not available yet.
        """
        self._service.refuse_unless_open()
        return self._store

    def room_for(self, window: int | None) -> Room:
        """Return the room for a history in a context window of so many tokens, None if it is unknown.

        A quarter of the window is left for the instruction, the tools, the new message and its answer.
        """
        return Room(self._limits.replayed_turns, self._limits.replayed_bytes, (window or UNKNOWN_WINDOW) * 3 // 4)

    def step_log(self) -> StepLog:
        """Return a log for the steps of a turn."""
        return StepLog(self._limits.step_bytes)

    @property
    def changes(self) -> ThreadChanges:
        """Changes of threads by their owners; raises as `store`."""
        self._service.refuse_unless_open()
        return self._changes

    @asynccontextmanager
    async def long_work(self, owner: str) -> AsyncIterator[None]:
        """Exclude other searches and copies of an owner during the block.

        Raises:
            DatabaseBusyError: they take too long.
        """
        latest = asyncio.get_running_loop().time() + self._limits.long_work_seconds
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._long_work.turn(owner, latest))
            except TimeoutError:
                raise DatabaseBusyError from None
            yield

    async def claim(self, thread_id: str, number: int, owner: str) -> ClaimedExchange | None:
        """Take the turn of an owner that nobody runs, as `LongCalls.claim`."""
        task = await self.long_calls.claim(task_rows.is_of(thread_id, number), owner=owner)
        return ClaimedExchange(task) if task is not None else None

    async def lock(self, sql: AsyncConnection, task: AnyRow) -> bool:
        """As `Store.lock`."""
        return await self._store.lock(sql, task)

    async def take(self, sql: AsyncConnection, task: ClaimedTask) -> bool:
        """As `Store.take`."""
        return await self._store.take(sql, task)

    async def cancel(self, thread_id: str, turn: int) -> Cancelled | None:
        """Cancel a turn with its task; raises as `store`."""
        return await self.changes.cancel(thread_id, turn)

    @override
    async def remove_of_agent(self, agent_id: str) -> None:
        await self.changes.remove_of_agent(agent_id)

    @property
    def turns(self) -> Exchanges:
        """Begins turns of threads; raises as `store`."""
        self._service.refuse_unless_open()
        return self._turns

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
