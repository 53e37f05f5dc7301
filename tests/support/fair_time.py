"""An event loop whose clock stands still while its thread waits for a CPU.

The gateway, its clients and its servers share the process of a test. On a busy machine, seconds may pass in which none
of them can run, and a short time limit would end before the work that it limits has begun. On this clock, a turn of the
loop lasts as long as its thread used the CPU, and a wait no longer than the loop asked for.

A test of a time limit hastens the clock (`hastened`): the limit is longer than a busy machine stands still, and the
test does not wait for it.
"""

import asyncio
import selectors
from asyncio import unix_events
from collections.abc import Awaitable
from threading import get_ident
from time import monotonic, thread_time
from typing import override

SLACK_SECONDS = 0.005
"""Counted of each turn beyond its CPU time, and of each wait beyond its time limit."""


class _Selector(selectors.DefaultSelector):
    loop: "FairLoop"

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = self.loop.end_turn()
        ready = super().select(timeout)
        self.loop.idle_waits += not ready and timeout != 0
        self.loop.begin_turn(began, timeout)
        return ready


class FairLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._at_begin = self._wall = monotonic()
        self._used, self._owner = thread_time(), get_ident()
        self.idle_waits = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    @override
    def time(self) -> float:
        """Return the seconds so far; to other threads, those at the beginning of the turn."""
        if get_ident() != self._owner:
            return self._at_begin
        return self._at_begin + min(monotonic() - self._wall, thread_time() - self._used + SLACK_SECONDS)

    def skip(self, seconds: float) -> None:
        self._at_begin += seconds

    def end_turn(self) -> float:
        """Count the turn; return the time at which the wait begins."""
        self._at_begin = self.time()
        self._wall, self._used = monotonic(), thread_time()
        return self._wall

    def begin_turn(self, began: float, timeout: float | None) -> None:
        """Count the wait that `began`."""
        self._wall, self._used, self._owner = monotonic(), thread_time(), get_ident()
        waited = self._wall - began
        self._at_begin += waited if timeout is None else min(waited, max(timeout, 0) + SLACK_SECONDS)


async def hastened[T](work: Awaitable[T], step_seconds: float = 0.5, most_seconds: float = 600.0) -> T:
    """Return the result of `work`; until then `step_seconds` pass whenever the running loop has nothing to do.

    What each step has set off is done before the next one, but for work of threads and of other processes. Only the
    clock of the loop is hastened.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FairLoop)
    task = asyncio.ensure_future(work)
    end = loop.time() + most_seconds
    try:
        idle_waits = loop.idle_waits
        while not (await asyncio.wait({task}, timeout=SLACK_SECONDS))[0]:
            assert loop.time() < end, f"not done after {most_seconds:g} s"
            if loop.idle_waits > idle_waits:
                loop.skip(step_seconds)
            idle_waits = loop.idle_waits
    finally:
        task.cancel()
    return task.result()


def use_fair_time() -> None:
    """Make every event loop of the process one with this clock, unless its maker chooses another kind."""
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = FairLoop  # type: ignore[attr-defined]  # no public name
