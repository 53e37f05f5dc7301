"""How many calls may run at once: bounded, with a bounded wait, and nothing queued for ever."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.errors import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Limit:
    """At most `at_once` holders; `at_once=None` is no limit."""

    def __init__(self, at_once: int | None) -> None:
        self.at_once = at_once
        self._free = asyncio.Semaphore(at_once) if at_once is not None else None

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the block."""
        if self._free is None:
            yield
            return
        async with self._free:
            yield


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
    """The slots of one call."""

    def __init__(self, limits: tuple[Limit, ...], held: AsyncExitStack) -> None:
        self._limits = limits
        self._held = held

    async def take(self) -> None:
        """Wait for a slot of each limit."""
        for limit in self._limits:
            await self._held.enter_async_context(limit.slot())

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Hold no slot in the block. After it the call waits for its slots, unless it is about to end."""
        await self._held.aclose()
        yield
        await self.take()


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
        async with AsyncExitStack() as held:
            slots = Slots((self._own,) if nested else (self._own, self._gateway), held)
            try:
                async with asyncio.timeout(self.queue_seconds):
                    await slots.take()
            except TimeoutError:
                message = "The agent is busy, try again in a moment."
                raise CallRefusedError(message, reason="busy") from None
            yield slots
