"""Used states of calls; each state is accepted once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pallas_gateway.errors import CallRefusedError


class StatesUnavailableError(CallRefusedError):
    """The database cannot tell now whether a state was used; the state stays good."""

    reason = "database_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "The gateway cannot use its database now, so it does not know whether this requestState was used. "
            "Send the request again in a moment, with the same requestState."
        )


class StateUses(Protocol):
    """Accepts each state once, in all processes that can open it."""

    @property
    def is_available(self) -> bool:
        """True if states can be used, as far as this process knows."""

    async def use(self, ticket: str, seconds: float) -> bool:
        """Use the state with this ticket, which expires within so many seconds; return False if it was used.

        If the request ends meanwhile, the state is given back.

        Raises:
            StatesUnavailableError: this is not known now.
        """

    async def give_back(self, ticket: str) -> None:
        """Accept the state with this ticket again."""


class UsedStates:
    """The tickets of used states, until the states have expired."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def note(self, ticket: str, seconds: float) -> bool:
        """Note that a state was used, which expires within so many seconds; return False if that was noted before."""
        if ticket in self._ends:
            return False
        self._ends[ticket] = asyncio.get_running_loop().call_later(seconds, self.give_back, ticket)
        return True

    def give_back(self, ticket: str) -> None:
        """Accept the state with this ticket again."""
        if (end := self._ends.pop(ticket, None)) is not None:
            end.cancel()


class OwnStates:
    """The `StateUses` of a gateway with one process."""

    is_available = True

    def __init__(self) -> None:
        self._used = UsedStates()

    async def use(self, ticket: str, seconds: float) -> bool:
        return self._used.note(ticket, seconds)

    async def give_back(self, ticket: str) -> None:
        self._used.give_back(ticket)
