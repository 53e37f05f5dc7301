"""The interpreter as a process that serves uses it: its event loop, garbage collector, memory and audit hooks."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Coroutine
from typing import Any

YOUNG_OBJECTS = 40_000
"""Objects that are new before the collector looks for garbage. A call leaves about 20 in cycles. With
Python's default of 2,000, the collector ran several times during a call and found little garbage."""
YOUNG_OBJECTS_AT_START = 1_000_000
"""This number until the agents are ready. A start makes some 300,000 objects, of which 4,000 are garbage; to look for
them took a tenth of its CPU."""
LARGEST_BLOCK = 32 * 1024 * 1024
"""Larger blocks of memory are returned to the system. It is the most to which glibc itself raises this limit."""
MEMORY_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def expect_calls() -> None:
    """Prepare the interpreter for the start of a process that serves, before fast-agent is imported."""
    _collect_every(YOUNG_OBJECTS_AT_START)
    # Before there are threads: glibc makes an arena for each of the first ones, and each keeps 3 to 5 MB for itself.
    _set_limits({_ARENA_MAX: 1}, "MALLOC_ARENA_MAX")
    from pallas_gateway.changes.change import SERVER  # noqa: PLC0415  as in `_is_on`
    from pallas_gateway.changes.registry import registry  # noqa: PLC0415

    registry().install(SERVER)


def set_aside_what_stays() -> None:
    """Exclude the objects loaded by now from garbage collection: modules, agents, schemas, some 270,000 objects.

    A collection that visits them stops all calls for a quarter of a second. Later objects are collected as usual. After
    a reload, this first collects the objects that the reload has replaced; those that calls still use are collected the
    next time.
    """
    keep_memory()
    if not _is_on("garbage_collection"):
        return
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    _collect_every(YOUNG_OBJECTS)


def keep_memory() -> None:
    """Keep memory that a call has freed for the next; what the start has freed is returned to the system before.

    glibc returns memory as soon as a few large blocks at the end of the heap are free. Each call with an image of 4 MB
    had its memory mapped again, page by page, which took more than a third of its CPU.
    """
    _set_limits({_MMAP_THRESHOLD: LARGEST_BLOCK, _TRIM_THRESHOLD: 2 * LARGEST_BLOCK}, *MEMORY_VARIABLES)


def _set_limits(limits: dict[int, int], *variables: str) -> None:
    """Set limits of the C library's memory if it has them, and if the environment sets none."""
    import ctypes  # noqa: PLC0415  `--help` loads this module, and serves nothing

    set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
    is_ours = not any(variable in os.environ for variable in (*variables, "GLIBC_TUNABLES"))
    if _is_on("kept_memory") and set_limit is not None and is_ours:
        for limit, value in limits.items():
            set_limit(limit, value)


def _collect_every(young: int) -> None:
    if _is_on("garbage_collection"):
        _, *older = gc.get_threshold()
        gc.set_threshold(young, *older)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a process that serves: on libuv's event loop, an eighth less CPU per call, where there is one.

    Not in asyncio's debug mode, in which libuv's loop looks at the stack where there is none and crashes the process.
    """
    misfit: str | None
    try:
        import uvloop  # noqa: PLC0415  only what serves loads it
    except ImportError as error:
        make_loop, misfit = None, str(error)
    else:
        make_loop, misfit = uvloop.new_event_loop, None
    is_used = not _is_debugging() and _is_on("event_loop", misfit)
    asyncio.run(work, loop_factory=make_loop if is_used else None)


def _is_on(setting: str, misfit: str | None = None) -> bool:
    from pallas_gateway.changes.registry import registry  # noqa: PLC0415  `--help` loads this module, and serves nothing

    return registry().is_setting_on(setting, misfit)


def _is_debugging() -> bool:
    """As asyncio decides it."""
    return sys.flags.dev_mode or (not sys.flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG")))
