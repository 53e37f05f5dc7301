"""Deletes the threads of agents that were deleted with them: at once, and again if a process was killed meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_gateway.definitions.service import Definitions
    from pallas_gateway.threads.service import Threads


class DroppedThreads:
    """A part of the database, which notes these agents: they may have more threads than one transaction deletes."""

    def __init__(self, definitions: Definitions, threads: Threads) -> None:
        self._definitions = definitions
        self._threads = threads

    async def drop(self) -> None:
        """Delete all that are still to be deleted."""
        await self._definitions.drop_threads(self._threads.changes.remove_of_agent)

    async def remove_expired(self, _: float) -> None:
        await self.drop()

    async def close(self) -> None:
        """Nothing runs in the background."""
