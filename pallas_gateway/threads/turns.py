"""One turn of a thread from its beginning to its end, with the lease that keeps other writers away meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError
from pallas_gateway.threads.records import (
    LeaseLostError,
    Outcome,
    ThreadBusyError,
    ThreadsUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pallas_gateway.calls.call import Message
    from pallas_gateway.threads.records import Lease
    from pallas_gateway.threads.store import Store

RENEWALS = 4
"""How often a lease is renewed in the time it lasts, so that a hiccup of the database does not cost it."""
POLL_SECONDS = (0.05, 0.5)
"""Shortest and longest time between two tries to get a lease that another process has."""
_WRITE_AGAIN_SECONDS = (0.2, 1.0, 3.0)
"""An answer that was paid for is worth more than one try to store it."""
_log = logging.getLogger("pallas.threads")


class OpenTurn:
    """A turn that nobody else can come between; `history` is what was said before it."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self.lease = lease
        self.history: tuple[Message, ...] = ()
        self.is_ended = False

    @property
    def number(self) -> int:
        """Counts from 1 within the thread."""
        return self.lease.turn

    async def read_history(self) -> None:
        """Read what was said before."""
        self.history = tuple(await self._store.history(self.lease))

    async def end(self, outcome: Outcome) -> None:
        """Write what it came to, even if the caller is cancelled meanwhile: half an end would lock the thread.

        Raises:
            LeaseLostError: another writer took over the thread; nothing was written.
            ThreadsUnavailableError: the database cannot be used, also not a few seconds later.
        """
        self.is_ended = True
        writing = asyncio.create_task(self._written(outcome), name=f"end of turn in thread {self.lease.thread_id}")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            _note_if_failed(self.lease, writing)
            raise

    async def forget_thread(self) -> None:
        """Take the thread back with this turn, unless it has others: then the turn stays open.

        Raises:
            ThreadsUnavailableError: the database cannot be used.
        """
        self.is_ended = True
        self.is_ended = await self._store.forget(self.lease)

    async def _written(self, outcome: Outcome) -> None:
        for seconds in _WRITE_AGAIN_SECONDS:
            try:
                return await self._end(outcome)
            except ThreadsUnavailableError:
                await asyncio.sleep(seconds)
        return await self._end(outcome)

    async def _end(self, outcome: Outcome) -> None:
        if not await self._store.end_turn(self.lease, outcome):
            raise _lost()


class Turns:
    """Begins turns, one at a time for each thread; those who wait in this process come in the order they asked."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def turn(
        self, thread_id: str, question: Message, call_id: str, *, wait_seconds: float
    ) -> AsyncIterator[OpenTurn]:
        """The next turn of a thread, for the block; one that the block does not end is ended as an error.

        The lease is renewed meanwhile. When it is lost all the same, the block is cancelled.

        Raises:
            ThreadBusyError: another turn was still running after `wait_seconds`.
            LeaseLostError: another writer took over the thread during the block.
            ThreadsUnavailableError: the database cannot be used.
        """
        async with self._in_line(thread_id, wait_seconds) as deadline:
            turn = OpenTurn(self._store, await self._begun(thread_id, question, call_id, deadline))
            try:
                async with self._kept(turn):
                    await turn.read_history()
                    yield turn
            except LeaseLostError:
                raise
            except asyncio.CancelledError:
                await _end_if_open(turn, Outcome(error_reason="cancelled", error="The call was cancelled."))
                raise
            except Exception as error:
                await _end_if_open(turn, _failure(error))
                raise

    @asynccontextmanager
    async def _in_line(self, thread_id: str, seconds: float) -> AsyncIterator[float]:
        """Nobody else of this process has a turn of the thread in the block; gives the time until it may be waited."""
        deadline = asyncio.get_running_loop().time() + seconds
        queue = self._queues.setdefault(thread_id, _Queue())
        queue.length += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await queue.lock.acquire()
            except TimeoutError:
                raise _busy() from None
            try:
                yield deadline
            finally:
                queue.lock.release()
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[thread_id]

    async def _begun(self, thread_id: str, question: Message, call_id: str, deadline: float) -> Lease:
        now, (pause, longest) = asyncio.get_running_loop().time, POLL_SECONDS
        while (lease := await self._store.begin_turn(thread_id, question, call_id)) is None:
            if now() >= deadline:
                raise _busy()
            await asyncio.sleep(min(pause * random.uniform(0.5, 1), max(deadline - now(), 0)))  # noqa: S311  no secret
            pause = min(2 * pause, longest)
        return lease

    @asynccontextmanager
    async def _kept(self, turn: OpenTurn) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew(turn), name=f"lease of thread {turn.lease.thread_id}")
                yield
                renewing.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _renew(self, turn: OpenTurn) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / RENEWALS)
            try:
                is_held = await self._store.renew(turn.lease)
            except ThreadsUnavailableError:
                continue  # until the database is back; if somebody took the thread by then, that is seen then
            if not is_held and turn.is_ended:
                return  # the end has given it back, or finds out itself that it was lost
            if not is_held:
                extra = {"thread_id": turn.lease.thread_id, "turn": turn.lease.turn}
                _log.warning("thread was taken over", extra=extra)
                raise _lost()


class _Queue:
    """The turns of this process that want one thread; a lock lets them through in the order they came."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


async def _end_if_open(turn: OpenTurn, outcome: Outcome) -> None:
    """Write how a turn failed; where that fails as well, its lease runs out, which says the same a little later."""
    if turn.is_ended:
        return
    try:
        await turn.end(outcome)
    except (LeaseLostError, ThreadsUnavailableError) as error:
        _note_not_ended(turn.lease, error)


def _note_if_failed(lease: Lease, writing: asyncio.Task[None]) -> None:
    if not writing.cancelled() and isinstance(error := writing.exception(), GatewayError):
        _note_not_ended(lease, error)


def _note_not_ended(lease: Lease, error: GatewayError) -> None:
    extra = {"thread_id": lease.thread_id, "turn": lease.turn, "why": error.reason}
    _log.warning("turn could not be ended", extra=extra)


def _failure(error: Exception) -> Outcome:
    if isinstance(error, GatewayError):
        return Outcome(error_reason=error.reason, error=str(error))
    return Outcome(error_reason="internal_error", error="The gateway failed to answer.")


def _busy() -> ThreadBusyError:
    return ThreadBusyError("Another message of this thread is still being answered; try again in a moment.")


def _lost() -> LeaseLostError:
    return LeaseLostError("The thread was taken over by another call; read its messages, then send yours again.")
