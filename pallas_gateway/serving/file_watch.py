"""Watching files for a reload: says when one of them was edited, made, removed or replaced.

The folders are watched, not the files: editors and Kubernetes replace files instead of writing them. A change in a
folder counts only if one of the files is another by then, so a log written beside them is none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from watchfiles import awatch

from pallas_gateway.runtime.files import stamps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from pathlib import Path

    from pallas_gateway.runtime.files import Files

SETTLE_MILLISECONDS = 200
"""How long files must have been left alone: several are often written in one go."""
LOOK_SECONDS = 5.0
"""How often files are looked at where nobody says that they change, as on a file system of another machine."""

_log = logging.getLogger("pallas.reload")


class FileWatch:
    """Watches a set of files that may be another one after each change.

    Args:
        files: the files of the moment, whether they are there or not, each as it was when it was read.
        suspects_modules: whether any Python file beside them counts, because what is wanted may be one nobody knows of.
    """

    def __init__(self, files: Callable[[], Files], *, suspects_modules: Callable[[], bool]) -> None:
        self._files = files
        self._suspects_modules = suspects_modules
        self._again = asyncio.Event()
        self._is_told = True
        self._known = files()
        self._modules: Files = {}

    def look_again(self) -> None:
        """The set of files may be another one from here on."""
        self._again.set()

    async def changes(self) -> AsyncIterator[None]:
        """One item for each time that something changed, without end."""
        while True:
            self._again.clear()
            if self._have_changed():  # while nobody watched
                yield
            folders = _folders(self._known)
            async for _ in self._looks(folders):
                if self._have_changed():
                    yield
                if _folders(self._known) != folders:  # an agent has come up, by itself
                    self._again.set()

    async def _looks(self, folders: Collection[Path]) -> AsyncIterator[None]:
        """One item for each time to look; ends when the folders may be others."""
        try:
            watching = awatch(
                *folders,
                step=SETTLE_MILLISECONDS,
                rust_timeout=int(LOOK_SECONDS * 1000),
                yield_on_timeout=True,
                recursive=False,
                stop_event=self._again,
            )
            async for _ in watching:
                self._tell(None)
                yield
        except (OSError, RuntimeError) as error:  # no watch is left to be had, a folder went that moment
            self._tell(error)
            try:
                await asyncio.wait_for(self._again.wait(), LOOK_SECONDS)
            except TimeoutError:
                yield

    def _tell(self, error: Exception | None) -> None:
        """Say once that folders cannot be watched, and once that they can again."""
        if error is not None and self._is_told:
            extra = {"error": str(error), "seconds": LOOK_SECONDS}
            _log.warning("file watch failed", extra=extra)
        elif error is None and not self._is_told:
            _log.info("file watch restored")
        self._is_told = error is None

    def _have_changed(self) -> bool:
        """Whether a file is another one than when it was last looked at, or when it was read."""
        wanted = self._files()
        now = stamps(wanted)
        known, self._known = {**wanted, **{p: s for p, s in self._known.items() if p in wanted}}, now
        modules = stamps(path for folder in _folders(now) for path in folder.glob("*.py"))
        has_changed = known != now or (self._suspects_modules() and modules != self._modules)
        if has_changed:
            self._modules = modules  # as they are for who is told now
        return has_changed


def _folders(files: Collection[Path]) -> set[Path]:
    return {path.parent for path in files if path.parent.is_dir()}
