"""Used states of calls; each state is accepted once, in all processes that can open it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pallas_gateway.errors import CallRefusedError
from pallas_gateway.shared.memory import FirstValues
from pallas_gateway.shared.protocol import Shared, SharedAwayError
from pallas_gateway.tasks import TaskOwner


class StatesUnavailableError(CallRefusedError):
    """It is not known now whether a state was used; the state stays good."""

    reason = "database_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "The gateway cannot tell now whether this requestState was used. Send the request again in a moment, "
            "with the same requestState."
        )


class UsedStates:
    """Accepts each state once.

    The name of the process that has used a state is kept for it. So a process whose use was noted, and that did not
    hear so, can use the state again; `_here` keeps two requests of one process apart.
    """

    def __init__(self, shared: Shared, process: str) -> None:
        """`process` is a unique name."""
        self._shared = shared
        self._process = process
        self._here = FirstValues()
        self._tasks = TaskOwner()

    async def close(self) -> None:
        """Wait (bounded) for states that are being released."""
        await self._tasks.__aexit__()

    @property
    def is_available(self) -> bool:
        """True if states can be used, as far as this process knows."""
        return self._shared.is_available

    async def use(self, ticket: str, seconds: float) -> bool:
        """Use the state with this ticket, which expires within so many seconds; return False if it was used.

        If the request ends meanwhile, it is released.

        Raises:
            StatesUnavailableError: this is not known now.
        """
        if ticket in self._here:
            return False
        self._here.first(ticket, self._process, seconds)
        using = self._tasks.spawn(self._shared.first(ticket, self._process, seconds), name="use of a state")
        try:
            is_first = await asyncio.shield(using) == self._process
        except asyncio.CancelledError:
            self._tasks.spawn(self._released(using, ticket), name="return of a state")
            raise
        except SharedAwayError:
            self._here.forget(ticket, self._process)
            raise StatesUnavailableError from None
        if not is_first:
            self._here.forget(ticket, self._process)
        return is_first

    async def release(self, ticket: str) -> None:
        """Accept the state with this ticket again; while others cannot be told so, only at this process."""
        with suppress(SharedAwayError):
            await self._shared.forget(ticket, self._process)
        self._here.forget(ticket, self._process)

    async def _released(self, using: asyncio.Task[str], ticket: str) -> None:
        await asyncio.wait({using})
        await self.release(ticket)
