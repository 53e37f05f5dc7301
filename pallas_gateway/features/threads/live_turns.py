"""The turns whose calls run in this process; the gateway owns them, because a reload makes new routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from pallas_gateway.tasks import TaskOwner


class RunningExchange(Protocol):
    """A turn with its clients; `number` is None before it is stored."""

    thread_id: str | None
    number: int | None

    def begin(self, work: asyncio.Task[Any]) -> None:
        """Set the task of the call."""

    def stored(self, number: int) -> None:
        """Set the number."""


class LiveExchanges[T: RunningExchange]:
    """Stored turns whose calls run in this process, by thread and number."""

    def __init__(self, tasks: TaskOwner) -> None:
        """`tasks` owns the calls."""
        self._tasks = tasks
        self._turns: dict[tuple[str | None, int | None], T] = {}

    def begin(self, turn: T, call: Coroutine[Any, Any, Any]) -> None:
        work = self._tasks.spawn(call, name=f"answer in thread {turn.thread_id}")
        turn.begin(work)
        work.add_done_callback(lambda _: self._turns.pop((turn.thread_id, turn.number), None))

    def stored(self, turn: T, number: int) -> None:
        """Note the number of a turn: from here on it can be found, and its clients can find its answer."""
        self._turns[turn.thread_id, number] = turn
        turn.stored(number)

    def find(self, thread_id: str, number: int) -> T | None:
        return self._turns.get((thread_id, number))
