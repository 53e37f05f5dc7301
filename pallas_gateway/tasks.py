"""Tasks with an owner: whatever is started is awaited, logged when it fails, and gone when its owner closes.

Long work on the event loop gives way to other work between its parts.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator

    type Parts[T] = Generator[None, None, T]

_LONG_SECONDS = 0.0002
"""After a longer part of work, the event loop runs everything else that is ready. Large images and histories have such
parts."""
_IDLE_SECONDS = 0.00005
"""An iteration of the event loop that takes no longer has no other work."""
_MOST_TIMES = 10
"""Longest wait after a part, in durations of the part, so that long work also ends on a busy event loop."""
_MOST_SECONDS = 0.005
_log = logging.getLogger("pallas.tasks")


async def give_way(began: float) -> None:
    """After a part of long work, let the event loop do everything else that is ready.

    Args:
        began: when the part began, by `perf_counter`.
    """
    now = perf_counter()
    took = now - began
    if took < _LONG_SECONDS:
        return
    latest = now + min(_MOST_TIMES * took, _MOST_SECONDS)
    while now < latest:
        before = now
        await asyncio.sleep(0)
        now = perf_counter()
        if now - before < _IDLE_SECONDS:
            return


async def in_parts[T](work: Parts[T]) -> T:
    """Return the result of long work; other work on the event loop runs where it yields."""
    began = perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)
        if perf_counter() - began >= _LONG_SECONDS:
            await give_way(began)
            began = perf_counter()


def at_once[T](work: Parts[T]) -> T:
    """Return the result of work without a pause where it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)


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
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._close_seconds)
        finally:  # also when the caller is cancelled meanwhile
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

    def spawn[T](
        self, work: Coroutine[Any, Any, T], *, name: str, report: bool = False, is_eager: bool = False
    ) -> asyncio.Task[T]:
        """Start `work`; with `report`, for work that is not awaited, a failure is logged as an error under `name`.

        If eager, it runs at once until it first waits; work that never waits is done when this returns.
        """
        if is_eager:
            task = asyncio.Task(work, loop=asyncio.get_running_loop(), name=name, eager_start=True)
        else:
            task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        if report:
            task.add_done_callback(report_failure)
        return task

    async def unless_cancelled[T](
        self, work: Coroutine[Any, Any, T | None], undo: Callable[[T], Awaitable[None]], *, name: str
    ) -> T | None:
        """Return the result of `work`; if the caller is cancelled meanwhile, undo what it has done."""
        working = self.spawn(work, name=name)

        async def undone() -> None:
            await asyncio.wait({working})
            if not working.cancelled() and working.exception() is None and (result := working.result()) is not None:
                await undo(result)

        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            await completed(self.spawn(undone(), name=f"end of a {name}"))
            raise
        return working.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen here, so that asyncio does not complain where a waiter was cancelled meanwhile


class UseCount:
    """The number of uses of something that ends with the last of them."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    async def wait_for_none(self) -> None:
        """Return once it is not in use."""
        await self._none.wait()


async def completed[T](task: asyncio.Task[T], *, seconds: float | None = None) -> T:
    """Return the result of `task`, which goes on when the caller is cancelled.

    A cancelled caller waits until the task is done, at most `seconds`, before the cancellation is raised.

    Raises:
        TimeoutError: the task was not done after `seconds`, or its owner has cancelled it.
    """
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=seconds)
        raise
    if not task.done() or task.cancelled():
        raise TimeoutError(f"{task.get_name()} is not done")
    return task.result()


def report_failure(task: asyncio.Task[Any]) -> None:
    """Log the failure of a task that has ended; a callback for tasks that are not awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background task failed", extra={"task": task.get_name()}, exc_info=error)
