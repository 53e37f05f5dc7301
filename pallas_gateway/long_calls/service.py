"""The tasks of one process: those that it runs, and those of ended processes, with which it goes on."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.database.leases import RENEWALS
from pallas_gateway.long_calls import rows
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from typing import Any

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.database.service import GatewayDatabase
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.limits import TaskLimits
    from pallas_gateway.long_calls.recorder import TaskRecorder
    from pallas_gateway.long_calls.records import Held

    type GiveUp = Callable[[AsyncConnection, AnyRow], Awaitable[None]]


class LongCalls:
    """A part of the database: the tasks of this process.

    Args:
        database: with the tables.
        process: the name of this process.

    Attributes:
        process: as given.
    """

    def __init__(self, database: GatewayDatabase, process: str, limits: TaskLimits) -> None:
        self.process = process
        self._limits = limits
        self._service = database
        self._database = database.connections
        self._running: dict[str, TaskRecorder] = {}
        self._is_alive = False
        self._tasks = TaskOwner(close_seconds=0)
        self._looking: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Look for no further tasks; this process runs none any more."""
        await self._tasks.cancel_all()
        if self._is_alive and self._service.is_available:
            with suppress(DatabaseUnavailableError):
                await self.note_end_of(self.process)

    async def remove_expired(self, seconds: float) -> None:
        await self._database.write(partial(rows.remove_expired, seconds=seconds), share="services")

    async def note_end_of(self, process: str) -> None:
        """Note that a process has ended, before its lease does."""
        await self._database.write(partial(rows.forget_process, process=process), share="services")

    # Tasks that run here

    async def keep_alive(self, sql: AsyncConnection) -> None:
        """Note in a transaction that this process lives, as it is about to run a task."""
        self._is_alive = True
        await rows.keep_alive(sql, self.process, self._limits.lease_seconds)

    def begin(self, recorder: TaskRecorder) -> None:
        """Keep the lease of a task that this process runs, until `end`."""
        self._running[recorder.held.task_id] = recorder
        if self._renewing is None:
            self._renewing = self._tasks.spawn(self._renew(), name="lease of tasks", report=True)

    def end(self, held: Held) -> None:
        self._running.pop(held.task_id, None)
        if not self._running and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease_seconds / RENEWALS)
            with suppress(DatabaseUnavailableError):
                await self._database.write(self.keep_alive, share="services")

    # Answers

    def look_for_answers(self) -> None:
        """Look for answers that come to other processes, as long as a question of this process is open."""
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.spawn(self._look(), name="answers to questions", report=True)

    async def _look(self) -> None:
        while asking := [id_ for id_, recorder in self._running.items() if recorder.open_questions]:
            await asyncio.sleep(self._limits.look_seconds)
            with suppress(DatabaseUnavailableError):
                self.deliver(await self._database.read(partial(rows.answers_of, task_ids=asking)))

    def deliver(self, answers: Mapping[str, Answer]) -> None:
        """Give answers, by the ids of their questions, to the tasks that run here and wait for them."""
        for question_id, answer in answers.items():
            for recorder in self._running.values():
                recorder.deliver(question_id, answer)

    # Tasks of ended processes

    def look_for_tasks[T](
        self, claim: Callable[[], Awaitable[T | None]], go_on: Callable[[T], Coroutine[Any, Any, None]], give_up: GiveUp
    ) -> None:
        """Go on with tasks of ended processes from now on.

        Args:
            claim: takes one, or returns None.
            go_on: runs one to its end; it does not raise.
            give_up: ends one that cannot go on, in the transaction that has found it.
        """
        self._tasks.spawn(self._claim_all(claim, go_on, give_up), name="tasks of ended processes", report=True)

    async def _claim_all[T](
        self, claim: Callable[[], Awaitable[T | None]], go_on: Callable[[T], Coroutine[Any, Any, None]], give_up: GiveUp
    ) -> None:
        clean_at = 0.0
        while True:
            await asyncio.sleep(self._limits.claim_seconds * random.uniform(0.5, 1.5))  # noqa: S311  no secret
            if not self._service.is_available:
                continue
            with suppress(DatabaseUnavailableError):
                while (task := await claim()) is not None:
                    self._tasks.spawn(go_on(task), name="task of an ended process", report=True)
                if clean_at < (now := asyncio.get_running_loop().time()):
                    clean_at = now + self._limits.clean_seconds
                    await self._database.write(partial(_clean, give_up=give_up), share="services")


async def _clean(sql: AsyncConnection, give_up: GiveUp) -> None:
    await rows.expire_questions(sql)
    while (stuck := await rows.given_up(sql)) is not None:
        await give_up(sql, stuck)
