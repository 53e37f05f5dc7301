"""One turn of a thread from its beginning to its end, with the lease that excludes other writers."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError
from pallas_gateway.features.threads.records import (
    CANCELLED,
    ExchangeCancelledError,
    ExchangeOutcome,
    History,
    LeaseLostError,
    ThreadBusyError,
)
from pallas_gateway.shared.database.connections import RENEWALS, tried_again
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.tasks import TaskOwner, completed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from pallas_gateway.calls.call import Message, StepLog
    from pallas_gateway.features.threads.records import ClaimedExchange, NewThread, ThreadLease
    from pallas_gateway.features.threads.sizes import Room
    from pallas_gateway.features.threads.store import MakeTask, Store

    type _Begin = Callable[[], Coroutine[Any, Any, ThreadLease | None]]

POLL_SECONDS = (0.05, 0.5)  # shortest and longest pause between two attempts to get another process's lease
_log = logging.getLogger("pallas.threads")


class OpenExchange:
    """A turn that has begun; `history` is the messages before it."""

    def __init__(self, store: Store, lease: ThreadLease, tasks: TaskOwner, *, is_first: bool) -> None:
        """With `is_first` the thread was created for this turn, and is deleted if the turn fails before it is kept.

        `step_log` has the steps of its call, which are stored with its outcome.
        """
        self._store = store
        self._tasks = tasks
        self._is_kept = not is_first
        self.lease = lease
        self.history = History()
        self.step_log: StepLog | None = None
        self.is_ended = False
        self.lost: LeaseLostError | None = None
        self.look = asyncio.Event()
        """Set it to renew the lease at once, and so to notice its loss."""

    @property
    def number(self) -> int:
        """The turn's number in its thread, from 1."""
        return self.lease.turn

    async def read_history(self, room: Room) -> None:
        self.history = await self._store.history(self.lease, room)

    def keep(self) -> None:
        """Keep a thread that was created for this turn, even if the turn fails."""
        self._is_kept = True

    async def end(self, outcome: ExchangeOutcome) -> None:
        """Store the outcome, even if the caller is cancelled: a turn without an end would lock its thread.

        Raises:
            LeaseLostError: another writer has taken over the thread; nothing was written.
            DatabaseUnavailableError: the database could not be used for several seconds.
        """
        self.is_ended = True
        writing = self._tasks.spawn(
            tried_again(lambda: self._end(outcome)), name=f"end of turn in thread {self.lease.thread_id}"
        )
        try:
            await completed(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(partial(_note_if_failed, self.lease))
            raise

    async def leave(self, wait_seconds: float = 0) -> None:
        """Leave the turn to any process, after a pause; if that fails, others find it when the leases end."""
        self.is_ended = True
        with suppress(DatabaseUnavailableError):
            await self._store.leave_turn(self.lease, wait_seconds)

    async def fail(self, outcome: ExchangeOutcome) -> None:
        """Store the failure, unless the turn has ended; deletes a thread that was created for it and is not kept.

        If that fails too, which is logged, the turn becomes `abandoned` at the end of its lease.
        """
        if self.is_ended:
            return
        try:
            await (self.end(outcome) if self._is_kept else self._forget())
        except (LeaseLostError, DatabaseUnavailableError) as error:
            _note_not_ended(self.lease, error)

    async def _forget(self) -> None:
        self.is_ended = True
        if not await self._store.forget(self.lease):
            raise await _lost(self._store, self.lease)

    async def _end(self, outcome: ExchangeOutcome) -> None:
        made = self.step_log.steps if self.step_log is not None else ()
        if not await self._store.end_turn(self.lease, outcome, made):
            raise await _lost(self._store, self.lease)


class Exchanges:
    """Begins turns, one at a time for each thread; waiting turns of this process begin in order."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._lines = Lines()
        self._tasks = TaskOwner()

    async def close(self) -> None:
        """Wait (bounded) for turns that are beginning or ending."""
        await self._tasks.__aexit__()

    def turn(  # noqa: PLR0913  a message, its place, and how it begins
        self,
        thread_id: str,
        question: Message,
        call_id: str,
        *,
        wait_seconds: float,
        room: Room | None = None,
        replaces: int | None = None,
        task: MakeTask | None = None,
    ) -> AbstractAsyncContextManager[OpenExchange]:
        """The next turn of a thread, for the block, which is ended as an error unless the block ends it.

        Its history has what fits into `room`, or nothing without one. With `replaces` it takes the place of the latest
        turn, with `task` its course is stored. The lease is renewed during the block. If it is lost nevertheless, the
        block is cancelled.

        Raises:
            ThreadBusyError: another turn was still running after `wait_seconds`.
            NotLatestTurnError: other turns follow the one that it `replaces`.
            LeaseLostError: another writer has taken over the thread during the block, or cancelled the turn.
            DatabaseUnavailableError: the database cannot be used.
        """
        begin = partial(self._store.begin_turn, thread_id, question, call_id, task, replaces=replaces)
        return self._turn(thread_id, begin, wait_seconds=wait_seconds, room=room)

    def first_turn(
        self, thread: NewThread, question: Message, call_id: str, *, task: MakeTask | None = None
    ) -> AbstractAsyncContextManager[OpenExchange]:
        """The first turn of a new thread; as `turn`.

        If the turn fails before `keep` is called, the thread is deleted.
        """
        return self._turn(thread.id, partial(self._store.begin_thread, thread, question, call_id, task), is_first=True)

    @asynccontextmanager
    async def claimed_turn(self, claimed: ClaimedExchange, *, room: Room | None = None) -> AsyncIterator[OpenExchange]:
        """A turn with which this process goes on; otherwise as `turn`. It does not stand in line: its lease is held."""
        async with self._running(OpenExchange(self._store, claimed.lease, self._tasks, is_first=False), room) as turn:
            yield turn

    @asynccontextmanager
    async def _turn(
        self,
        thread_id: str,
        begin: _Begin,
        *,
        wait_seconds: float = 0,
        is_first: bool = False,
        room: Room | None = None,
    ) -> AsyncIterator[OpenExchange]:
        deadline = asyncio.get_running_loop().time() + wait_seconds
        async with (
            self._lines.turn(thread_id, deadline, _busy()),
            self._running(await self._begun(begin, deadline, is_first=is_first), room) as turn,
        ):
            yield turn

    @asynccontextmanager
    async def _running(self, turn: OpenExchange, room: Room | None) -> AsyncIterator[OpenExchange]:
        try:
            async with self._kept(turn):
                if room is not None:
                    await turn.read_history(room)
                yield turn
        except LeaseLostError:
            raise
        except asyncio.CancelledError:
            await turn.fail(CANCELLED)
            raise
        except Exception as error:
            await turn.fail(_failure(error))
            raise

    async def _begun(self, begin: _Begin, deadline: float, *, is_first: bool) -> OpenExchange:
        now, (pause, longest) = asyncio.get_running_loop().time, POLL_SECONDS
        while (turn := await self._tried(begin, is_first=is_first)) is None:
            if now() >= deadline:
                raise _busy()
            await asyncio.sleep(min(pause * random.uniform(0.5, 1), max(deadline - now(), 0)))  # noqa: S311  no secret
            pause = min(2 * pause, longest)
        return turn

    async def _tried(self, begin: _Begin, *, is_first: bool) -> OpenExchange | None:
        """Begin the turn if the thread is free; if the caller is cancelled meanwhile, the turn is ended again."""
        open_turn = partial(OpenExchange, self._store, tasks=self._tasks, is_first=is_first)
        undo = lambda lease: open_turn(lease).fail(CANCELLED)  # noqa: E731
        lease = await self._tasks.unless_cancelled(begin(), undo, name="beginning of a turn")
        return open_turn(lease) if lease is not None else None

    @asynccontextmanager
    async def _kept(self, turn: OpenExchange) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew(turn), name=f"lease of thread {turn.lease.thread_id}")
                yield
                renewing.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _renew(self, turn: OpenExchange) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_seconds / RENEWALS):
                    await turn.look.wait()
            turn.look.clear()
            try:
                is_held = await self._store.renew(turn.lease)
                lost = None if is_held else await _lost(self._store, turn.lease)
            except DatabaseUnavailableError:
                continue  # a later renewal notices if another call has taken the thread
            if lost is None:
                continue
            if turn.is_ended:
                return  # `end` has returned the lease, or reports its loss
            turn.lost = lost
            if not isinstance(lost, ExchangeCancelledError):
                extra = {"thread_id": turn.lease.thread_id, "turn": turn.lease.turn}
                # The database was away for longer than a lease.
                _log.warning("thread taken over", extra=extra)
            raise lost


def _note_if_failed(lease: ThreadLease, writing: asyncio.Task[None]) -> None:
    if not writing.cancelled() and isinstance(error := writing.exception(), GatewayError):
        _note_not_ended(lease, error)


def _note_not_ended(lease: ThreadLease, error: GatewayError) -> None:
    extra = {"thread_id": lease.thread_id, "turn": lease.turn, "why": error.reason}
    # The turn ends with its lease.
    _log.warning("turn end not stored", extra=extra)


def _failure(error: Exception) -> ExchangeOutcome:
    if isinstance(error, GatewayError):
        return ExchangeOutcome(error_reason=error.reason, error=str(error))
    return ExchangeOutcome(error_reason="internal_error", error="The gateway failed to answer.")


def _busy() -> ThreadBusyError:
    return ThreadBusyError("Another message of this thread is still being answered; try again in a moment.")


async def _lost(store: Store, lease: ThreadLease) -> LeaseLostError:
    if await store.was_cancelled(lease):
        return ExchangeCancelledError("The call was cancelled.")
    return LeaseLostError("The thread was taken over by another call; read its messages, then send yours again.")


class Lines:
    """The lines of this process; a key without tasks takes no memory."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, key: str, latest: float, refusal: GatewayError) -> AsyncIterator[None]:
        """Exclude others with the key during the block.

        Raises `refusal` if these have not ended at the time `latest` of the event loop's clock.
        """
        line = self._lines.setdefault(key, _Line())
        line.length += 1
        try:
            try:
                async with asyncio.timeout_at(latest):
                    await line.lock.acquire()
            except TimeoutError:
                raise refusal from None
            try:
                yield
            finally:
                line.lock.release()
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[key]


class _Line:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
