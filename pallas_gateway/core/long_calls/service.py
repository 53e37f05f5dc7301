"""The tasks of one process: those that it runs, and those of ended processes, with which it goes on."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import and_, true

from pallas_gateway.core.long_calls import rows
from pallas_gateway.shared.database.connections import RENEWALS, tried_again
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.shared.database.tables import tasks
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.core.long_calls.continued_tasks import ContinuedTasks
    from pallas_gateway.core.long_calls.recorder import TaskRecorder
    from pallas_gateway.core.long_calls.records import Cancelled, ClaimedTask, Held
    from pallas_gateway.limits import TaskLimits
    from pallas_gateway.shared.database.service import GatewayDatabase
    from pallas_gateway.shared.database.tables import AnyRow

MOST_LISTED = 1000
"""Open tasks of one list, the oldest."""
_log = logging.getLogger("pallas.threads")


class ExchangesOfThreads(Protocol):
    """What the tasks of turns do to their threads; see `features/threads/store.py`."""

    async def lock(self, sql: AsyncConnection, task: AnyRow) -> bool: ...
    async def take(self, sql: AsyncConnection, task: ClaimedTask) -> bool: ...
    async def cancel(self, thread_id: str, turn: int) -> Cancelled | None: ...


class LongCalls:
    """A part of the database: the tasks of this process.

    Args:
        database: with the tables.
        process: the name of this process.

    Attributes:
        process: as given.
        database: its connections.
        doors: these go on with tasks of ended processes.
        turns: of threads, if there are any.
    """

    def __init__(self, database: GatewayDatabase, process: str, limits: TaskLimits) -> None:
        self.process = process
        self._limits = limits
        self.database = database.connections
        self.doors: dict[Api, ContinuedTasks] = {}
        self.turns: ExchangesOfThreads | None = None
        self._running: dict[str, TaskRecorder] = {}
        self._is_alive = False
        self._tasks = TaskOwner(close_seconds=0)
        self._writes = TaskOwner()
        self._keeping: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        """Look for no further tasks; this process runs none any more."""
        await self._tasks.cancel_all()
        await self._writes.__aexit__()
        if self._is_alive:
            await self.note_end_of(self.process)

    async def remove_expired(self, _: float) -> None:
        await self.database.write(rows.remove_expired, share="services")

    async def note_end_of(self, process: str) -> None:
        """Note that a process has ended, before its lease does; not if the database is away."""
        if self.database.is_available:
            with suppress(DatabaseUnavailableError):
                await self.database.write(partial(rows.forget_process, process=process), share="services")

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

    def runs(self, task_id: str) -> bool:
        """Return whether a task runs here, or its end is not stored yet."""
        return task_id in self._running

    def end(self, held: Held) -> None:
        self._running.pop(held.task_id, None)
        if not self._running:
            for work in self._keeping:
                work.cancel()
            self._keeping = []

    def forget(self, held: Held) -> None:
        """End a task whose client does not know of it."""
        ending = partial(rows.end, which=rows.is_held(held), status="cancelled")
        self._writes.spawn(tried_again(lambda: self.database.write(ending)), name=f"end of task {held.task_id}")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease_seconds / RENEWALS)
            with suppress(DatabaseUnavailableError):
                await self.database.write(self._renewed, share="services")

    async def _renewed(self, sql: AsyncConnection) -> None:
        await self.keep_alive(sql)
        # What was claimed, or has ended, while the database was away, and could not be left: this process lives on.
        await rows.free_others(sql, self.process, [*self._running], self._limits.lease_seconds)

    # All open tasks

    async def open_tasks(self, *, owner: str | None = None, call_id: str | None = None) -> Sequence[AnyRow]:
        """Return the open tasks of an owner, and of a call, or all, as `rows.open_tasks`.

        Raises:
            DatabaseUnavailableError: the database cannot be used.
        """
        asked = ((tasks.c.owner, owner), (tasks.c.call_id, call_id))
        which = and_(true(), *(column == value for column, value in asked if value is not None))
        return await self.database.read(partial(rows.open_tasks, which=which, most=MOST_LISTED))

    async def cancel_task(self, task: AnyRow) -> Cancelled | None:
        """End a task as `rows.cancel` does, with its turn; raises as `open_tasks`."""
        if task.thread_id is not None and self.turns is not None:
            return await self.turns.cancel(task.thread_id, task.turn)
        return await self.database.write(lambda sql: rows.cancel(sql, tasks.c.id == task.id))

    async def end_task_of(self, call_id: str) -> None:
        """End the task of a call that runs here, and that ends its turn itself; raises as `open_tasks`."""
        await self.database.write(lambda sql: rows.end(sql, tasks.c.call_id == call_id, "cancelled"))

    # Answers and cancellations

    async def _look(self) -> None:
        """Look for answers and cancellations that came to other processes."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            running = [*self._running.values()]
            held = [recorder.held for recorder in running]
            asking = [id_ for id_, recorder in self._running.items() if recorder.open_questions]
            with suppress(DatabaseUnavailableError):
                lost = await self.database.read(partial(rows.lost, held=held))
                for recorder in running:  # this process may have claimed such a task meanwhile
                    if (id_ := recorder.held.task_id) in lost:
                        recorder.lose(was_cancelled=lost[id_])
                if asking:
                    self.deliver(await self.database.read(partial(rows.answers_of, task_ids=asking)))

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

    async def claim(self, which: ColumnElement[bool], *, owner: str | None = None) -> ClaimedTask | None:
        """Take a task that nobody runs, with the lease of its thread; None if there is none.

        With `owner`, a request of the owner continues it. If the caller is cancelled meanwhile, it is left again.
        """
        claiming = self.database.write(partial(self._claimed, which=which, owner=owner))
        return await self._writes.unless_cancelled(claiming, self.leave, name="claim of a task")

    async def _claimed(self, sql: AsyncConnection, which: ColumnElement[bool], owner: str | None) -> ClaimedTask | None:
        if (found := await rows.next_free(sql, which, owner)) is None:
            return None
        turns = self.turns if found.thread_id is not None else None
        if turns is not None and not await turns.lock(sql, found):  # the thread first, as all others do
            return None
        its = tasks.c.id == found.id
        if (task := await rows.claim(sql, self.process, its, owner=owner)) is None:
            return None
        await self.keep_alive(sql)
        if turns is not None and not await turns.take(sql, task):
            await rows.end(sql, its, "failed")
            return None
        return task

    async def leave(self, task: ClaimedTask, wait_seconds: float = 0) -> None:
        """Leave a claimed task to any process, after a pause; if that fails, others find it when the leases end."""
        with suppress(DatabaseUnavailableError):
            await self.database.write(partial(rows.hand_over, held=task.held, wait_seconds=wait_seconds))

    def look_for_tasks(self) -> None:
        """Have the `doors` go on with tasks of ended processes from now on."""
        self._tasks.spawn(self._look_for_tasks(), name="tasks of ended processes", report=True)

    async def _look_for_tasks(self) -> None:
        now = asyncio.get_running_loop().time
        begin_at = clean_at = 0.0
        tries = self.database.tries
        while True:
            await asyncio.sleep(self._limits.claim_seconds * random.uniform(0.5, 1.5))  # noqa: S311  no secret
            if tries != (tries := self.database.tries):  # it was away: living processes renew their leases first
                begin_at = now() + self._limits.lease_seconds
            if not self.database.is_available or now() < begin_at:
                continue
            if cleans := clean_at < now():
                clean_at = now() + self._limits.clean_seconds
            for api, door in [*self.doors.items()]:
                await self._look_at(api, door, cleans=cleans)
            if cleans:
                await self._measure()

    async def _measure(self) -> None:
        if (metrics := self.database.metrics) is not None:
            with suppress(DatabaseUnavailableError):
                metrics.show_tasks(await self.database.read(rows.counts, share="services"))

    async def _look_at(self, api: Api, door: ContinuedTasks, *, cleans: bool) -> None:
        given_up = partial(rows.given_up, api=api, seconds=self._limits.lease_seconds)

        async def give_up(sql: AsyncConnection) -> bool:
            return (stuck := await given_up(sql)) is not None and await door.give_up(sql, stuck)

        try:
            free = await self.database.read(partial(rows.next_free, which=tasks.c.api == api))
            while free is not None and (task := await door.claim()) is not None:
                door.go_on(task)
            if cleans:
                await self.database.write(rows.expire_questions, share="services")
            if await self.database.read(given_up) is not None:
                while await self.database.write(give_up, share="services"):
                    pass
        except DatabaseUnavailableError:
            pass  # the database has logged it
        except Exception:  # noqa: BLE001  one that fails must not end the look for others
            # A fault of the gateway.
            _log.exception("look for tasks failed")
