"""Records the modules that the import statements of a block of code name, also those that were loaded before.

Python has no hook for an import of a loaded module. So `builtins.__import__` is replaced, only while a block records;
only imports of the block's own thread are recorded.
"""

from __future__ import annotations

import builtins
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    type Record = Callable[[Mapping[str, Any], list[str]], None]
    """Called with the globals of the importing code and the absolute names of the modules that it may have imported."""

_record: ContextVar[Record | None] = ContextVar("record_import", default=None)


@contextmanager
def recording(record: Record) -> Iterator[None]:
    """Call `record` for each import statement that runs in the block, before its modules are loaded."""
    token = _record.set(record)
    _statement.install()
    try:
        yield
    finally:
        _statement.uninstall()
        _record.reset(token)


class _ImportStatement:
    """Replaces `__import__`, which import statements call, while at least one block records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._is_installed = False
        self._original: Callable[..., Any] = builtins.__import__

    def install(self) -> None:
        with self._lock:
            self._blocks += 1
            if not self._is_installed:
                self._original, builtins.__import__ = builtins.__import__, self
                self._is_installed = True

    def uninstall(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and builtins.__import__ is self:  # otherwise an imported module has wrapped it
                builtins.__import__ = self._original
                self._is_installed = False

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  the parameters of `__import__`
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is not None and (record := _record.get()) is not None:
            with suppress(ImportError):  # the import raises it itself
                base = resolve_name("." * level + name, _package(globals))
                record(globals, [*and_its_packages(base), *(f"{base}.{one}" for one in fromlist or ())])
        return self._original(name, globals, locals, fromlist, level)


_statement = _ImportStatement()


def _package(importer: Mapping[str, Any]) -> str:
    """The package where a relative import begins."""
    spec = importer.get("__spec__")
    return importer.get("__package__") or "" if spec is None else spec.parent


def and_its_packages(name: str) -> Iterator[str]:
    """A dotted name, then the names of the packages that contain it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
