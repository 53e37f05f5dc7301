"""The gateway's database as a service: opened and migrated at the start; attempts go on until it is available.

What is stored in it (threads, counters, states, definitions) are its parts: they are looked after and closed with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

from pallas_gateway.limits import DatabaseLimits
from pallas_gateway.shared.database.connections import OPERATION_SECONDS, Database
from pallas_gateway.shared.database.errors import DatabaseSchemaError, DatabaseUnavailableError
from pallas_gateway.shared.database.migrating import migrate, require_current
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from prometheus_client import Gauge

    from pallas_gateway.identity.secret import Secret

_log = logging.getLogger("pallas.threads")


class Part(Protocol):
    """Something that is stored in the database."""

    async def remove_expired(self, seconds: float) -> None:
        """Delete what no longer counts, `seconds` after that; called now and then while the database is available."""

    async def close(self) -> None:
        """Wait (bounded) for what is being written; the database is closed after all parts."""


class GatewayDatabase:
    """An async context manager around the connections to the database."""

    def __init__(
        self,
        url: Secret,
        folder: Path,
        *,
        limits: DatabaseLimits | None = None,
        up: Gauge | None = None,
        upgrades: bool = True,
    ) -> None:
        """Not open yet.

        `up` shows whether the database is available. Unless it `upgrades`, a database with older tables is refused.
        """
        self._prepare = migrate if upgrades else require_current
        self._limits = limits = limits or DatabaseLimits()
        self.connections = Database(url, folder, busy_seconds=limits.busy_seconds, up=up)
        self._parts: list[Part] = []
        self.regular_work: list[Callable[[], Awaitable[None]]] = []
        """Done every few seconds while the database is available."""
        self._keeping = TaskOwner(close_seconds=0)
        self.connections.is_open = False
        self._cleaned_at = -math.inf

    def add(self, *parts: Part) -> None:
        """Look after parts, and close them before the database, in this order."""
        self._parts += parts

    async def __aenter__(self) -> Self:
        """Migrate the database; while it is unavailable, keep trying in the background.

        Raises:
            DatabaseSchemaError: a newer gateway has used the database, or the tables are older and not to be upgraded.
        """
        try:
            with suppress(DatabaseUnavailableError):
                await self._open(self._limits.first_try_seconds)
        except BaseException:
            await self.connections.close()
            raise
        self._keeping.spawn(self._keep(), name="database", report=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) for running writes of the parts, and close every connection."""
        await self._keeping.cancel_all()
        for part in self._parts:
            await part.close()
        await self.connections.close()

    async def _keep(self) -> None:
        """Open the database, try it out while it is unavailable or late, else remove what has expired."""
        while True:
            await asyncio.sleep(self._limits.try_again_seconds)
            try:
                if not self.connections.is_open:
                    await self._open(OPERATION_SECONDS)
                elif self.connections.is_late or not self.connections.is_up:
                    await self.connections.try_out(seconds=self._limits.try_seconds)
                else:
                    for work in self.regular_work:
                        await work()
                    await self._look_after_parts()
            except DatabaseUnavailableError:
                continue
            except DatabaseSchemaError as error:
                # A newer gateway has updated the tables.
                _log.error("threads unavailable", extra={"why": str(error)})
                return
            except Exception:  # noqa: BLE001  one that fails must not end the upkeep of the others
                # A fault of the gateway.
                _log.exception("upkeep of the database failed")

    async def _look_after_parts(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._cleaned_at < self._limits.clean_seconds:
            return
        for part in self._parts:
            await part.remove_expired(self._limits.expired_seconds)
        self._cleaned_at = now

    async def _open(self, seconds: float) -> None:
        await self.connections.write(lambda sql: sql.run_sync(self._prepare), seconds=seconds, is_trial=True)
        self.connections.is_open = True
        await self.connections.try_out()  # it may be a standby, or full
