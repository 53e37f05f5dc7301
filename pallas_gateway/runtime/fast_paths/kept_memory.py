"""Keeps memory that was freed for the threads and calls that need it next. In glibc, on Linux.

glibc makes an arena for each of the first threads, and each arena keeps 3 to 5 MB that other threads cannot use. It
returns memory to the system as soon as a few large blocks at the end of the heap are free: each call with an image of
4 MB had its memory mapped again, page by page, which took more than a third of its CPU.
"""

from __future__ import annotations

import ctypes
import os
from typing import Literal

LARGEST_BLOCK = 32 * 1024 * 1024
"""Larger blocks are returned to the system. It is the most to which glibc itself raises this limit."""
KEPT = 2 * LARGEST_BLOCK
"""Bytes of free memory that are kept; the ratio is glibc's."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LIMITS = {
    "start": {_ARENA_MAX: 1},
    "calls": {_MMAP_THRESHOLD: LARGEST_BLOCK, _TRIM_THRESHOLD: KEPT},
}
_VARIABLES = {
    "start": ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"),
    "calls": ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"),
}


def install(phase: Literal["start", "calls"]) -> None:
    """Set the limits of this process from a phase on, if its C library has them and its environment sets none."""
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_limit is not None and not any(variable in os.environ for variable in _VARIABLES[phase]):
        for limit, value in _LIMITS[phase].items():
            set_limit(limit, value)
