"""Tasks with an owner: whatever is started is awaited, logged when it fails, and gone when its owner closes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine

_log = logging.getLogger("pallas.tasks")


class TaskOwner:
    """An async context manager that owns tasks.

    Unlike a task group, a failing task does not cancel its siblings: one call's failure is never another's.
    """

    def __init__(self, *, close_seconds: float = 10.0) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._close_seconds = close_seconds

    def __len__(self) -> int:
        """How many tasks are running."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let what runs finish within `close_seconds`, then cancel it and wait for it to end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._close_seconds)
        await self.cancel_all()

    async def wait_until_idle(self) -> None:
        """Return once nothing runs; what is started meanwhile is waited for too."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel_all(self) -> None:
        """Cancel every task and wait (bounded) until they are gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._close_seconds)

    def spawn[T](self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start `work`; a failure nobody awaits is logged once, under `name`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def run[T](self, work: Coroutine[Any, Any, T], *, name: str, timeout_seconds: float | None = None) -> T:
        """Await `work` in a task of its own, so that cancelling the caller cancels it exactly once.

        anyio cancels a scope's task again at every await, and fast-agent re-arms a cancellation it has seen; in a task
        of its own the work's clean-up can still await.

        Raises:
            TimeoutError: `work` took longer than `timeout_seconds`; it has been cancelled.
        """
        task = self.spawn(work, name=name)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(name)
        return task.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever awaits the task reports the error; this line is for those that nobody awaits.
            _log.debug("task failed", extra={"task": task.get_name()}, exc_info=error)
