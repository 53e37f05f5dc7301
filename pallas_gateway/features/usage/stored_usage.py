"""Usage by day, caller, agent and model in the gateway's database.

Each process adds up its calls in memory, and adds the sums to those of the database with its regular work. While the
database is away, it keeps them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from itertools import batched, groupby
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, case, cast, delete, false, func, select, text
from sqlalchemy.dialects.postgresql import insert

from pallas_gateway.calls.trail import hashed_name
from pallas_gateway.calls.used import LONGEST_NAME, Used
from pallas_gateway.features.usage.usage_table import DAY_SECONDS, OTHERS, in_parts
from pallas_gateway.identity.caller import ANONYMOUS_NAME
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.shared.database.tables import agents, usage
from pallas_gateway.tasks import TaskOwner, completed
from pallas_gateway.telemetry.redaction import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.shared.database.service import GatewayDatabase
    from pallas_gateway.shared.database.tables import AnyRow

_LAST_SECONDS = 5.0
_TRANSACTION_SECONDS = 60.0
"""A transaction is over before: it must not be committed after its sums were taken back."""
_ROWS_AT_ONCE = 500
_ADDING = 0x70616C6C6175  # the key of the advisory lock of the process that adds
_NO_HASH = "pallas usage"
_MILLISECONDS = DAY_SECONDS * 1000


class _Key(NamedTuple):
    day: int
    account: str
    agent: str
    model: str
    failure: str
    caller: str

    @property
    def of_others(self) -> _Key:
        return self._replace(account=OTHERS, model=OTHERS, caller=OTHERS)


@dataclass(slots=True)
class UsedOfDay:
    """Usage of one day (since 1970) of `names`, such as a caller and a model; `failures` are calls by their reasons."""

    day: int
    names: tuple[str, ...]
    used: Used = field(default_factory=Used)
    failures: dict[str, int] = field(default_factory=dict)


class StoredUsage:
    """The usage of all processes with this database, by day; a part of it.

    Args:
        database: the database.
        clock: seconds since 1970.
        most: rows of a day, of the sums that wait, and of an answer.
    """

    def __init__(self, database: GatewayDatabase, clock: Callable[[], float] = time, most: int = 10_000) -> None:
        self._database = database
        self._clock = clock
        self._most = most
        self._days = 0
        self._secret: str | None = None
        self._secrets = {_NO_HASH}
        self._sums: dict[_Key, Used] = {}
        self._writing: asyncio.Task[DatabaseUnavailableError | None] | None = None
        self._tasks = TaskOwner(close_seconds=_LAST_SECONDS)

    def use(self, settings: GatewaySettings) -> None:
        """Use these settings from now on."""
        self._days = settings.usage_days
        self._secret = settings.state_keys[0] if settings.audit_names == "hashed" else None
        self._secrets = {_NO_HASH, *settings.state_keys}

    @property
    def is_on(self) -> bool:
        """False with `usage_days: 0`."""
        return self._days > 0

    @property
    def today(self) -> int:
        """The present day since 1970, UTC."""
        return int(self._clock() // DAY_SECONDS)

    def add(self, caller: Caller, agent: str, model: str, failure: str, used: Used) -> None:
        """Count what a call has used at its end."""
        if self.is_on:
            account = _account(caller, self._secret or _NO_HASH)
            names = account, agent, storable(model[:LONGEST_NAME]), failure, self._shown(caller)
            self._add(_Key(self.today, *names), used)

    async def read(
        self, days: int, by: Sequence[str], *, caller: Caller | None = None, owner: Caller | None = None
    ) -> tuple[list[UsedOfDay], bool]:
        """Return the usage of the last days, the latest first, and whether it is complete.

        Args:
            days: today included.
            by: of `caller`, `agent` and `model`; what differs in others only is added up.
            caller: only of this one, also from before its name was hashed or plain.
            owner: only of the agents of this one, without days of earlier agents of their names.

        Raises:
            DatabaseUnavailableError: the database cannot be used now.
        """
        await self.write()  # a caller reads its latest calls, at least those of this process
        wanted = [usage.c.day > self.today - days]
        if caller is not None:
            wanted.append(usage.c.account.in_([_account(caller, secret) for secret in self._secrets]))
        if owner is not None:
            wanted += _of_agents_of(owner) if owner.grants.owned else [false()]  # its grants say whether it may own
        names = [usage.c[name] for name in by]
        sums = [cast(func.sum(usage.c[name]), BigInteger) for name in Used.__slots__[:-1]]
        query = select(usage.c.day, *names, usage.c.failure, *sums, func.sum(usage.c.cost)).where(*wanted)
        grouped = query.group_by(usage.c.day, *names, usage.c.failure).order_by(usage.c.day.desc(), *names)
        rows = await self._rows(grouped.limit(self._most + 1))
        found: dict[object, UsedOfDay] = {}
        async for some in in_parts(rows):
            for row in some:
                key, (failure, *numbers) = row[: len(by) + 1], row[len(by) + 1 :]
                of_day, used = found.setdefault(key, UsedOfDay(key[0], key[1:])), Used(*numbers)
                of_day.used += used
                if failure:
                    of_day.failures[failure] = used.calls + used.refused + used.nested
        if is_cut := len(rows) > self._most:
            found.popitem()  # its other rows may be those that were left out
        return [*found.values()], not is_cut

    async def first_day(self) -> int:
        """Return the first day that has usage; today without any."""
        [[first]] = await self._rows(select(func.min(usage.c.day)))
        return self.today if first is None else int(first)

    async def write(self) -> None:
        """Add the sums of this process to those of the database.

        Raises:
            DatabaseUnavailableError: the database cannot be used now; the sums are kept.
        """
        if (error := await completed(self._begin())) is not None:
            raise error

    async def remove_expired(self, _: float) -> None:
        """Delete the rows of days that are over for long enough."""
        expired = delete(usage).where(usage.c.day <= self.today - self._days)
        await self._database.connections.write(lambda sql: sql.execute(expired), share="services")

    async def close(self) -> None:
        """Write what was counted, unless the database is away."""
        if self._sums and self._database.connections.is_open:
            self._begin()
        await self._tasks.__aexit__()

    def _begin(self) -> asyncio.Task[DatabaseUnavailableError | None]:
        """Write in a task, which a reader that leaves does not cancel: its sums might be added twice."""
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.spawn(self._write_all(), name="usage", report=True)
        return self._writing

    async def _write_all(self) -> DatabaseUnavailableError | None:
        """Write all sums, or return why they cannot be written now."""
        while self._sums:
            sums, self._sums = self._sums, {}
            for part in batched(sorted(sums.items()), _ROWS_AT_ONCE):
                try:
                    await self._database.connections.write(
                        partial(_add_all, part, self._most), seconds=_TRANSACTION_SECONDS, share="services"
                    )
                except DatabaseUnavailableError as error:
                    for key, used in sums.items():
                        self._add(key, used)
                    return error
                for key, _ in part:
                    del sums[key]
        return None

    async def _rows(self, query: Select[Any]) -> Sequence[AnyRow]:
        async def found(sql: AsyncConnection) -> Sequence[AnyRow]:
            rows: Sequence[AnyRow] = (await sql.execute(query)).all()
            return rows

        return await self._database.connections.read(found, share="long")

    def _add(self, key: _Key, used: Used) -> None:
        if key not in self._sums and len(self._sums) >= self._most:
            key = key.of_others
        total = self._sums.setdefault(key, Used())
        total += used

    def _shown(self, caller: Caller) -> str:
        name = caller.principal
        is_plain = self._secret is None or name == ANONYMOUS_NAME
        return storable(name[:LONGEST_NAME]) if is_plain else f"hmac:{hashed_name(name, self._secret or '')}"


def _account(caller: Caller, secret: str) -> str:
    """Return what identifies a caller; callers without a token are one."""
    return hashed_name(caller.account if caller.kind != "anonymous" else ANONYMOUS_NAME, secret)


def _of_agents_of(owner: Caller) -> Iterator[ColumnElement[bool]]:
    """Yield what holds for rows of the agents of an owner; a day that others had the name on, too, is not theirs."""
    made, after = (column // _MILLISECONDS for column in (agents.c.created_at, agents.c.deleted_at))
    day = case((agents.c.deleted_at.is_(None), made), (agents.c.owner != owner.owner, after + 1), else_=0)
    own = select(agents.c.name).where(agents.c.owner == owner.owner, agents.c.deleted_at.is_(None))
    of_own = select(agents.c.name, func.max(day).label("first")).where(agents.c.name.in_(own))
    names = of_own.group_by(agents.c.name).subquery()
    yield from (usage.c.agent == names.c.name, usage.c.day >= names.c.first)


async def _add_all(rows: Sequence[tuple[_Key, Used]], most: int, sql: AsyncConnection) -> None:
    """Add rows to those of the database; further ones than `most` of a day are added to those of others."""
    if sql.dialect.name == "postgresql":
        await sql.execute(text(f"SELECT pg_advisory_xact_lock({_ADDING})"))
    values = []
    for day, of_day in groupby(rows, lambda row: row[0].day):
        part, is_of_day = [*of_day], usage.c.day == day
        accounts = {key.account for key, _ in part}
        columns = usage.c.account, usage.c.agent, usage.c.model, usage.c.failure
        same = await sql.execute(select(*columns).where(is_of_day, usage.c.account.in_(accounts)))
        known = {tuple(row) for row in same}
        counted = await sql.execute(select(func.count()).where(is_of_day, usage.c.account != OTHERS))
        count: int = counted.scalar_one()
        for key, used in part:
            is_known = key.account == OTHERS or (key.account, key.agent, key.model, key.failure) in known
            count += not is_known
            own = key if is_known or count <= most else key.of_others
            values.append(own._asdict() | {name: getattr(used, name) for name in Used.__slots__})
    added = insert(usage)
    sums = {name: usage.c[name] + added.excluded[name] for name in Used.__slots__}
    keys = [column.name for column in usage.primary_key]
    await sql.execute(added.on_conflict_do_update(index_elements=keys, set_=sums), values)
