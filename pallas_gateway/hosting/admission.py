"""Limits of the calls that run at once; a call waits for a free slot for a limited time."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Limit:
    """At most `at_once` holders of a slot; `at_once=None` is no limit."""

    def __init__(self, at_once: int | None) -> None:
        self.at_once = at_once
        self._held = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a slot, behind those that wait already, and take it."""
        if self._has_room:  # then nothing waits: `release` has seen to that
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove(turn)
            else:  # it was given a slot just then
                self.release()
            raise

    def reacquire(self) -> None:
        """Take a slot at once, above the limit if none is free; for a call that had one and gave it back."""
        self._held += 1

    def release(self) -> None:
        """Release a slot; it goes to the call that has waited longest, unless the limit is exceeded."""
        self._held -= 1
        while self._has_room and (turn := self._next_turn()) is not None:
            self._held += 1
            turn.set_result(None)

    @property
    def _has_room(self) -> bool:
        return self.at_once is None or self._held < self.at_once

    def _next_turn(self) -> asyncio.Future[None] | None:
        """Return the first one of the queue and remove it; one that goes away removes itself."""
        turn = next((one for one in self._queue if not one.done()), None)
        if turn is not None:
            self._queue.remove(turn)
        return turn


class Limits:
    """The limits in force by whose they are, the gateway's under None.

    Another one begins empty: calls that hold a slot of the one before are not counted by it.
    """

    def __init__(self) -> None:
        self._limits: dict[str | None, Limit] = {}

    def of(self, holder: str | None, at_once: int | None) -> Limit:
        """The holder's limit: the one there is, if it is to let as many in."""
        if (known := self._limits.get(holder)) is None or known.at_once != at_once:
            known = self._limits[holder] = Limit(at_once)
        return known


class Slots:
    """The slots of one call; they are given back while a question to its caller is open."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self._limits = limits
        self._held: list[Limit] = []

    async def take(self) -> None:
        """Wait for a slot of each limit."""
        for limit in self._limits:
            await limit.take()
            self._held.append(limit)

    def pause(self) -> None:
        """Give back every slot."""
        while self._held:
            self._held.pop().release()

    def resume(self) -> None:
        """Take the slots back at once.

        The call was admitted already, and others of its path may wait for it: if it waited for a slot, two such paths
        could wait for each other for ever. So a limit may be exceeded by the calls that have just been answered.
        """
        for limit in self._limits:
            limit.reacquire()
            self._held.append(limit)


class Admission:
    """Admits calls of one agent: the agent's own limit first, then the gateway's.

    In that order, so that a call waiting for a busy agent holds no slot that another agent's calls could use.
    `queue_seconds` is how long a call waits at most.
    """

    def __init__(self, *, own: Limit, gateway: Limit, queue_seconds: float) -> None:
        self._own = own
        self._gateway = gateway
        self.queue_seconds = queue_seconds

    @asynccontextmanager
    async def slot(self, *, nested: bool) -> AsyncIterator[Slots]:
        """Hold the slots a call needs; a nested call takes none of the gateway's, its parent holds one already.

        Raises:
            CallRefusedError: `busy`, after `queue_seconds` of waiting.
        """
        slots = Slots((self._own,) if nested else (self._own, self._gateway))
        try:
            try:
                async with asyncio.timeout(self.queue_seconds):
                    await slots.take()
            except TimeoutError:
                message = "The agent is busy, try again in a moment."
                raise CallRefusedError(message, reason="busy") from None
            yield slots
        finally:
            slots.pause()
