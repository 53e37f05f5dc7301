"""The gateway's threads: one database, opened at the start; attempts go on until it is available.

An answer to an open question is written to the database, which decides between two requests that answer the same
question. Requests at this process deliver it at once; those of other processes are found in the database.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from pallas_gateway.database.connections import OPERATION_SECONDS, Database, migrate
from pallas_gateway.database.errors import DatabaseSchemaError, DatabaseUnavailableError
from pallas_gateway.ledger.stored_counters import StoredCounters
from pallas_gateway.ledger.stored_ledger import StoredLedger
from pallas_gateway.limits import ThreadLimits
from pallas_gateway.questions.stored_states import StoredStates
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.question_store import QuestionStore
from pallas_gateway.threads.quota import Quota
from pallas_gateway.threads.store import Store
from pallas_gateway.threads.thread_changes import ThreadChanges
from pallas_gateway.threads.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from prometheus_client import Gauge

    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.database.leases import LeaseTerms
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.ledger.protocol import Ledger
    from pallas_gateway.threads.question_store import QuestionKey, Waits
    from pallas_gateway.threads.records import Lease

LOOK_SECONDS = 0.5
"""Pause between two looks for answers that came to other processes, while a question is open."""
_log = logging.getLogger("pallas.threads")


class Threads:
    """An async context manager around the database."""

    def __init__(
        self,
        url: Secret,
        folder: Path,
        leases: LeaseTerms,
        *,
        limits: ThreadLimits | None = None,
        up: Gauge | None = None,
    ) -> None:
        """Not open yet; `up` shows whether the database is available."""
        self._limits = limits = limits or ThreadLimits()
        self._database = Database(url, folder, busy_seconds=limits.busy_seconds, up=up)
        self.quota = Quota()
        self._store = Store(self._database, leases, limits, self.quota)
        self._changes = ThreadChanges(self._database, limits.copied_bytes, self.quota)
        self._turns = Turns(self._store, leases.seconds)
        self._question_store = QuestionStore(self._database)
        self._questions = ThreadQuestions(self._question_store)
        self.states = StoredStates(
            self._database, leases.process or secrets.token_hex(4), is_open=lambda: self._is_open
        )
        self.counters = StoredCounters(self._database, leases.seconds, is_open=lambda: self._is_open)
        self._keeping = TaskOwner(close_seconds=0)
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Migrate the database; while it is unavailable, keep trying in the background.

        Raises:
            DatabaseSchemaError: a newer gateway has used the database.
        """
        try:
            with suppress(DatabaseUnavailableError):
                await self._open(self._limits.first_try_seconds)
        except BaseException:
            await self._database.close()
            raise
        self._keeping.spawn(self._keep(), name="threads database", report=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) for running writes, and close every connection.

        A turn whose end is not written by then ends with its lease.
        """
        await self._keeping.cancel_all()
        await self._questions.close()
        await self.states.close()
        await self.counters.close()
        await self._turns.close()
        await self._database.close()

    @property
    def store(self) -> Store:
        """The stored threads.

        Raises:
            DatabaseUnavailableError: the database was not available yet.
        """
        self._refuse_unless_open()
        return self._store

    @property
    def changes(self) -> ThreadChanges:
        """Changes of threads by their owners; raises as `store`."""
        self._refuse_unless_open()
        return self._changes

    @property
    def turns(self) -> Turns:
        """Begins turns of threads; raises as `store`."""
        self._refuse_unless_open()
        return self._turns

    @property
    def questions(self) -> ThreadQuestions:
        """Questions of turns; raises as `store`."""
        self._refuse_unless_open()
        return self._questions

    def ledger_around(self, inner: Ledger) -> StoredLedger:
        """Return a ledger that counts in the database where that is set, else by `inner`."""
        return StoredLedger(inner, self.counters)

    def _refuse_unless_open(self) -> None:
        if not self._is_open:
            raise DatabaseUnavailableError

    async def _keep(self) -> None:
        """Open the database if it is not open, try it out while it is unavailable, and remove what has expired."""
        now, cleaned = asyncio.get_running_loop().time, -math.inf
        while True:
            await asyncio.sleep(self._limits.try_again_seconds)
            try:
                if not self._is_open:
                    await self._open(OPERATION_SECONDS)
                elif not self._database.is_up:
                    await self._database.try_out()
                elif now() - cleaned >= self._limits.clean_seconds:
                    await self._question_store.remove_expired(self._limits.expired_seconds)
                    await self.states.remove_expired(self._limits.expired_seconds)
                    await self.counters.remove_expired(self._limits.expired_seconds)
                    cleaned = now()
                else:
                    await self.counters.measure()
            except DatabaseUnavailableError:
                continue
            except DatabaseSchemaError as error:
                _log.error("threads unavailable", extra={"why": str(error)})
                return

    async def _open(self, seconds: float) -> None:
        await self._database.write(lambda connection: connection.run_sync(migrate), seconds=seconds)
        self._is_open = True
        await self._database.try_out()  # it may be a standby, or full


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
