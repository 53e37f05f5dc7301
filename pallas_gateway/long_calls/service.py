"""The tasks of one process: those that it runs, and those of ended processes, with which it goes on."""

from __future__ import annotations

import asyncio
import logging
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

    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.database.service import GatewayDatabase
    from pallas_gateway.database.tables import AnyRow
    from pallas_gateway.limits import TaskLimits
    from pallas_gateway.long_calls.recorder import TaskRecorder
    from pallas_gateway.long_calls.records import Held

    type GiveUp = Callable[[AsyncConnection, AnyRow], Awaitable[object]]

_log = logging.getLogger("pallas.threads")


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
        self._keeping: list[asyncio.Task[None]] = []

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
        """Keep the lease of a task that this process runs, until `end`; if it is lost, `recorder.lose` is called."""
        self._running[recorder.held.task_id] = recorder
        if not self._keeping:
            works = {"answers and cancellations of tasks": self._look(), "lease of tasks": self._renew()}
            self._keeping = [self._tasks.spawn(work, name=name, report=True) for name, work in works.items()]

    def end(self, held: Held) -> None:
        self._running.pop(held.task_id, None)
        if not self._running:
            for work in self._keeping:
                work.cancel()
            self._keeping = []

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease_seconds / RENEWALS)
            with suppress(DatabaseUnavailableError):
                await self._database.write(self._renewed, share="services")

    async def _renewed(self, sql: AsyncConnection) -> None:
        await self.keep_alive(sql)
        # What was claimed, or has ended, while the database was away, and could not be left: this process lives on.
        await rows.free_others(sql, self.process, [*self._running], self._limits.lease_seconds)

    # Answers and cancellations

    async def _look(self) -> None:
        """Look for answers and cancellations that came to other processes."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            running = [recorder for recorder in self._running.values() if recorder.is_stored]
            held = [recorder.held for recorder in running]
            asking = [id_ for id_, recorder in self._running.items() if recorder.open_questions]
            with suppress(DatabaseUnavailableError):
                lost = await self._database.read(partial(rows.lost, held=held))
                for recorder in running:  # this process may have claimed such a task meanwhile
                    if (id_ := recorder.held.task_id) in lost:
                        recorder.lose(was_cancelled=lost[id_])
                if asking:
                    self.deliver(await self._database.read(partial(rows.answers_of, task_ids=asking)))

    def cancel(self, task_id: str) -> None:
        """End the run of a task that was cancelled, if it is here."""
        if (recorder := self._running.get(task_id)) is not None:
            recorder.lose(was_cancelled=True)

    def deliver(self, answers: Mapping[str, Answer]) -> None:
        """Give answers, by the ids of their questions, to the tasks that run here and wait for them."""
        for question_id, answer in answers.items():
            for recorder in self._running.values():
                recorder.deliver(question_id, answer)

    # Tasks of ended processes

    def look_for_tasks[T](
        self,
        api: Api,
        claim: Callable[[], Awaitable[T | None]],
        go_on: Callable[[T], Coroutine[Any, Any, None]],
        give_up: GiveUp,
    ) -> None:
        """Go on with tasks of ended processes from now on.

        Args:
            api: of their requests.
            claim: takes one, or returns None.
            go_on: runs one to its end; it does not raise.
            give_up: ends one that cannot go on, in the transaction that has found it.
        """
        looking = self._claim_all(api, claim, go_on, partial(_clean, api=api, give_up=give_up))
        self._tasks.spawn(looking, name="tasks of ended processes", report=True)

    async def _claim_all[T](
        self,
        api: Api,
        claim: Callable[[], Awaitable[T | None]],
        go_on: Callable[[T], Coroutine[Any, Any, None]],
        clean: Callable[[AsyncConnection], Awaitable[None]],
    ) -> None:
        now = asyncio.get_running_loop().time
        begin_at = clean_at = 0.0
        tries = self._database.tries
        while True:
            await asyncio.sleep(self._limits.claim_seconds * random.uniform(0.5, 1.5))  # noqa: S311  no secret
            if tries != (tries := self._database.tries):  # it was away: living processes renew their leases first
                begin_at = now() + self._limits.lease_seconds
            if not self._service.is_available or now() < begin_at:
                continue
            try:
                is_free = await self._database.read(partial(rows.has_free, api=api))
                while is_free and (task := await claim()) is not None:
                    self._tasks.spawn(go_on(task), name="task of an ended process", report=True)
                if clean_at < now():
                    clean_at = now() + self._limits.clean_seconds
                    await self._database.write(clean, share="services")
                    await self._measure()
            except DatabaseUnavailableError:
                pass  # the database has logged it
            except Exception:  # noqa: BLE001  one that fails must not end the look for others
                # A mistake of the gateway's own; it looks again.
                _log.exception("look for tasks failed")

    async def _measure(self) -> None:
        if (metrics := self._database.metrics) is not None:
            metrics.show_tasks(await self._database.read(rows.counts, share="services"))


async def _clean(sql: AsyncConnection, api: Api, give_up: GiveUp) -> None:
    await rows.expire_questions(sql)
    while (stuck := await rows.given_up(sql, api)) is not None:
        await give_up(sql, stuck)
