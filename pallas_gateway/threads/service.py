"""The gateway's threads, stored in its database.

An answer to an open question is written to the database, which decides between two requests that answer the same
question. Requests at this process deliver it at once; those of other processes are found in the database.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from pallas_gateway.calls.call import StepLog
from pallas_gateway.database.errors import DatabaseBusyError, DatabaseUnavailableError
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.lines import Lines
from pallas_gateway.threads.question_store import QuestionStore
from pallas_gateway.threads.quota import Quota
from pallas_gateway.threads.sizes import Room
from pallas_gateway.threads.store import Store
from pallas_gateway.threads.thread_changes import ThreadChanges
from pallas_gateway.threads.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.database.leases import LeaseTerms
    from pallas_gateway.database.service import GatewayDatabase
    from pallas_gateway.threads.question_store import QuestionKey, Waits
    from pallas_gateway.threads.records import Lease

LOOK_SECONDS = 0.5
"""Pause between two looks for answers that came to other processes, while a question is open."""


class Threads:
    """The threads of a database: a part of it, opened and closed with it."""

    def __init__(self, database: GatewayDatabase, leases: LeaseTerms, limits: ThreadLimits | None = None) -> None:
        self._limits = limits = limits or ThreadLimits()
        self._service = database
        self._database = database.connections
        self.quota = Quota()
        self.expire_days: float | None = None
        self._store = Store(self._database, leases, limits, self.quota)
        self._changes = ThreadChanges(self._database, limits, self.quota)
        self._turns = Turns(self._store, leases.seconds)
        self._question_store = QuestionStore(self._database)
        self._questions = ThreadQuestions(self._question_store)
        self._long_work = Lines()

    async def remove_expired(self, seconds: float) -> None:
        await self._question_store.remove_expired(seconds)
        if self.expire_days is not None:
            await self._changes.remove_unchanged_for(self.expire_days)

    async def close(self) -> None:
        """Wait (bounded) for running writes. A turn whose end is not written by then ends with its lease."""
        await self._questions.close()
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
        """Return the room for a history in a context window of so many tokens, None if it is unknown."""
        return Room.for_window(window, turns=self._limits.replayed_turns, bytes=self._limits.replayed_bytes)

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

    @property
    def turns(self) -> Turns:
        """Begins turns of threads; raises as `store`."""
        self._service.refuse_unless_open()
        return self._turns

    @property
    def questions(self) -> ThreadQuestions:
        """Questions of turns; raises as `store`."""
        self._service.refuse_unless_open()
        return self._questions


class ThreadQuestions:
    """Waits for answers; looks into the database only while a question is open."""

    def __init__(self, store: QuestionStore) -> None:
        self._store = store
        self._waiting: dict[QuestionKey, asyncio.Future[Answer]] = {}
        self._tasks = TaskOwner(close_seconds=0)
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self._tasks.cancel_all()

    async def open(
        self, lease: Lease, question: Question, answer: asyncio.Future[Answer], waits: Waits | None = None
    ) -> None:
        """Keep a question of the turn of a lease, and where its call waits; the answer is set when a client gives it.

        Raises:
            DatabaseUnavailableError: the database cannot be used.
        """
        await self._store.open(lease, question, waits)
        self._waiting[lease.thread_id, question.id] = answer
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.spawn(self._look(), name="answers to questions", report=True)

    async def close_one(self, lease: Lease, question_id: str, waits: Waits | None = None) -> None:
        """Forget a question, and keep where the call waits for the others.

        If that fails, the question is forgotten with its turn.
        """
        self._waiting.pop((lease.thread_id, question_id), None)
        with suppress(DatabaseUnavailableError):
            await self._store.close(lease, question_id, waits)

    async def give(self, thread_id: str, answers: Mapping[str, Answer]) -> None:
        """Write answers to open questions of a thread, all or none, and deliver them to a turn of this process.

        Raises:
            QuestionNotOpenError: one of the questions is not open.
            DatabaseUnavailableError: the database cannot be used.
        """
        is_taken = any((thread_id, id_) in self._waiting for id_ in answers)
        await self._store.give(thread_id, answers, is_taken=is_taken)
        self._deliver({(thread_id, id_): answer for id_, answer in answers.items()})

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(DatabaseUnavailableError):
                given = await self._store.given({thread_id for thread_id, _ in self._waiting})
                new = {key: answer for key, answer in given.items() if self._waits_for(key)}
                if new:  # first of all, so that no tool runs again in another process
                    await self._store.take({thread_id for thread_id, _ in new})
                    self._deliver(new)

    def _deliver(self, answers: Mapping[QuestionKey, Answer]) -> None:
        for key, answer in answers.items():
            if self._waits_for(key):
                self._waiting[key].set_result(answer)

    def _waits_for(self, key: QuestionKey) -> bool:
        return key in self._waiting and not self._waiting[key].done()
