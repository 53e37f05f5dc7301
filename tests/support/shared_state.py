"""The carriers of the shared state on a clock of the test, with holders that the test opens and kills."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, override

from sqlalchemy import Engine, event, update

from pallas_gateway.identity.secret import Secret
from pallas_gateway.process.workers.channel import AskedParent
from pallas_gateway.shared.counters import MOST_COUNTERS, Counters
from pallas_gateway.shared.database import tables
from pallas_gateway.shared.database.connections import Database
from pallas_gateway.shared.database.migrating import migrate
from pallas_gateway.shared.memory import Memory, MemoryState
from pallas_gateway.shared.protocol import Shared, Wanted
from pallas_gateway.shared.remote import SERVICE, Remote, SharedOfWorker
from pallas_gateway.shared.sql import Sql
from tests.support.channels import Ends, channel
from tests.support.fair_time import FairLoop

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2
AGES = 1e9
"""Seconds of a lease that the test lets end."""


def wanted(
    account: str = "key:ann",
    agent: str = "",
    *,
    scope: int = 1,
    minute: int | None = None,
    at_once: int | None = None,
    tokens: int | None = None,
    enforced: bool = True,
) -> Wanted:
    return Wanted(("*", "*", "caller", scope), account, agent, minute, at_once, tokens, enforced)


@dataclass
class Clock:
    """The monotonic clock of windows, and the wall clock of days, which is that of databases."""

    now: float = 0.0
    wall: float = NOON

    def add(self, seconds: float) -> None:
        """Let time pass on these clocks."""
        self.now += seconds
        self.wall += seconds

    async def move(self, seconds: float) -> None:
        """Let time pass, also for timers of the running loop."""
        self.add(seconds)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FairLoop)
        loop.skip(seconds)
        await turns()

    def is_of(self, engine: Engine) -> None:
        """Have a database tell this time."""
        told = str(tables.now().compile(dialect=engine.dialect))

        def executed(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
            return statement.replace(told, str(round(self.wall * 1000))), parameters

        event.listen(engine, "before_cursor_execute", executed, retval=True)


async def turns() -> None:
    """Let the loop do what is to be done."""
    for _ in range(5):
        await asyncio.sleep(0)


class Carrier:
    """The state in the memory of a process, an async context manager; others have it elsewhere.

    `most` is set before the first holder is opened.
    """

    def __init__(self, _: str = "") -> None:
        self.clock, self.most = Clock(), MOST_COUNTERS
        self._state: MemoryState | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    @property
    def state(self) -> MemoryState:
        if self._state is None:
            self._state = MemoryState(Counters(lambda: self.clock.now, lambda: self.clock.wall, self.most))
        return self._state

    async def holder(self) -> Shared:
        return Memory(self.state)

    async def kill(self, holder: Any) -> None:
        holder.close()

    async def settle(self, _: Any) -> None:
        await turns()

    async def clean(self) -> None:
        """Forget what has expired, as the gateway does from time to time."""

    def cut(self, holder: Any) -> None:
        """Take the state away from a holder."""
        raise NotImplementedError


class OfParent(Carrier):
    """The state in the memory of a parent, whose workers are the holders, each with a channel of its own."""

    def __init__(self, _: str = "") -> None:
        super().__init__()
        self._open = AsyncExitStack()
        self._ends: dict[Shared, tuple[SharedOfWorker, Ends]] = {}

    @override
    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @override
    async def holder(self) -> Shared:
        service = SharedOfWorker(self.state)
        ends = await self._open.enter_async_context(channel(worker={}, parent={SERVICE: service}))
        made = Remote(AskedParent(ends.worker))
        self._ends[made] = service, ends
        return made

    @override
    async def kill(self, holder: Any) -> None:
        self.cut(holder)
        self._ends[holder][0].close()

    @override
    async def settle(self, holder: Any) -> None:
        await holder.read([])  # calls are carried out in their order

    @override
    def cut(self, holder: Any) -> None:
        self._ends[holder][1].writer.close()


class OfDatabase(Carrier):
    """The state in a database, whose processes are the holders."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = Secret(url)
        self._open = AsyncExitStack()

    @override
    async def __aenter__(self) -> Self:
        self._database = self.database()
        await self._database.write(lambda connection: connection.run_sync(migrate))
        self._cleaner = self.on(self._database)
        return self

    @override
    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def database(self) -> Database:
        made = Database(self._url, Path("/"))
        self._open.push_async_callback(made.close)
        self.clock.is_of(made._engine.sync_engine)
        return made

    def on(self, database: Database, lease_seconds: float = AGES, **options: Any) -> Sql:
        """Return the holder of a process that uses this database; `options` are those of `Sql`."""
        options = {"release_seconds": 0, "answer_seconds": 60, "most": self.most, **options}
        made = Sql(database, lease_seconds, **options)
        self._open.push_async_callback(made.close)
        return made

    @override
    async def holder(self) -> Shared:
        return self.on(self.database())

    @override
    async def kill(self, holder: Any) -> None:
        await holder._renewing.cancel_all()
        row = update(tables.processes).where(tables.processes.c.process == holder._process)
        await self._database.write(lambda sql: sql.execute(row.values(alive_until=0)))

    @override
    async def settle(self, holder: Any) -> None:
        await holder._tasks.wait_until_idle()

    @override
    async def clean(self) -> None:
        await self._cleaner.remove_expired(0)

    @override
    def cut(self, holder: Any) -> None:
        holder._database.is_open = False


CARRIERS: dict[str, Callable[[str], Carrier]] = {
    "memory": Carrier,
    "remote": OfParent,
    "sqlite": OfDatabase,
    "postgresql": OfDatabase,
}
"""By their names; each is made with the URL of an empty database."""
