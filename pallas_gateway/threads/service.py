"""The gateway's threads: one database, opened at the start; attempts go on until it is available."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from pallas_gateway.limits import ThreadLimits
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.threads.database import OPERATION_SECONDS, Database
from pallas_gateway.threads.migrating import migrate
from pallas_gateway.threads.open_questions import OpenQuestions
from pallas_gateway.threads.question_store import QuestionStore
from pallas_gateway.threads.records import ThreadsSchemaError, ThreadsUnavailableError
from pallas_gateway.threads.store import Store
from pallas_gateway.threads.turns import Turns

if TYPE_CHECKING:
    from pathlib import Path

    from pallas_gateway.identity.secret import Secret

_log = logging.getLogger("pallas.threads")


class Threads:
    """An async context manager around the database."""

    def __init__(self, url: Secret, folder: Path, *, lease_seconds: float, limits: ThreadLimits | None = None) -> None:
        self._limits = limits = limits or ThreadLimits()
        self._database = Database(url, folder, busy_seconds=limits.busy_seconds)
        self._store = Store(self._database, lease_seconds, limits)
        self._turns = Turns(self._store, lease_seconds)
        self._questions = OpenQuestions(QuestionStore(self._database), limits.answers_seconds)
        self._opening = TaskOwner(close_seconds=0)
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Migrate the database; while it is unavailable, keep trying in the background.

        Raises:
            ThreadsSchemaError: a newer gateway has used the database.
        """
        try:
            await self._open(self._limits.first_try_seconds)
        except ThreadsUnavailableError:
            self._opening.spawn(self._keep_trying(), name="threads database", report=True)
        except BaseException:
            await self._database.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) for running writes, and close every connection.

        A turn whose end is not written by then ends with its lease.
        """
        await self._opening.cancel_all()
        await self._questions.close()
        await self._turns.close()
        await self._database.close()

    @property
    def store(self) -> Store:
        """The stored threads.

        Raises:
            ThreadsUnavailableError: the database was not available yet.
        """
        self._refuse_unless_open()
        return self._store

    @property
    def turns(self) -> Turns:
        """Begins turns of threads; raises as `store`."""
        self._refuse_unless_open()
        return self._turns

    @property
    def questions(self) -> OpenQuestions:
        """Questions of turns; raises as `store`."""
        self._refuse_unless_open()
        return self._questions

    def _refuse_unless_open(self) -> None:
        if not self._is_open:
            raise ThreadsUnavailableError

    async def _keep_trying(self) -> None:
        while not self._is_open:
            await asyncio.sleep(self._limits.try_again_seconds)
            try:
                await self._open(OPERATION_SECONDS)
            except ThreadsUnavailableError:
                continue
            except ThreadsSchemaError as error:
                _log.error("threads unavailable", extra={"why": str(error)})
                return

    async def _open(self, seconds: float) -> None:
        await self._database.write(lambda connection: connection.run_sync(migrate), seconds=seconds)
        self._is_open = True
