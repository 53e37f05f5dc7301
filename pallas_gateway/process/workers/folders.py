"""The folders that workers share. Those of killed gateways are removed by the next one on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "pallas-workers-"
_LOCK = "lock"


@contextmanager
def shared_folder(place: str) -> Iterator[tuple[Path, int]]:
    """Make a folder in `place`; yield it with a descriptor, which workers inherit: it is in use while one has that."""
    _remove_unused(Path(place))
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as name:
        folder = Path(name)
        descriptor = os.open(folder / "unlocked", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / _LOCK)  # only now others look at it
            yield folder, descriptor
        finally:
            os.close(descriptor)


def _remove_unused(place: Path) -> None:
    """Remove folders of this user whose lock no process has; those of earlier releases have none, and stay."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or just removed
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
