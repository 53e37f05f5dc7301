"""Used states of calls in the database: each is accepted once by all gateways on it, also after a restart."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, select
from sqlalchemy.dialects.postgresql import insert

from pallas_gateway.database.connections import OPERATION_SECONDS, tried_again
from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.database.tables import now, used_states
from pallas_gateway.questions.used_states import StatesUnavailableError, UsedStates
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.database.connections import Database, Work


class StoredStates:
    """The `StateUses` of gateways that share a database.

    A row names the process that has used the state. So a process whose write was committed, and that did not hear so,
    can use the state again; `_here` keeps two requests of one process apart.
    """

    def __init__(self, database: Database, process: str, use_seconds: float, *, is_open: Callable[[], bool]) -> None:
        """Take the database, and what it is asked with.

        Args:
            database: of the threads.
            process: a unique name.
            use_seconds: A request waits so long for one attempt to use its state.
            is_open: returns True once the tables are there.
        """
        self._database = database
        self._use_seconds = use_seconds
        self._process = process
        self._is_open = is_open
        self._here = UsedStates()
        self._tasks = TaskOwner()

    async def close(self) -> None:
        """Wait (bounded) for states that are being given back."""
        await self._tasks.__aexit__()

    @property
    def is_available(self) -> bool:
        return self._is_open() and self._database.is_up

    async def use(self, ticket: str, seconds: float) -> bool:
        if not self._here.note(ticket, seconds):
            return False
        using = self._tasks.spawn(self._stored(ticket, seconds), name="use of a state")
        try:
            is_first = await asyncio.shield(using)
        except asyncio.CancelledError:
            self._tasks.spawn(self._taken_back(using, ticket), name="return of a state")
            raise
        except DatabaseUnavailableError:
            self._here.give_back(ticket)
            raise StatesUnavailableError from None
        if not is_first:
            self._here.give_back(ticket)
        return is_first

    async def give_back(self, ticket: str) -> None:
        """Accept the state again; if the database is away for some seconds, only at this process."""
        mine = and_(used_states.c.ticket == ticket, used_states.c.process == self._process)
        with suppress(DatabaseUnavailableError):
            await self._write(lambda sql: sql.execute(delete(used_states).where(mine)))
        self._here.give_back(ticket)

    async def remove_expired(self, seconds: float) -> None:
        """Delete states `seconds` after they have expired, because clocks of replicas differ."""
        expired = delete(used_states).where(used_states.c.valid_until < now() - int(seconds * 1000))
        await self._database.write(lambda sql: sql.execute(expired), share="services")

    async def _stored(self, ticket: str, seconds: float) -> bool:
        """Add the row of a state; return whether it is one of this process."""
        if not self._is_open():
            raise DatabaseUnavailableError
        values = {"ticket": ticket, "process": self._process, "valid_until": now() + int(seconds * 1000)}
        added = insert(used_states).values(values).on_conflict_do_nothing()  # SQLite writes it in the same way

        async def written(sql: AsyncConnection) -> bool:
            if (await sql.execute(added)).rowcount == 1:
                return True
            used_by = select(used_states.c.process).where(used_states.c.ticket == ticket)
            return (await sql.execute(used_by)).scalar_one_or_none() == self._process

        return await self._write(written, self._use_seconds)

    async def _write[T](self, work: Work[T], seconds: float = OPERATION_SECONDS) -> T:
        return await tried_again(lambda: self._database.write(work, seconds=seconds, share="services"))

    async def _taken_back(self, using: asyncio.Task[bool], ticket: str) -> None:
        await asyncio.wait({using})
        if not using.cancelled() and using.exception() is None and not using.result():
            self._here.give_back(ticket)  # another process has used it
        else:
            await self.give_back(ticket)
