"""Watches files for a reload, by watching their folders: editors and Kubernetes replace files.

A change in a folder counts only if one of the files has changed, been created or removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from watchfiles import awatch

from pallas_gateway.file_stamps import Files, stamps

SETTLE_MILLISECONDS = 200
"""Time for which files must be unchanged before they count: several are often written at once."""
LOOK_SECONDS = 5.0
"""Interval of checks for changes that are not reported, such as on network file systems."""

_log = logging.getLogger("pallas.reload")


class FileWatch:
    """Watches a set of files, which may be another set after each change.

    Args:
        files: returns the present files, whether they exist or not, each as it was when it was read.
        suspects_modules: returns True if all Python files in their folders count: one that is not known may be missing.
        look_seconds: interval at which files are checked where changes are not notified.
        settle_milliseconds: how long files must have been left alone: several are often written in one go.
        watch: `watchfiles.awatch`.
    """

    def __init__(
        self,
        files: Callable[[], Files],
        *,
        suspects_modules: Callable[[], bool],
        look_seconds: float = LOOK_SECONDS,
        settle_milliseconds: int = SETTLE_MILLISECONDS,
        watch: Callable[..., AsyncIterator[object]] = awatch,
    ) -> None:
        self._files = files
        self._suspects_modules = suspects_modules
        self._look_seconds = look_seconds
        self._settle_milliseconds = settle_milliseconds
        self._watch = watch
        self._again = asyncio.Event()
        self._is_watching = True
        self._known = files()
        self._modules: Files = {}

    def look_again(self) -> None:
        self._again.set()

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change, without end."""
        while True:
            self._again.clear()
            if self._have_changed():  # between two watches
                yield
            folders = _folders(self._known)
            async for _ in self._looks(folders):
                if self._have_changed():
                    yield
                if _folders(self._known) != folders:  # an agent has started
                    self._again.set()

    async def _looks(self, folders: Collection[Path]) -> AsyncIterator[None]:
        """Yield whenever to check for changes; ends when the folders may be others."""
        try:
            watching = self._watch(
                *folders,
                step=self._settle_milliseconds,
                rust_timeout=int(self._look_seconds * 1000),
                yield_on_timeout=True,
                recursive=False,
                stop_event=self._again,
            )
            async for _ in watching:
                self._note_watch(None)
                yield
        except (OSError, RuntimeError) as error:  # no watch is available, or a folder was removed
            self._note_watch(error)
            try:
                await asyncio.wait_for(self._again.wait(), self._look_seconds)
            except TimeoutError:
                yield

    def _note_watch(self, error: Exception | None) -> None:
        """Log once that folders cannot be watched, and once that they can again."""
        if error is not None and self._is_watching:
            extra = {"error": str(error), "seconds": self._look_seconds}
            _log.warning("file watch failed", extra=extra)
        elif error is None and not self._is_watching:
            _log.info("file watch restored")
        self._is_watching = error is None

    def _have_changed(self) -> bool:
        """Return True if a file changed since the last check, or since it was read."""
        wanted = self._files()
        now = stamps(wanted)
        known, self._known = {**wanted, **{p: s for p, s in self._known.items() if p in wanted}}, now
        modules = stamps(path for folder in _folders(now) for path in folder.glob("*.py"))
        has_changed = known != now or (self._suspects_modules() and modules != self._modules)
        if has_changed:
            self._modules = modules  # as of the change that is reported now
        return has_changed


def _folders(files: Collection[Path]) -> set[Path]:
    return {path.parent for path in files if path.parent.is_dir()}
