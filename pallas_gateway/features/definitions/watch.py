"""Watches the database for changes of agents, and knows which of them this process has applied.

It asks for the number of changes once a second, by one statement whatever the number of agents, and reads the agents
when that number is another one. A database that is away leaves the agents as they are.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.shared.database.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from pallas_gateway.features.definitions.records import Snapshot

LOOK_SECONDS = 1.0
_log = logging.getLogger("pallas.agents")


class Source(Protocol):
    """The agents of the database. Both methods raise `DatabaseUnavailableError`."""

    async def number(self) -> int:
        """Return the number of changes."""

    async def snapshot(self) -> Snapshot:
        """Return all agents."""


class AgentWatch:
    """Watches one database for one process.

    Attributes:
        snapshot: the agents as read last; None until the first time.
        changed: set whenever `snapshot` is another one.
        is_away: True if the database could not be read the last time.
    """

    def __init__(self, source: Source, *, seconds: float = LOOK_SECONDS) -> None:
        self._source = source
        self._seconds = seconds
        self.snapshot: Snapshot | None = None
        self.changed = asyncio.Event()
        self.is_away = False
        self._asked = asyncio.Event()
        self._applied: int | None = None
        self._progress = asyncio.Event()

    @property
    def is_loaded(self) -> bool:
        """True when this process has taken agents up, or refused to, for the first time."""
        return self._applied is not None

    async def run(self) -> None:
        """Look once a second, and at once when asked to, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._asked.wait()
            self._asked.clear()
            await self.look()

    async def look(self, seconds: float | None = None) -> None:
        """Read the agents if they have changed, within so many seconds.

        A database that is away is logged once, on the change.
        """
        try:
            async with asyncio.timeout(seconds):
                if self.snapshot is None or await self._source.number() != self.snapshot.number:
                    self.snapshot = await self._source.snapshot()
                    self.changed.set()
        except (DatabaseUnavailableError, TimeoutError) as error:
            self._note(error)
        except Exception as error:  # noqa: BLE001  the agents stay as they are, and the next look may succeed
            if not self.is_away:
                # Logged once; the next attempt follows a second later.
                _log.exception("unexpected error while reading agents of the database")
            self._note(error)
        else:
            self._note(None)

    def look_soon(self) -> None:
        """Look without waiting for the end of the second."""
        self._asked.set()

    def applied(self, number: int) -> None:
        """Note that this process uses the agents of a snapshot, or has refused to."""
        self._applied = number
        self._progress.set()
        self._progress = asyncio.Event()

    async def until_applied(self) -> bool:
        """Look at once, and return True when this process has applied, or refused, the changes made before.

        Returns False if the database is away.
        """
        try:
            number = await self._source.number()
        except DatabaseUnavailableError:
            return False
        self.look_soon()
        while self._applied is None or self._applied < number:
            await self._progress.wait()
        return True

    def _note(self, error: Exception | None) -> None:
        if error is not None and not self.is_away:
            # Logged once: the database is away; agents stay as they are.
            _log.warning("agents of the database not read", extra={"why": str(error)})
        elif error is None and self.is_away:
            _log.info("agents of the database read again")
            self.changed.set()  # what else waits for the database is done with the agents
        self.is_away = error is not None
