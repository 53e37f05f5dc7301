"""Watching files for a reload: says when one of them was edited, made, removed or replaced.

The folders are watched, not the files: editors and Kubernetes replace files instead of writing them. A change in a
folder counts only if one of the files is another by then, so a log written beside them is none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from watchfiles import awatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

SETTLE_MILLISECONDS = 200
"""How long files must have been left alone: several are often written in one go."""
LOOK_MILLISECONDS = 5_000
"""How often files are looked at where nobody says that they change, as on a file system of another machine."""

type _Stamps = Mapping[Path, tuple[int, int, int] | None]


class FileWatch:
    """Watches a set of files that may be another one after each change.

    Args:
        files: the files of the moment, whether they are there or not.
        suspects_all: whether any change beside them counts, because what is wanted may be a file nobody knows of yet.
    """

    def __init__(self, files: Callable[[], Collection[Path]], *, suspects_all: Callable[[], bool]) -> None:
        self._files = files
        self._suspects_all = suspects_all
        self._again = asyncio.Event()

    def look_again(self) -> None:
        """The set of files may be another one from here on."""
        self._again.set()

    async def changes(self) -> AsyncIterator[None]:
        """One item for each time that something changed, without end."""
        before = self._stamps()
        while True:
            self._again.clear()
            folders = _folders(before)
            watching = awatch(
                *folders,
                step=SETTLE_MILLISECONDS,
                rust_timeout=LOOK_MILLISECONDS,
                yield_on_timeout=True,
                recursive=False,
                stop_event=self._again,
            )
            async for changed in watching:
                known, before = before, self._stamps()
                if _differ(known, before) or (changed and self._suspects_all()):
                    yield
                if _folders(before) != folders:  # an agent has come up, by itself
                    self._again.set()
            known, before = before, self._stamps()
            if _differ(known, before):  # while nobody watched
                yield

    def _stamps(self) -> _Stamps:
        return {path: _stamp(path) for path in self._files()}


def _folders(stamps: _Stamps) -> set[Path]:
    return {path.parent for path in stamps if path.parent.is_dir()}


def _differ(known: _Stamps, now: _Stamps) -> bool:
    """Whether a file that was known already is another one; those that only come to be known were just read."""
    return any(known.get(path, stamp) != stamp for path, stamp in now.items())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
