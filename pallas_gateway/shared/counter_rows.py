"""The rows of counters and leases, within transactions of `Sql`.

No deadlocks: a transaction takes the locks of its process and its leases, which are no other's, before those of
counters, and these in the order of their ids. Rows of new counters are inserted by a transaction of their own.

The calls of a counter are numbered. With a limit of N, the next call is admitted if the call N numbers before it began
more than a minute ago: one row is read, whatever N is.
"""

from __future__ import annotations

import hashlib
import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, case, delete, exists, func, literal, or_, select, text, union_all, update
from sqlalchemy.dialects.postgresql import insert

from pallas_gateway.identity.caller import is_of_address
from pallas_gateway.shared.counters import DAY_SECONDS, WINDOW_SECONDS, until_midnight
from pallas_gateway.shared.database.tables import ID_CHARACTERS, call_leases, counted_calls, counters, now, processes
from pallas_gateway.shared.protocol import UsedCounter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Subquery
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.shared.database.tables import AnyRow
    from pallas_gateway.shared.protocol import Scope, Wanted

    type LeaseRow = dict[str, Any]

_MINUTE = int(WINDOW_SECONDS * 1000)
_CLEANING = 0x70616C6C6174  # the key of the advisory lock of the process that cleans
_SHARED = "(others)"


def id_of(wanted: Wanted) -> str:
    return _hash((wanted.scope, (wanted.account, wanted.agent)))


def scope_of(wanted: Wanted) -> str:
    """Return the scope of a counter: those of one scope have a limited number of rows."""
    return _scope(wanted.scope, of_strangers=is_of_address(wanted.account))


def shared_id(scope: str) -> str:
    """Return the id of the counter that callers without one of their own share."""
    return _hash((scope, _SHARED))


def _scope(scope: Scope, *, of_strangers: bool) -> str:
    return _hash((scope, of_strangers))


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:ID_CHARACTERS]


class StoredCounter:
    """A counter that a transaction has locked. Times are seconds since 1970 by the database's clock."""

    __slots__ = ("began", "calls", "day", "id", "is_changed", "leases", "started", "today")

    def __init__(self, row: AnyRow) -> None:
        self.id: str = row.id
        self.calls: int = row.calls
        self.day: int = row.day
        self.today: int = row.tokens
        self.leases = 0
        self.began: dict[int, float] = {}
        self.started: list[int] = []
        """Numbers of the calls that this transaction counts."""
        self.is_changed = False

    def start(self, now: float) -> None:
        """Count a call that begins."""
        self.calls += 1
        self.began[self.calls] = now
        self.started.append(self.calls)
        self.is_changed = True

    def wait_for_room(self, most: int, now: float) -> float:
        """Return the seconds until fewer than `most` calls began in the last 60 seconds; 0 if that is so.

        If the clock was set back, calls that began by the time before it are not waited for.
        """
        began = self.began.get(self.calls + 1 - most)
        if began is None or abs(now - began) >= WINDOW_SECONDS:
            return 0.0
        return min(began + WINDOW_SECONDS - now, WINDOW_SECONDS)

    def running(self) -> int:
        """Return the number of calls at once."""
        return self.leases

    def take_lease(self) -> None:
        self.leases += 1
        self.is_changed = True

    def tokens(self, wall: float) -> int:
        """Return the tokens of the present day, or of a later one if the clock was set back."""
        day = int(wall // DAY_SECONDS)
        return self.today if day <= self.day else 0

    def charge(self, tokens: int, wall: float) -> int:
        """Add tokens; return those of the day."""
        self.today = self.tokens(wall) + tokens
        self.day = max(self.day, int(wall // DAY_SECONDS))
        self.is_changed = self.is_changed or tokens > 0
        return self.today


async def lock(sql: AsyncConnection, ids: Collection[str]) -> dict[str, StoredCounter]:
    """Lock the counters that exist, and return them."""
    wanted = select(counters).where(counters.c.id.in_(ids)).order_by(counters.c.id).with_for_update()
    return {row.id: StoredCounter(row) for row in await sql.execute(wanted)}


async def read(
    sql: AsyncConnection, locked: Mapping[str, StoredCounter], most: Mapping[str, int], calls: Mapping[str, int]
) -> float:
    """Read what decides on calls, and return the present time. By another statement than `lock`, which may have waited.

    Args:
        sql: in the transaction that has locked the counters.
        locked: the counters; they take what is read.
        most: calls a minute of counters that limit them.
        calls: how many calls each counter may count in this transaction.
    """
    spans = [
        and_(counted_calls.c.counter == id_, counted_calls.c.number.between(first, first + calls[id_] - 1))
        for id_, of_minute in most.items()
        if (first := locked[id_].calls + 1 - of_minute) + calls[id_] > 1
    ]
    parts = [select(literal("").label("counter"), literal(0).label("number"), now().label("value"))]
    if spans:
        parts.append(
            select(counted_calls.c.counter, counted_calls.c.number, counted_calls.c.began_at).where(or_(*spans))
        )
    parts.append(
        select(call_leases.c.counter, literal(-1), func.count())
        .join(processes, processes.c.process == call_leases.c.process)
        .where(call_leases.c.counter.in_([*locked]), processes.c.alive_until > now())
        .group_by(call_leases.c.counter)
    )
    at = 0.0
    for id_, number, value in await sql.execute(union_all(*parts)):
        if not id_:
            at = value / 1000
        elif number < 0:
            locked[id_].leases = value
        else:
            locked[id_].began[number] = value / 1000
    return at


async def write(sql: AsyncConnection, changed: Sequence[StoredCounter], at: float, leases: Sequence[LeaseRow]) -> None:
    """Write what a transaction has counted, and the leases that it gives."""
    touched = round(at * 1000)
    rows = [
        {"counter_id": one.id, "calls": one.calls, "day": one.day, "tokens": one.today, "touched_at": touched}
        for one in changed
    ]
    if rows:
        await sql.execute(update(counters).where(counters.c.id == bindparam("counter_id")), rows)
    begun = [
        {"counter": one.id, "number": number, "began_at": round(one.began[number] * 1000)}
        for one in changed
        for number in one.started
    ]
    if begun:
        await sql.execute(insert(counted_calls), begun)
    if leases:
        await sql.execute(insert(call_leases), leases)


async def add(sql: AsyncConnection, wanted: Mapping[str, str], most: int) -> set[str]:
    """Insert rows of new counters, given with scopes; return those without a place among the `most` of their scope."""
    refused = set()
    for id_, scope in sorted(wanted.items(), key=itemgetter(0)):
        values = {"id": id_, "scope": scope, "calls": 0, "day": 0, "tokens": 0, "touched_at": now()}
        of_scope = select(func.count()).select_from(counters).where(counters.c.scope == scope)
        if id_ != shared_id(scope) and (await sql.execute(of_scope)).scalar_one() >= most:
            refused.add(id_)
        else:
            await sql.execute(insert(counters).values(values).on_conflict_do_nothing())
    return refused


async def end_leases(sql: AsyncConnection, process: str, numbers: Collection[int]) -> None:
    ended = and_(call_leases.c.process == process, call_leases.c.number.in_(numbers))
    await sql.execute(delete(call_leases).where(ended))


async def renew(sql: AsyncConnection, process: str, seconds: float, held: Iterable[LeaseRow]) -> None:
    """Renew the row of a process, and have exactly the leases that it holds: an outage may have kept some of them."""
    until = {"alive_until": now() + int(seconds * 1000)}
    row = insert(processes).values(process=process, **until)
    await sql.execute(row.on_conflict_do_update(index_elements=["process"], set_=until))
    columns = call_leases.c.number, call_leases.c.counter
    stored = {
        (row.number, row.counter) for row in await sql.execute(select(*columns).where(call_leases.c.process == process))
    }
    wanted = {(row["number"], row["counter"]): row for row in held}
    if ended := {number for number, _ in stored - wanted.keys()}:
        await end_leases(sql, process, ended)
    if missing := [row for key, row in wanted.items() if key not in stored]:
        await sql.execute(insert(call_leases), missing)


async def forget_process(sql: AsyncConnection, process: str) -> None:
    for table in (processes, call_leases):
        await sql.execute(delete(table).where(table.c.process == process))


async def busiest(sql: AsyncConnection, scopes: Sequence[Scope]) -> list[tuple[int, int, int]]:
    """Return the most of any counter of each scope: calls of the last minute, calls at once, tokens of the day."""
    used = _used()
    most = (func.max(one) for one in (used.c.started, used.c.running, used.c.tokens))
    found = {row[0]: row[1:] for row in await sql.execute(select(used.c.scope, *most).group_by(used.c.scope))}
    both = [[found.get(_scope(one, of_strangers=strange), (0, 0, 0)) for strange in (False, True)] for one in scopes]
    return [tuple(map(max, zip(*of_scope, strict=True))) for of_scope in both]


async def used_of(sql: AsyncConnection, ids: Sequence[str]) -> list[UsedCounter]:
    """Return what the counters of these ids have counted."""
    wall = (await sql.execute(select(now()))).scalar_one() / 1000
    used, left = _used(), until_midnight(wall)
    found = {}
    for row in await sql.execute(select(used).where(used.c.id.in_(ids))):
        leaves = row.oldest / 1000 + WINDOW_SECONDS - wall if row.oldest is not None else None
        found[row.id] = UsedCounter(row.started, leaves, row.running, row.tokens, left)
    return [found.get(id_, UsedCounter(0, None, 0, 0, left)) for id_ in ids]


def _used() -> Subquery:
    """Return a row for each counter: what it has counted."""
    calls = counted_calls.c
    minute = (
        select(calls.counter, func.count().label("count"), func.min(calls.began_at).label("oldest"))
        .where(calls.began_at > now() - _MINUTE)
        .group_by(calls.counter)
        .subquery()
    )
    alive = exists().where(processes.c.process == call_leases.c.process, processes.c.alive_until > now())
    running = (
        select(call_leases.c.counter, func.count().label("count"))
        .where(alive)
        .group_by(call_leases.c.counter)
        .subquery()
    )
    tokens = case((counters.c.day >= now() // (DAY_SECONDS * 1000), counters.c.tokens), else_=0)
    numbers = {"started": minute.c.count, "running": running.c.count, "tokens": tokens}
    columns = (func.coalesce(value, 0).label(name) for name, value in numbers.items())
    joined = counters.outerjoin(minute, minute.c.counter == counters.c.id).outerjoin(
        running, running.c.counter == counters.c.id
    )
    return select(counters.c.id, counters.c.scope, minute.c.oldest, *columns).select_from(joined).subquery()


async def clean(sql: AsyncConnection, seconds: float) -> None:
    """Delete counted calls and counters that no longer count, `seconds` after that, and the leases of ended processes.

    One process cleans at a time, and it waits for no lock of a counter.
    """
    if sql.dialect.name == "postgresql" and not await sql.scalar(
        text(f"SELECT pg_try_advisory_xact_lock({_CLEANING})")
    ):
        return
    # One moment, and the calls last: a call that stayed without its counter would have the number of a later one.
    latest = (await sql.execute(select(now()))).scalar_one() - int(seconds * 1000) - _MINUTE
    has_lease = exists().where(call_leases.c.counter == counters.c.id)
    has_call = exists().where(counted_calls.c.counter == counters.c.id, counted_calls.c.began_at >= latest)
    has_tokens = and_(counters.c.tokens > 0, counters.c.day >= now() // (DAY_SECONDS * 1000))
    idle = select(counters.c.id).where(counters.c.touched_at < latest, ~has_lease, ~has_call, ~has_tokens)
    await sql.execute(delete(counters).where(counters.c.id.in_(idle.with_for_update(skip_locked=True))))
    await sql.execute(delete(counted_calls).where(counted_calls.c.began_at < latest))


async def clean_processes(sql: AsyncConnection, seconds: float) -> None:
    """Delete the leases of processes that ended `seconds` ago."""
    is_over = processes.c.alive_until < now() - int(seconds * 1000)
    await sql.execute(delete(processes).where(is_over))
    lives = exists().where(processes.c.process == call_leases.c.process)
    await sql.execute(delete(call_leases).where(~lives))
