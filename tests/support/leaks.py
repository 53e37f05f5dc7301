"""Did anything stay behind? Compares asyncio tasks and open file descriptors before and after.

Counted by kind, not by identity: a keep-alive connection that was closed and opened again is not a leak,
one connection more is.
"""

import asyncio
import gc
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .waiting import WAIT_SECONDS, tick

# sse-starlette keeps one such task per event loop, from the first stream of the initialize era until the loop ends.
LIVES_WITH_THE_LOOP = "_shutdown_watcher"
FIRST_COLLECTION_SECONDS = 0.05


@dataclass(frozen=True)
class Snapshot:
    """What is open now: tasks by the name of their coroutine, descriptors by what they point to."""

    tasks: Counter[str]
    descriptors: Counter[str]

    def growth_since(self, before: "Snapshot") -> list[str]:
        """One line for each kind there is more of than `before`."""
        return [
            f"{count} more {word} {kind}"
            for word, more in (("task", self.tasks - before.tasks), ("fd", self.descriptors - before.descriptors))
            for kind, count in sorted(more.items())
        ]


def snapshot() -> Snapshot:
    """Count what is open now, the current task left out."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    tasks = Counter(_kind_of_task(task) for task in others)
    del tasks[LIVES_WITH_THE_LOOP]
    return Snapshot(tasks, _descriptors())


async def assert_nothing_left(before: Snapshot, timeout_seconds: float = WAIT_SECONDS) -> None:
    """Wait until no more is open than `before`; `AssertionError` naming the rest after `timeout_seconds`.

    What only the garbage collector would close is not left behind. It is asked for that ever more seldom, and at last:
    it takes a tenth of a second of all that runs here.
    """
    clock = asyncio.get_running_loop().time
    beginning, due = clock(), FIRST_COLLECTION_SECONDS
    while left := snapshot().growth_since(before):
        waited = clock() - beginning
        if waited > min(due, timeout_seconds):
            due = 2 * waited
            gc.collect()
            left = snapshot().growth_since(before)
        if left and waited > timeout_seconds:
            raise AssertionError(f"left behind after {timeout_seconds} s: " + "; ".join(left))
        await tick()


def _kind_of_task(task: "asyncio.Task[object]") -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))


def _descriptors() -> Counter[str]:
    kinds: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115  (Path.readlink would turn "socket:[1]" into a path)
        except OSError:
            continue  # the descriptor this very listing was using
        kinds[target.split("[", 1)[0] if target.startswith(("socket:", "pipe:")) else target] += 1
    kinds.pop(f"/proc/{os.getpid()}/fd", None)
    return kinds
