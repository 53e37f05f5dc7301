"""The used states of a worker's gateway: the parent decides which of its workers uses a state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pallas_gateway.calls.used_states import UsedStates
from pallas_gateway.workers.messages import GivenBack, Used

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.workers.messages import Message


class SharedStates(UsedStates):
    """Asks the parent by `send`, and takes its answers."""

    def __init__(self, send: Callable[[Message], object]) -> None:
        super().__init__()
        self._send = send
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._is_over = False

    async def use(self, ticket: str, seconds: float) -> bool:
        """Use a state, unless it was used by any worker; if the request ends meanwhile, it is given back."""
        if self._is_over or ticket in self._asked:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        answer.add_done_callback(lambda _: self._asked.pop(ticket))
        self._send(Used(ticket, seconds))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda given: self.give_back(ticket) if given.result() else None)
            raise

    def note(self, ticket: str, seconds: float) -> bool:
        """Note that this worker has used a state of its own."""
        self._send(Used(ticket, seconds))
        return True

    def give_back(self, ticket: str) -> None:
        """Accept a state once more, at any worker."""
        self._send(GivenBack(ticket))

    def answered(self, ticket: str, *, is_first: bool) -> None:
        """Take the parent's answer."""
        if (answer := self._asked.get(ticket)) is not None and not answer.done():
            answer.set_result(is_first)

    def end(self) -> None:
        """Use no more states: the parent is gone."""
        self._is_over = True
        for ticket in self._asked:
            self.answered(ticket, is_first=False)
