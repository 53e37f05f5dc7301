"""The interpreter as a process that serves uses it: its event loop, when it looks for garbage, and how memory lies."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

YOUNG_OBJECTS = 10_000
"""Objects that are new before the collector looks for garbage. A call makes and drops more than Python's default of
2,000, so it was gone through several times while it ran, for little that was garbage."""

_LARGE_PAGE = 2 * 1024 * 1024
_MADV_COLLAPSE = 25
_IN_USE = 0.9
_AREA = re.compile(r"(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<kind>.{4} [0-9a-f]+ \S+ \d+)\s*(?P<name>.*)")
_OWN_KIND = re.compile(r"rw.p \S+ \S+ 0")
_OWN_NAME = re.compile(r"|\[heap\]|\[anon.*")


def expect_calls() -> None:
    """Set the garbage collector for a process in which many objects live as long as a call and no longer."""
    _, *older = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *older)


def set_aside_what_stays() -> None:
    """Spare the garbage collector what has been loaded by now: modules, agents, schemas, some 240,000 objects.

    Going through them stopped everything for a quarter of a second, again and again. What is made from now on is looked
    at as ever. Called again, after a reload, it first collects what the reload replaced; what calls still used of that
    is collected the next time. Then what stays is laid out in large pages, where the system has them.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        with suppress(RuntimeError):  # no more threads: it is a saving, not a need
            threading.Thread(target=_lay_out_in_large_pages, name="large pages", daemon=True).start()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a process that serves: on libuv's event loop, an eighth less CPU per call, where there is one.

    Not in asyncio's debug mode, in which libuv's loop looks at the stack where there is none and crashes the process.
    """
    try:
        import uvloop  # noqa: PLC0415  only what serves loads it
    except ImportError:  # there is none for Windows
        asyncio.run(work)
    else:
        asyncio.run(work, loop_factory=None if _is_debugging() else uvloop.new_event_loop)


def _is_debugging() -> bool:
    """As asyncio decides it."""
    return sys.flags.dev_mode or (not sys.flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG")))


def _lay_out_in_large_pages(smaps: Path = Path("/proc/self/smaps")) -> None:
    """Have Linux, from 6.1 on, keep in pages of 2 MB what lies in pages of 4 KB.

    A call touches a little of everything, more than the processor has room for addresses of small pages: it looks each
    up in memory, in a virtual machine twice over. Moving what is there takes a tenth of a second and more, which nobody
    waits for in a thread. Whatever the system refuses stays as it is: an older kernel all of it, a full memory what it
    has no room for. https://man7.org/linux/man-pages/man2/madvise.2.html
    """
    import ctypes  # noqa: PLC0415  `--help` loads this module, and serves nothing

    try:
        areas = _full_areas(smaps.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # not mounted
        return
    madvise = ctypes.CDLL(None).madvise
    for begin, end in areas:
        first, last = -(-begin // _LARGE_PAGE), end // _LARGE_PAGE
        for page in range(first, last):
            madvise(ctypes.c_void_p(page * _LARGE_PAGE), ctypes.c_size_t(_LARGE_PAGE), _MADV_COLLAPSE)


def _full_areas(smaps: str) -> Iterator[tuple[int, int]]:
    """Where memory of the process's own begins and ends, of areas that are in use from end to end.

    In others, as stacks of threads are, a large page would take memory that nobody uses.
    """
    area: re.Match[str] | None = None
    for line in smaps.splitlines():
        if (header := _AREA.match(line)) is not None:
            is_own = _OWN_KIND.fullmatch(header["kind"]) and _OWN_NAME.fullmatch(header["name"])
            area = header if is_own else None
        elif area is not None and line.startswith("Rss:"):
            begin, end = int(area["begin"], 16), int(area["end"], 16)
            if int(line.split()[1]) * 1024 >= _IN_USE * (end - begin):
                yield begin, end
