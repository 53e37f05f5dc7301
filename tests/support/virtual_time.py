"""An event loop whose time the test moves: nothing waits, and each run is the same.

The loop runs until it has nothing to do before a given time. The clocks that the gateway's modules have imported show
the same time. Time stands still while a thread works for the loop or for a SQLite database; sockets are not waited for.
"""

import asyncio
import selectors
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any, override

import aiosqlite.core
import pytest

_BEGIN = 1000.0
_MOST_TURNS = 20_000
"""Turns of the loop in one `advance`; more of them are an endless loop of the gateway or the test."""

_THREAD_SECONDS = 20.0
"""Longest wait for the work of a thread."""


class _Selector(selectors.DefaultSelector):
    """Never blocks: tells the loop that it has nothing to do."""

    loop: "VirtualLoop"

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.count_turn()
        ready = super().select(_THREAD_SECONDS if self.loop.in_threads and timeout != 0 else 0)
        if not ready and timeout != 0:
            self.loop.idle()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    _scheduled: list[asyncio.TimerHandle]  # of asyncio

    def __init__(self) -> None:
        self.now = self._goal = _BEGIN
        self.in_threads = 0
        self._turns = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    @override
    def time(self) -> float:
        return self.now

    @override
    def run_in_executor(  # type: ignore[override]  # of any function
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        self.in_threads += 1
        running = super().run_in_executor(executor, func, *args)
        running.add_done_callback(self._left_thread)
        return running

    def _left_thread(self, _: object) -> None:
        self.in_threads -= 1

    def count_turn(self) -> None:
        self._turns += 1
        assert self._turns < _MOST_TURNS, "the loop does not come to rest"

    def idle(self) -> None:
        """Go to the time of the next timer, or stop at the goal."""
        due = self._scheduled[0].when() if self._scheduled else self._goal + 1
        if due <= self._goal:
            self.now = max(self.now, due)
        else:
            self.now = self._goal
            self.stop()

    def advance(self, seconds: float = 0.0) -> None:
        """Run all that happens in so many seconds."""
        self._turns, self._goal = 0, self.now + seconds
        self.run_forever()

    def finish[T](self, work: Coroutine[Any, Any, T], seconds: float = 3600.0) -> T:
        """Run until `work` is done, within so many seconds; return its result."""
        task = self.create_task(work)
        task.add_done_callback(lambda _: self.stop())
        self._turns, self._goal = 0, self.now + seconds
        self.run_forever()
        assert task.done(), f"{task} is not done after {seconds} s"
        return task.result()


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """A loop whose time is that of the gateway's modules; it is closed after the block."""
    loop = VirtualLoop()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in [*sys.modules.items()]:
            if name.startswith("pallas_gateway"):
                _set_clocks(module, loop, patch)
        for name in ("_connect", "_execute", "close"):
            patch.setattr(aiosqlite.core.Connection, name, _counted(getattr(aiosqlite.core.Connection, name), loop))
        try:
            yield loop
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _counted(method: Any, loop: VirtualLoop) -> Any:
    async def counted(*arguments: Any, **options: Any) -> Any:
        loop.in_threads += 1
        try:
            return await method(*arguments, **options)
        finally:
            loop.in_threads -= 1

    return counted


def _set_clocks(module: ModuleType, loop: VirtualLoop, patch: pytest.MonkeyPatch) -> None:
    for clock in (time.monotonic, time.perf_counter):
        if vars(module).get(clock.__name__) is clock:
            patch.setattr(module, clock.__name__, loop.time)
        for one in vars(module).values():
            if is_dataclass(one) and isinstance(one, type):  # its constructor has the clock of `default_factory`
                for cell in one.__init__.__closure__ or ():
                    if cell.cell_contents is clock:
                        patch.setattr(cell, "cell_contents", loop.time)
