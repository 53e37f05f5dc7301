"""Limits of concurrent calls. A call waits a limited time for a free slot."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Limit:
    """A number of slots; `at_once=None` is no limit."""

    def __init__(self, at_once: int | None) -> None:
        self.at_once = at_once
        self._held = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a slot in the order of arrival, and take it."""
        if self._has_room:  # then no call waits, because `release` passes slots on
            self._held += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove(turn)
            else:  # a slot was passed to it in the same moment
                self.release()
            raise

    def reacquire(self) -> None:
        """Take a slot at once, above the limit if none is free; for a call that has released its slot for a while."""
        self._held += 1

    def release(self) -> None:
        """Release a slot. It passes to the call that has waited longest, unless the limit is exceeded."""
        self._held -= 1
        while self._has_room and (turn := next((one for one in self._queue if not one.done()), None)) is not None:
            self._queue.remove(turn)
            self._held += 1
            turn.set_result(None)

    @property
    def _has_room(self) -> bool:
        return self.at_once is None or self._held < self.at_once


class Limits:
    """The present limit of each agent, and that of the gateway under None.

    A changed number is a new limit without holders: calls that hold a slot of the earlier one do not count.
    """

    def __init__(self) -> None:
        self._limits: dict[str | None, Limit] = {}

    def of(self, holder: str | None, at_once: int | None) -> Limit:
        """Return the holder's limit; a new one if the number has changed."""
        if (known := self._limits.get(holder)) is None or known.at_once != at_once:
            known = self._limits[holder] = Limit(at_once)
        return known


class Slots:
    """The slots of one call; they are released while a question to its caller is open."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self._limits = limits
        self._held: list[Limit] = []

    async def take(self) -> None:
        """Wait for a slot of each limit."""
        for limit in self._limits:
            await limit.take()
            self._held.append(limit)

    def pause(self) -> None:
        """Release every slot."""
        while self._held:
            self._held.pop().release()

    def resume(self) -> None:
        """Take the slots again without waiting; the limits may be exceeded by the calls that were just answered."""
        # If the call waited here, its parents would wait with their slots: two such paths could block each other.
        for limit in self._limits:
            limit.reacquire()
            self._held.append(limit)


class Admission:
    """Admits calls of one agent: by the agent's own limit first, then by the gateway's.

    In this order, calls that wait for a busy agent hold no slot that calls of another agent could use. A call waits at
    most `queue_seconds`.
    """

    def __init__(self, *, own: Limit, gateway: Limit, queue_seconds: float) -> None:
        self._own = own
        self._gateway = gateway
        self.queue_seconds = queue_seconds

    @asynccontextmanager
    async def slot(self, *, nested: bool) -> AsyncIterator[Slots]:
        """Hold the slots of a call. A nested call takes no slot of the gateway, because its parent has one.

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
