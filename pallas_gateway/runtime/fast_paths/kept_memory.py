"""Keeps memory that a large call has freed for the next one. In glibc, on Linux.

glibc returns memory to the system as soon as a few large blocks at the end of the heap are free. So each call with an
image of 4 MB had its memory mapped again, page by page, which took more than a third of its CPU.
"""

from __future__ import annotations

import ctypes
import os

LARGEST_BLOCK = 32 * 1024 * 1024
"""Larger blocks are returned to the system. It is the most to which glibc itself raises this limit."""
KEPT = 2 * LARGEST_BLOCK
"""Bytes of free memory that are kept; the ratio is glibc's."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def install() -> None:
    """Set the limits of this process, if its C library has them and its environment sets none."""
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_limit is not None and not any(variable in os.environ for variable in _VARIABLES):
        set_limit(_MMAP_THRESHOLD, LARGEST_BLOCK)
        set_limit(_TRIM_THRESHOLD, KEPT)
