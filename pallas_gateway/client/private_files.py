"""Files in the state folder of this user, which other users cannot read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str], home: Path) -> Path:
    """The folder in the state directory of the XDG Base Directory Specification, which ignores relative paths."""
    state = environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else home / ".local" / "state") / "pallas-gateway"


def lock_now(handle: int) -> bool:
    """Lock an open file for this process until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file in one step, with mode 0600. The caller holds the lock of the file.

    Raises:
        OSError: nothing was changed.
    """
    temporary = path.with_suffix(".new")  # always of this name: one that a killed process has left is overwritten
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
