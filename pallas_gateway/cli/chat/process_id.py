"""Which process a pending turn belongs to, and whether it still runs: a chat that was killed cannot say so itself."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_START_TIME = 19
"""Field of /proc/PID/stat after the command's name, in clock ticks since boot (proc(5): starttime)."""


def this_process() -> str:
    """The present process, told apart from a later one that gets its number."""
    return f"{os.getpid()}:{_started(os.getpid()) or ''}"


def is_running(owner: str) -> bool:
    """Whether the process called `owner` still runs on this machine."""
    number, _, started = owner.partition(":")
    if not number.isdecimal():
        return False
    if started:
        return _started(int(number)) == started
    return _has_process(int(number))


def _started(number: int) -> str | None:
    """None if there is no such process, and on systems that do not tell."""
    try:
        stat = (_PROC / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[_START_TIME]  # the name before may hold anything, parentheses too


def _has_process(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
