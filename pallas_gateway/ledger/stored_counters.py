"""Counters of `gateway.limits` in the database, exact over all gateways on it.

What the calls of this process ask at one moment is decided in one transaction, so that they do not wait for each
other's locks, and use one connection. Windows, days and leases are measured by the database's clock.

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
from itertools import chain, count
from typing import TYPE_CHECKING

from pallas_gateway.database.errors import DatabaseBusyError, DatabaseUnavailableError
from pallas_gateway.database.leases import RENEWALS
from pallas_gateway.ledger import counter_rows
from pallas_gateway.ledger.counters import MOST_COUNTERS, charged, limits_without_room, report, used_limits
from pallas_gateway.ledger.rules import tightest
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.calls.permit import Excess
    from pallas_gateway.database.connections import Database
    from pallas_gateway.ledger.counter_rows import LeaseRow, StoredCounter
    from pallas_gateway.ledger.protocol import CallEntry, UsedLimit
    from pallas_gateway.ledger.rules import Exceeded, Rule, Rules

MOST_AT_ONCE = 64
"""Requests that one transaction decides."""
MEASURE_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class _Request:
    """A call to admit, or tokens to charge to one."""

    rules: Sequence[Rule]
    entry: CallEntry
    tokens: int | None = None
    answer: asyncio.Future[_Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def counter_ids(self, shared: set[str]) -> list[str]:
        """Return the ids of the rules' counters; `shared` are those that have no row of their own."""
        own = [counter_rows.counter_id(rule, self.entry) for rule in self.rules]
        return [
            counter_rows.shared_id(scope) if id_ in shared else id_ for scope, id_ in zip(self.scopes, own, strict=True)
        ]

    @property
    def scopes(self) -> list[str]:
        """The scopes of the rules' counters."""
        return [counter_rows.scope_of(rule, self.entry.account) for rule in self.rules]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The decision of a transaction: the limit that refuses, others that are exceeded, and a lease in its counters."""

    refused: Exceeded | None
    exceeded: Sequence[Exceeded]
    lease: int | None = None
    held: Sequence[str] = ()


class StoredCounters:
    """Counts calls and tokens in the database.

    Args:
        database: of the threads.
        lease_seconds: leases of a killed process count so long.
        answer_seconds: longest wait for one transaction.
        is_open: returns True once the tables are there.
        most: counters of one rule.
        release_seconds: A call without a free lease asks a second time after this pause, because the end of the
            caller's last call may still be on its way from another process.
    """

    def __init__(  # noqa: PLR0913  the times are limits, and for tests
        self,
        database: Database,
        lease_seconds: float,
        *,
        answer_seconds: float,
        is_open: Callable[[], bool],
        most: int = MOST_COUNTERS,
        release_seconds: float = 0.1,
    ) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._answer_seconds = answer_seconds
        self._is_open = is_open
        self._most = most
        self._release_seconds = release_seconds
        self._process = secrets.token_hex(16)
        self._numbers = count(1)
        self._held: dict[int, Sequence[str]] = {}
        self._ended: list[int] = []
        self._asked: list[_Request] = []
        self._unanswered: list[_Request] = []
        """Those of the present transaction."""
        self._renew_at = -math.inf
        self._late_at = -1
        """Number of tries of the database when a transaction took too long; it counts again after the next one."""
        self._has_leases = False
        self._rules: Rules | None = None
        self._measured: Mapping[str, float] = {}
        self._measure_at = -math.inf
        self._tasks = TaskOwner()
        self._renewing = TaskOwner(close_seconds=0)
        self._deciding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Wait (bounded) for what is being written, and end the leases of this process."""
        await self._renewing.cancel_all()
        await self._tasks.__aexit__()
        if self._has_leases and self.is_available:
            with suppress(DatabaseUnavailableError):
                gone = partial(counter_rows.forget_process, process=self._process)
                await self._database.write(gone, share="services")

    @property
    def is_available(self) -> bool:
        return self._is_open() and self._database.is_up and self._database.tries > self._late_at

    async def begin(self, rules: Sequence[Rule], entry: CallEntry) -> int | None:
        """Count a call, and return its lease, if a rule requires one. A nested call is only decided.

        Args:
            rules: those that match the call.
            entry: the call.

        Raises:
            CallLimitedError: by the rule with the longest wait; nothing was counted.
            DatabaseUnavailableError: the database is away, or did not answer in time.
        """
        answer = await self._answer(_Request(rules, entry))
        if answer.refused is not None and answer.refused.measure == "calls at once":
            await asyncio.sleep(self._release_seconds)
            answer = await self._answer(_Request(rules, entry))
        if answer.refused is not None:
            raise answer.refused.error()
        for one in answer.exceeded:
            report(one, entry)
        return answer.lease

    async def charge(self, rules: Sequence[Rule], entry: CallEntry, tokens: int) -> Excess | None:
        """Charge tokens by rules that limit them; return the excess of one that is used up.

        Raises:
            DatabaseUnavailableError: as `begin`.
        """
        answer = await self._answer(_Request(rules, entry, tokens))
        for one in answer.exceeded:
            report(one, entry)
        return answer.refused.excess() if answer.refused is not None else None

    def hold(self, rules: Sequence[Rule], entry: CallEntry) -> int | None:
        """Return a lease for a call that was admitted without the database, which gets it when it is back."""
        ids = [counter_rows.counter_id(rule, entry) for rule in rules if rule.settings.calls_at_once is not None]
        if not ids or entry.parent is not None:
            return None
        number = next(self._numbers)
        self._hold(number, ids)
        self._renew_at = -math.inf
        return number

    def end(self, lease: int) -> None:
        """Release a lease, in the background; while the database is away, when it is back."""
        del self._held[lease]
        if self.is_available:
            self._ended.append(lease)
            self._wake()
        else:
            self._renew_at = -math.inf

    def use(self, rules: Rules | None) -> None:
        """Measure the use of these rules from now on."""
        self._rules = rules
        self._measured = {}

    async def used(self, rules: Sequence[tuple[Rule, str]], account: str) -> Sequence[UsedLimit]:
        """Return what an account has used of rules, each given with an agent of its counter.

        Raises:
            DatabaseUnavailableError: the database is away.
        """
        if not self.is_available:
            raise DatabaseUnavailableError
        ids = {counter_rows.id_of(rule, account, agent): (rule, agent) for rule, agent in rules}
        used, wall = await self._database.read(partial(counter_rows.used_of, ids=[*ids]), share="services")
        nothing = counter_rows.Used(0, None, 0, 0)
        found = ((rule, agent, used.get(id_, nothing)) for id_, (rule, agent) in ids.items())
        return [
            limit
            for rule, agent, one in found
            for limit in used_limits(rule, agent, (one.started, one.leaves), one.running, (one.tokens, wall))
        ]

    def ratios(self) -> Mapping[str, float]:
        """Return the largest share of its limits that any counter of a rule has used, by the name of the rule."""
        return self._measured

    async def measure(self) -> None:
        """Read what `ratios` returns, at most every few seconds."""
        now = asyncio.get_running_loop().time()
        if (rules := self._rules) is None or now < self._measure_at:
            return
        self._measure_at = now + MEASURE_SECONDS
        used = await self._database.read(counter_rows.most_used, share="services")
        if rules is self._rules:
            self._measured = {rule.name: counter_rows.ratio(rule, used) for rule in rules.all}

    async def remove_expired(self, seconds: float) -> None:
        """Delete what no longer counts, `seconds` after that."""
        for work in (counter_rows.clean, counter_rows.clean_processes):
            await self._database.write(partial(work, seconds=seconds), share="services")

    async def _answer(self, request: _Request) -> _Answer:
        if not self.is_available:
            raise DatabaseUnavailableError
        self._asked.append(request)
        self._wake()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if not request.answer.cancelled() and request.answer.exception() is None:
                self._release(request.answer.result())  # it has come, and is not used
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
                    self._give(request, answer)
        except DatabaseUnavailableError:  # the database has logged it
            self._renew_at = -math.inf  # the transaction may be committed: the leases are compared
            self._ended = []
        finally:
            left, self._unanswered, self._asked = [*self._unanswered, *self._asked], [], []
            for request in left:
                if not request.answer.done():
                    request.answer.set_exception(DatabaseUnavailableError())

    def _give(self, request: _Request, answer: _Answer) -> None:
        if answer.lease is not None:
            self._hold(answer.lease, answer.held)
        if not request.answer.done():
            request.answer.set_result(answer)
        else:  # its call has ended meanwhile
            self._release(answer)

    def _release(self, answer: _Answer) -> None:
        if answer.lease is not None:
            self.end(answer.lease)

    async def _decided(self, batch: Sequence[_Request]) -> Sequence[_Answer]:
        clock = asyncio.get_running_loop().time
        began = clock()
        latest = began + self._answer_seconds
        takes_lease = any(rule.settings.calls_at_once is not None for one in batch for rule in one.rules)
        renews = self._is_renewal_due or (takes_lease and began >= self._renew_at)
        ended, self._ended = self._ended, []
        transaction = _Transaction(batch, self._process, self._numbers, ended)
        if renews:
            transaction.renewal = _Renewal(self._lease_seconds, dict(self._held))
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
            if self.is_available:
                self._wake()


@dataclass(frozen=True, slots=True)
class _Renewal:
    """The leases that a process holds and renews, with their counters."""

    seconds: float
    held: Mapping[int, Sequence[str]]


@dataclass(slots=True)
class _Transaction:
    """One transaction, which may run again after it has found counters `missing`, by their ids with their scopes.

    Attributes:
        shared: ids of counters that have no row of their own, because there are too many.
        is_given_up: its requests have been answered; it must not be committed any more.
    """

    requests: Sequence[_Request]
    process: str
    numbers: Iterator[int]
    ended: Sequence[int]
    renewal: _Renewal | None = None
    shared: set[str] = field(default_factory=set)
    is_given_up: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[_Answer] = ()

    async def run(self, sql: AsyncConnection) -> bool:
        """Decide and write; return True, without a decision, if counters are missing."""
        if self.renewal is not None:
            held = self._lease_rows(self.renewal.held)
            await counter_rows.renew(sql, self.process, self.renewal.seconds, held)
        if self.ended:
            await counter_rows.end_leases(sql, self.process, self.ended)
        if self.requests:
            await self._count(sql)
        if self.is_given_up:
            raise DatabaseUnavailableError
        return bool(self.missing)

    async def _count(self, sql: AsyncConnection) -> None:
        ids = [request.counter_ids(self.shared) for request in self.requests]
        of_rules = {
            id_: rule
            for one, request in zip(ids, self.requests, strict=True)
            for id_, rule in zip(one, request.rules, strict=True)
        }
        locked = await counter_rows.lock(sql, of_rules.keys())
        self.missing = {
            id_: scope
            for one, request in zip(ids, self.requests, strict=True)
            for id_, scope in zip(one, request.scopes, strict=True)
            if id_ not in locked
        }
        if self.missing:
            return
        at = await counter_rows.read(sql, locked, of_rules, Counter(chain.from_iterable(ids)))
        self.answers = [
            self._decide(request, list(zip(request.rules, map(locked.__getitem__, one), strict=True)), at)
            for one, request in zip(ids, self.requests, strict=True)
        ]
        leases = self._lease_rows({one.lease: one.held for one in self.answers if one.lease is not None})
        await counter_rows.write(sql, [one for one in locked.values() if one.is_changed], at, leases)

    def _decide(self, request: _Request, counted: Sequence[tuple[Rule, StoredCounter]], at: float) -> _Answer:
        if request.tokens is not None:
            return _Answer(*charged(counted, request.tokens, at))
        over = limits_without_room(counted, at, at, request.entry)
        refused = tightest(over)
        if refused is not None or request.entry.parent is not None:
            return _Answer(refused, over)
        for rule, counter in counted:
            if rule.settings.calls_per_minute is not None:
                counter.start(at)
            if rule.settings.calls_at_once is not None:
                counter.take_lease()
        held = [counter.id for rule, counter in counted if rule.settings.calls_at_once is not None]
        return _Answer(None, over, next(self.numbers) if held else None, held)

    def _lease_rows(self, held: Mapping[int, Sequence[str]]) -> list[LeaseRow]:
        return [
            {"process": self.process, "number": number, "counter": counter}
            for number, counters in held.items()
            for counter in counters
        ]
