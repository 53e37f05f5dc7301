"""Used states of calls; each state is accepted once."""

from __future__ import annotations

import asyncio


class UsedStates:
    """The tickets of used states, until the states have expired."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.TimerHandle] = {}

    async def use(self, ticket: str, seconds: float) -> bool:
        """Use the state with this ticket, which expires within so many seconds; return False if it was used."""
        return self.note(ticket, seconds)

    def note(self, ticket: str, seconds: float) -> bool:
        """Note that a state was used; return False if that was noted before."""
        if ticket in self._ends:
            return False
        self._ends[ticket] = asyncio.get_running_loop().call_later(seconds, self.give_back, ticket)
        return True

    def give_back(self, ticket: str) -> None:
        """Accept the state with this ticket again."""
        if (end := self._ends.pop(ticket, None)) is not None:
            end.cancel()
