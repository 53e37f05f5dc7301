"""The interpreter as a process that serves uses it: its event loop, garbage collector, memory and audit hooks."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import SERVER
from pallas_gateway.changes.registry import registry

if TYPE_CHECKING:
    from collections.abc import Coroutine

YOUNG_OBJECTS = 40_000
"""Objects that are new before the collector looks for garbage. A call leaves about 20 in cycles. With
Python's default of 2,000, the collector ran several times during a call and found little garbage."""
YOUNG_OBJECTS_AT_START = 1_000_000
"""This number until the agents are ready. A start makes some 300,000 objects, of which 4,000 are garbage; to look for
them took a tenth of its CPU."""


def expect_calls() -> None:
    """Prepare the interpreter for the start of a process that serves, before fast-agent is imported."""
    from pallas_gateway.runtime import fast_paths  # noqa: PLC0415  `--help` loads this module, and serves nothing

    _collect_every(YOUNG_OBJECTS_AT_START)
    fast_paths.KEPT_MEMORY.install("start")  # before there are threads
    registry().install(SERVER)


def set_aside_what_stays() -> None:
    """Exclude the objects loaded by now from garbage collection: modules, agents, schemas, some 270,000 objects.

    A collection that visits them stops all calls for a quarter of a second. Later objects are collected as usual. After
    a reload, this first collects the objects that the reload has replaced; those that calls still use are collected the
    next time.
    """
    from pallas_gateway.runtime import fast_paths  # noqa: PLC0415

    fast_paths.KEPT_MEMORY.install("calls")  # the memory that the start has freed is returned to the system
    if not fast_paths.GARBAGE_COLLECTION.is_on:
        return
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    _collect_every(YOUNG_OBJECTS)


def _collect_every(young: int) -> None:
    from pallas_gateway.runtime import fast_paths  # noqa: PLC0415  `--help` loads this module, and serves nothing

    if fast_paths.GARBAGE_COLLECTION.is_on:
        _, *older = gc.get_threshold()
        gc.set_threshold(young, *older)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a process that serves: on libuv's event loop, an eighth less CPU per call, where there is one.

    Not in asyncio's debug mode, in which libuv's loop looks at the stack where there is none and crashes the process.
    """
    from pallas_gateway.runtime import fast_paths  # noqa: PLC0415

    if _is_debugging() or not fast_paths.EVENT_LOOP.is_on:
        asyncio.run(work)
        return
    import uvloop  # noqa: PLC0415  only what serves loads it

    asyncio.run(work, loop_factory=uvloop.new_event_loop)


def _is_debugging() -> bool:
    """As asyncio decides it."""
    return sys.flags.dev_mode or (not sys.flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG")))
