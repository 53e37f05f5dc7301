"""filelock, imported without its audit hook.

Python calls the hook for each `id()`: six times for each message of a history. fast-agent imports filelock for its own
sessions and logins. The hook refuses a fork while a file descriptor of a lock changes hands. The gateway does not fork,
and a thread that holds a lock starts no program.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pallas_gateway.changes.change import FAST_PATH, SERVER, Change

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change("file_locks", FAST_PATH, ("filelock",), when=SERVER)


def install() -> None:
    """Import filelock; where it has been imported before, its hook stays, because Python removes none."""
    add = sys.addaudithook
    sys.addaudithook = _add_none
    try:
        import filelock  # noqa: F401, PLC0415
    finally:
        sys.addaudithook = add


def _add_none(hook: Callable[..., object]) -> None:
    del hook
