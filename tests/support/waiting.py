"""Waiting without sleeping: a condition others announce, a condition that must be polled, and a gate to hold calls at.

Every wait is bounded and fails with `AssertionError`, so a test that hangs says what it was waiting for.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, overload

POLL_SECONDS = 0.005  # long enough not to starve the loop, short enough not to be noticed
WAIT_SECONDS = 60.0
"""Bound of a wait that says nothing else. A machine that does other work beside may stand still for many seconds."""


@overload
async def eventually[T](
    predicate: Callable[[], Awaitable[T]], timeout_seconds: float = WAIT_SECONDS, *, what: str = ...
) -> T: ...


@overload
async def eventually[T](predicate: Callable[[], T], timeout_seconds: float = WAIT_SECONDS, *, what: str = ...) -> T: ...


async def eventually(
    predicate: Callable[[], Any], timeout_seconds: float = WAIT_SECONDS, *, what: str = "the condition"
) -> Any:
    """Return the first truthy value of `predicate`, asked again and again (it may be async).

    For facts nobody announces; where somebody does, `Changes` answers at once. What takes long is asked less often.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_seconds
    while True:
        began = clock()
        value = predicate()
        found = await value if inspect.isawaitable(value) else value
        if found:
            return found
        if clock() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_seconds} s (last: {found!r})")
        await tick(min(max(POLL_SECONDS, 2 * (clock() - began)), 0.2))


async def tick(seconds: float = POLL_SECONDS) -> None:
    """Let the loop do I/O and timers for one short, bounded moment."""
    try:
        await asyncio.wait_for(asyncio.Event().wait(), seconds)
    except TimeoutError:
        return


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task; return once it has ended so."""
    task.cancel()
    await asyncio.wait({task}, timeout=WAIT_SECONDS)
    assert task.cancelled()


async def work_for(seconds: float) -> None:
    """Take so long, for programs of others that wait for real time."""
    await asyncio.sleep(seconds)


class Stopwatch:
    """Seconds in which the event loop was free: what code has waited for, not what a busy machine added."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await tick()
            self.seconds += min(clock() - began, 2 * POLL_SECONDS)


@asynccontextmanager
async def stopwatch() -> AsyncGenerator[Stopwatch]:
    """Measure the block; for assertions that something is not waited for."""
    one = Stopwatch()
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.wait({running})


class Changes:
    """A condition variable for one loop: whoever changes something says so, whoever waits looks again."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, predicate: Callable[[], object], timeout_seconds: float | None, *, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                while not predicate():
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{what}: not within {timeout_seconds} s") from None


class Gate:
    """Where a fake holds its callers until the test lets them go on.

    >>> await gate.wait_for_entered(2)   # both calls are inside at once
    >>> gate.let_through(1)              # one goes on
    >>> gate.open()                      # and everyone else, now and later
    """

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.passed: list[str] = []
        self.cancelled: list[str] = []
        self._permits = 0
        self._is_open = False
        self._changes = Changes()

    @property
    def waiting(self) -> int:
        """How many are held at this moment."""
        return len(self.entered) - len(self.passed) - len(self.cancelled)

    def open(self) -> None:
        """Let everyone through, now and later."""
        self._is_open = True
        self._changes.announce()

    def let_through(self, count: int = 1) -> None:
        """Let `count` through: those held longest, else those who come next."""
        self._permits += count
        self._changes.announce()

    async def enter(self, label: str = "") -> None:
        """Be held here until let through (called by fakes). Unbounded: the test's own waits are bounded."""
        self.entered.append(label)
        self._changes.announce()
        try:
            await self._changes.until(lambda: self._is_open or self._permits > 0, None, what="the gate")
        except asyncio.CancelledError:
            self.cancelled.append(label)
            self._changes.announce()
            raise
        if not self._is_open:
            self._permits -= 1
        self.passed.append(label)
        self._changes.announce()

    async def wait_for_entered(self, count: int = 1, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` have entered in all, whatever became of them."""
        await self._changes.until(
            lambda: len(self.entered) >= count, timeout_seconds, what=f"{count} entering, {self.entered} so far"
        )

    async def wait_for_cancelled(self, count: int = 1, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` have been cancelled while held."""
        await self._changes.until(
            lambda: len(self.cancelled) >= count, timeout_seconds, what=f"{count} cancelled, {self.cancelled} so far"
        )
