"""The carrier of all gateways on one database: its locks decide between them, and its clock measures.

What the calls of this process ask at one moment is decided in one transaction, so that they do not wait for each
other's locks, and use one connection.

A lease of a call ends with the row of its process, which is renewed. What a process holds in memory is the truth of its
leases: with each renewal the database has the same.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete
from sqlalchemy.dialects.postgresql import insert

from pallas_gateway.shared import counter_rows
from pallas_gateway.shared.counters import MOST_COUNTERS, charged, decided, limits_without_room
from pallas_gateway.shared.database.connections import OPERATION_SECONDS, RENEWALS, tried_again
from pallas_gateway.shared.database.errors import DatabaseBusyError, DatabaseUnavailableError
from pallas_gateway.shared.database.tables import now, used_states
from pallas_gateway.shared.protocol import SharedAnswer, SharedAwayError
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.shared.counter_rows import LeaseRow, StoredCounter
    from pallas_gateway.shared.database.connections import Database, Work
    from pallas_gateway.shared.protocol import Scope, UsedCounter, Wanted

MOST_AT_ONCE = 64
"""Requests that one transaction decides."""


@dataclass(eq=False, slots=True)
class _Request:
    """A call to admit under the number of a lease, or tokens to add."""

    wanted: Sequence[Wanted]
    lease: int | None = None
    tokens: int = 0
    answer: asyncio.Future[SharedAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def counter_ids(self, shared: set[str]) -> list[str]:
        """Return the ids of the counters; `shared` are those that have no row of their own."""
        own = [(counter_rows.id_of(one), one) for one in self.wanted]
        return [counter_rows.shared_id(counter_rows.scope_of(one)) if id_ in shared else id_ for id_, one in own]


class Sql:
    """The `Shared` of one process on a database.

    Args:
        database: of the threads.
        lease_seconds: leases of a killed process count so long.
        answer_seconds: longest wait for one transaction of counters.
        value_seconds: longest wait for one attempt to keep a value.
        most: counters of one scope.
        release_seconds: A call without a free lease asks a second time after this pause, because the end of the
            caller's last call may still be on its way from another process.
    """

    def __init__(  # noqa: PLR0913  the times are limits, and for tests
        self,
        database: Database,
        lease_seconds: float,
        *,
        answer_seconds: float,
        value_seconds: float = OPERATION_SECONDS,
        most: int = MOST_COUNTERS,
        release_seconds: float = 0.1,
    ) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._answer_seconds = answer_seconds
        self._value_seconds = value_seconds
        self._most = most
        self._release_seconds = release_seconds
        self._process = secrets.token_hex(16)
        self._held: dict[int, Sequence[str]] = {}
        self._ended: list[int] = []
        self._asked: list[_Request] = []
        self._unanswered: list[_Request] = []
        """Those of the present transaction."""
        self._renew_at = -math.inf
        self._late_at = -1
        """Number of tries of the database when a transaction took too long; it counts again after the next one."""
        self._has_leases = False
        self._tasks = TaskOwner()
        self._renewing = TaskOwner(close_seconds=0)
        self._deciding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Wait (bounded) for what is being written, and end the leases of this process."""
        await self._renewing.cancel_all()
        await self._tasks.__aexit__()
        if self._has_leases and self.counts:
            with suppress(DatabaseUnavailableError):
                gone = partial(counter_rows.forget_process, process=self._process)
                await self._database.write(gone, share="services")

    @property
    def is_available(self) -> bool:
        return self._database.is_available

    @property
    def counts(self) -> bool:
        """True unless a transaction of counters has just taken too long."""
        return self.is_available and self._database.tries > self._late_at

    # Counters

    async def acquire(self, lease: int, wanted: Sequence[Wanted]) -> SharedAnswer:
        answer = await self._answer(_Request(wanted, lease))
        if answer.refused is not None and answer.refused.measure == "calls at once":
            await asyncio.sleep(self._release_seconds)
            answer = await self._answer(_Request(wanted, lease))
        return answer

    async def add(self, wanted: Sequence[Wanted], tokens: int) -> SharedAnswer:
        return await self._answer(_Request(wanted, tokens=tokens))

    def hold(self, lease: int, wanted: Sequence[Wanted]) -> None:
        if ids := [counter_rows.id_of(one) for one in wanted if one.calls_at_once is not None]:
            self._hold(lease, ids)
            self._renew_at = -math.inf

    def release(self, lease: int) -> None:
        """End a lease in the background; while the database is away, when it is back."""
        if self._held.pop(lease, None) is None:
            return
        if self.counts:
            self._ended.append(lease)
            self._wake()
        else:
            self._renew_at = -math.inf

    async def read(self, wanted: Sequence[Wanted]) -> Sequence[UsedCounter | None]:
        found = await self._read(partial(counter_rows.used_of, ids=[counter_rows.id_of(one) for one in wanted]))
        return [*found]

    async def busiest(self, scopes: Sequence[Scope]) -> Sequence[tuple[int, int, int]]:
        return await self._read(partial(counter_rows.busiest, scopes=scopes))

    async def remove_expired(self, seconds: float) -> None:
        """Delete what no longer counts, `seconds` after that, because clocks of replicas differ."""
        for work in (counter_rows.clean, counter_rows.clean_processes):
            await self._database.write(partial(work, seconds=seconds), share="services")
        expired = delete(used_states).where(used_states.c.valid_until <= now() - int(seconds * 1000))
        await self._database.write(lambda sql: sql.execute(expired), share="services")

    # Values

    async def first(self, key: str, value: str, seconds: float) -> str:
        values = {"ticket": key, "process": value, "valid_until": now() + int(seconds * 1000)}
        added = insert(used_states).values(values)  # SQLite writes it in the same way
        # One statement: between two, the kept value may be removed.
        kept = added.on_conflict_do_update(index_elements=["ticket"], set_={"ticket": added.excluded.ticket})
        found = await self._write(lambda sql: sql.execute(kept.returning(used_states.c.process)), self._value_seconds)
        return str(found.scalar_one())

    async def forget(self, key: str, value: str) -> None:
        mine = and_(used_states.c.ticket == key, used_states.c.process == value)
        await self._write(lambda sql: sql.execute(delete(used_states).where(mine)), OPERATION_SECONDS)

    async def _write[T](self, work: Work[T], seconds: float) -> T:
        if not self._database.is_open:  # at once: nothing is tried again
            raise SharedAwayError
        try:
            return await tried_again(lambda: self._database.write(work, seconds=seconds, share="services"))
        except DatabaseUnavailableError:
            raise SharedAwayError from None

    async def _read[T](self, work: Work[T]) -> T:
        if not self.counts:
            raise SharedAwayError
        try:
            return await self._database.read(work, share="services")
        except DatabaseUnavailableError:
            raise SharedAwayError from None

    # Transactions of counters

    async def _answer(self, request: _Request) -> SharedAnswer:
        if not self.counts:
            raise SharedAwayError
        self._asked.append(request)
        self._wake()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if not request.answer.cancelled() and request.answer.exception() is None and request.lease is not None:
                self.release(request.lease)  # the answer has come, and is not used
            raise

    def _wake(self) -> None:
        if self._deciding is None or self._deciding.done():
            self._deciding = self._tasks.spawn(self._decide_all(), name="counters in the database", report=True)

    async def _decide_all(self) -> None:
        try:
            while self._asked or self._ended or self._is_renewal_due:
                batch, self._asked = self._asked[:MOST_AT_ONCE], self._asked[MOST_AT_ONCE:]
                self._unanswered = batch = [one for one in batch if not one.answer.done()]
                for request, answer in zip(batch, await self._decided(batch), strict=True):
                    self._give(request, *answer)
        except DatabaseUnavailableError:  # the database has logged it
            self._renew_at = -math.inf  # the transaction may be committed: the leases are compared
            self._ended = []
        finally:
            left, self._unanswered, self._asked = [*self._unanswered, *self._asked], [], []
            for request in left:
                if not request.answer.done():
                    request.answer.set_exception(SharedAwayError())

    def _give(self, request: _Request, answer: SharedAnswer, held: Sequence[str]) -> None:
        if held and request.lease is not None:
            self._hold(request.lease, held)
        if not request.answer.done():
            request.answer.set_result(answer)
        elif request.lease is not None:  # its call has ended meanwhile
            self.release(request.lease)

    async def _decided(self, batch: Sequence[_Request]) -> Sequence[_Decision]:
        clock = asyncio.get_running_loop().time
        began = clock()
        latest = began + self._answer_seconds
        takes_lease = any(wanted.calls_at_once is not None for one in batch for wanted in one.wanted)
        renews = self._is_renewal_due or (takes_lease and began >= self._renew_at)
        ended, self._ended = self._ended, []
        transaction = _Transaction(batch, self._process, self._lease_seconds, ended)
        if renews:
            transaction.renewed = dict(self._held)
        try:
            while await self._database.write(transaction.run, seconds=latest - clock(), share="calls"):
                added = partial(counter_rows.add, wanted=transaction.missing, most=self._most)
                transaction.shared |= await self._database.write(added, seconds=latest - clock(), share="calls")
        except DatabaseUnavailableError as error:
            transaction.is_given_up = True
            if isinstance(error, DatabaseBusyError) and self._database.is_late:
                self._late_at = self._database.tries
            raise
        if renews:
            self._renew_at = began + self._lease_seconds / RENEWALS
        return transaction.answers

    @property
    def _is_renewal_due(self) -> bool:
        return self._has_leases and asyncio.get_running_loop().time() >= self._renew_at

    def _hold(self, lease: int, counters: Sequence[str]) -> None:
        self._held[lease] = counters
        if not self._has_leases:
            self._has_leases = True
            self._renewing.spawn(self._keep_renewed(), name="leases of calls", report=True)

    async def _keep_renewed(self) -> None:
        pause = self._lease_seconds / RENEWALS
        while True:
            await asyncio.sleep(max(self._renew_at - asyncio.get_running_loop().time(), pause / 8))
            if self.counts:
                self._wake()


type _Decision = tuple[SharedAnswer, Sequence[str]]
"""With the ids of the counters that hold a lease."""


@dataclass(slots=True)
class _Transaction:
    """One transaction, which may run again after it has found counters `missing`, by their ids with their scopes.

    Attributes:
        renewed: the leases that the process holds and renews, with their counters; None for no renewal.
        shared: ids of counters that have no row of their own, because there are too many.
        is_given_up: its requests have been answered; it must not be committed any more.
    """

    requests: Sequence[_Request]
    process: str
    lease_seconds: float
    ended: Sequence[int]
    renewed: Mapping[int, Sequence[str]] | None = None
    shared: set[str] = field(default_factory=set)
    is_given_up: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[_Decision] = ()

    async def run(self, sql: AsyncConnection) -> bool:
        """Decide and write; return True, without a decision, if counters are missing."""
        if self.renewed is not None:
            await counter_rows.renew(sql, self.process, self.lease_seconds, self._lease_rows(self.renewed))
        if self.ended:
            await counter_rows.end_leases(sql, self.process, self.ended)
        if self.requests:
            await self._count(sql)
        if self.is_given_up:
            raise DatabaseUnavailableError
        return bool(self.missing)

    async def _count(self, sql: AsyncConnection) -> None:
        ids = [request.counter_ids(self.shared) for request in self.requests]
        wanted = {
            id_: one
            for of_request, request in zip(ids, self.requests, strict=True)
            for id_, one in zip(of_request, request.wanted, strict=True)
        }
        locked = await counter_rows.lock(sql, wanted.keys())
        self.missing = {id_: counter_rows.scope_of(one) for id_, one in wanted.items() if id_ not in locked}
        if self.missing:
            return
        most = {id_: one.calls_per_minute for id_, one in wanted.items() if one.calls_per_minute is not None}
        at = await counter_rows.read(sql, locked, most, Counter(chain.from_iterable(ids)))
        self.answers = [
            _decide(request, list(zip(request.wanted, map(locked.__getitem__, one), strict=True)), at)
            for one, request in zip(ids, self.requests, strict=True)
        ]
        decisions = zip(self.requests, self.answers, strict=True)
        leases = self._lease_rows({request.lease: held for request, (_, held) in decisions if request.lease and held})
        await counter_rows.write(sql, [one for one in locked.values() if one.is_changed], at, leases)

    def _lease_rows(self, held: Mapping[int, Sequence[str]]) -> list[LeaseRow]:
        return [
            {"process": self.process, "number": number, "counter": counter}
            for number, counters in held.items()
            for counter in counters
        ]


def _decide(request: _Request, counted: Sequence[tuple[Wanted, StoredCounter]], at: float) -> _Decision:
    if request.lease is None:
        return charged(counted, request.tokens, at), ()
    answer = decided(limits_without_room(counted, at, at), request.wanted)
    for wanted, counter in counted if answer.refused is None else ():
        if wanted.calls_per_minute is not None:
            counter.start(at)
        if wanted.calls_at_once is not None:
            counter.take_lease()
    held = [counter.id for wanted, counter in counted if wanted.calls_at_once is not None]
    return answer, held if answer.refused is None else ()
