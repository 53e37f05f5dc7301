"""Limits of concurrent calls. A call waits a limited time for a free slot, and callers take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pallas_gateway.errors import CallRefusedError


class Limit:
    """A number of slots; `at_once=None` is no limit.

    Accounts with waiting calls take turns: while a call of one waits, each other account gets at most one slot. Within
    an account, calls are served in the order of arrival.
    """

    def __init__(self, at_once: int | None) -> None:
        self.at_once = at_once
        self._held = 0
        self._latest = ""
        # Ordered dictionaries, because the first item of a plain one takes longer to find after many deletions.
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], None]] = OrderedDict()

    async def acquire(self, account: str) -> None:
        """Wait for a slot, and take it."""
        if self._has_room:  # then no call waits, because `release` passes slots on
            self._held += 1
            self._latest = account
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, OrderedDict())[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(account, turn)
            else:  # a slot was passed to it in the same moment
                self.release()
            raise

    def reacquire(self) -> None:
        """Take a slot at once, above the limit if none is free; for a call that has released its slot for a while."""
        self._held += 1

    def release(self) -> None:
        """Release a slot. It passes to the first call of the account whose turn it is, unless the limit is exceeded."""
        self._held -= 1
        while self._waiting and self._has_room:
            # Only now, so that an account that has begun to wait since then is served before the latest one.
            if self._latest in self._waiting:
                self._waiting.move_to_end(self._latest)
            account, calls = next(iter(self._waiting.items()))
            turn = next(iter(calls))
            self._remove(account, turn)
            if not turn.done():  # else the call was cancelled, and has not noticed yet
                self._held += 1
                self._latest = account
                turn.set_result(None)

    def _remove(self, account: str, turn: asyncio.Future[None]) -> None:
        if (calls := self._waiting.get(account)) is not None:
            calls.pop(turn, None)
            if not calls:
                del self._waiting[account]

    @property
    def _has_room(self) -> bool:
        return self.at_once is None or self._held < self.at_once


class Slots:
    """The slots of one call; they are released while a question to its caller is open."""

    def __init__(self, limits: tuple[Limit, ...], account: str) -> None:
        self._limits = limits
        self._account = account
        self._held: list[Limit] = []

    async def acquire(self) -> None:
        """Wait for a slot of each limit."""
        for limit in self._limits:
            await limit.acquire(self._account)
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
    async def slot(self, account: str, *, nested: bool) -> AsyncIterator[Slots]:
        """Hold the slots of a call. A nested call takes no slot of the gateway, because its parent has one.

        Args:
            account: of the outermost caller; accounts take turns.
            nested: a running call made this one.

        Raises:
            CallRefusedError: `busy`, after `queue_seconds` of waiting.
        """
        slots = Slots((self._own,) if nested else (self._own, self._gateway), account)
        try:
            try:
                async with asyncio.timeout(self.queue_seconds):
                    await slots.acquire()
            except TimeoutError:
                message = "The agent is busy, try again in a moment."
                raise CallRefusedError(message, reason="busy") from None
            yield slots
        finally:
            slots.pause()
