"""The gateway as a process that counts the functions it enters and the tasks it begins: `python -m … serve …`.

At SIGUSR1 it writes both to `counts.json` in its folder.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from pallas_gateway.cli.app import main

FILE = "counts.json"
_TOOL = 4
"""One of the numbers that `sys.monitoring` leaves to programs."""

_counted: Counter[str] = Counter()
_make_loop = uvloop.new_event_loop


def count() -> None:
    """Count from now on."""
    monitoring = sys.monitoring
    monitoring.use_tool_id(_TOOL, "benchmark")
    monitoring.register_callback(_TOOL, monitoring.events.PY_START, _entered)
    monitoring.set_events(_TOOL, monitoring.events.PY_START)
    uvloop.new_event_loop = _loop_that_counts
    signal.signal(signal.SIGUSR1, _write)
    atexit.register(monitoring.set_events, _TOOL, 0)  # functions are entered until the interpreter has ended


def _entered(_code: object, _offset: int) -> None:
    _counted["functions"] += 1


def _loop_that_counts() -> uvloop.Loop:
    loop = _make_loop()
    loop.set_task_factory(_begin)
    return loop


def _begin(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    _counted["tasks"] += 1
    return asyncio.Task(work, loop=loop, **options)


def _write(_number: int, _frame: object) -> None:
    part = Path(f"{FILE}.part")
    part.write_text(json.dumps(_counted))
    part.rename(FILE)


if __name__ == "__main__":
    count()
    main()
