"""The project's loaded modules: the file of each, the modules it imports, and which are out of date.

Imports are recorded while an agent's module is imported; imports in functions that are called later are not. A module
is out of date when its file, or the file of a project module that it imports, has changed since.
"""

from __future__ import annotations

import builtins
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import resolve_name
from time import time_ns
from typing import TYPE_CHECKING, Any

from pallas_gateway.file_stamps import belongs_with, forget_compiled, have_changed, loaded_with, stamp, stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from pallas_gateway.file_stamps import Files, Stamp

    type Record = Callable[[Mapping[str, Any], Iterable[str]], None]
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
    """Replaces `__import__`, which import statements call, while at least one block records.

    Python has no hook for an import of a loaded module. Only imports of the block's own thread are recorded.
    """

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
                record(globals, _imported(globals, name, fromlist, level))
        return self._original(name, globals, locals, fromlist, level)


_statement = _ImportStatement()


def _imported(importer: Mapping[str, Any], name: str, fromlist: Sequence[str] | None, level: int) -> Iterator[str]:
    """The absolute names of a statement, made when they are read: most statements are those of libraries."""
    base = resolve_name("." * level + name, _package(importer))
    yield from and_its_packages(base)
    yield from (f"{base}.{one}" for one in fromlist or ())


def _package(importer: Mapping[str, Any]) -> str:
    """The package where a relative import begins."""
    spec = importer.get("__spec__")
    return importer.get("__package__") or "" if spec is None else spec.parent


def and_its_packages(name: str) -> Iterator[str]:
    """A dotted name, then the names of the packages that contain it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One module as it was imported."""

    module: weakref.ref[ModuleType]
    path: Path
    stamp: Stamp


class ProjectModules:
    """The modules of the project that agents' modules have loaded, with their files and imports."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` contains modules of the project, as the working directory does."""
        self._folder = folder
        self._loaded: dict[str, _Loaded] = {}
        self._imports: dict[str, set[str]] = {}
        self._watched: dict[str, dict[Path, Stamp]] = {}
        self._examined: dict[str, set[str]] = {}  # by package of agents' modules: the modules examined so far

    @contextmanager
    def importing(self, module_name: str, watched: Iterable[Path] = ()) -> Iterator[None]:
        """Record the modules that the import of an agent's module in this block loads, also if it fails.

        Args:
            module_name: the agent's module.
            watched: files that the import may read.
        """
        since, before = time_ns(), set(sys.modules)
        if module_name not in before:
            self._watched[module_name] = stamps(watched)
        imports: dict[str, set[str]] = {}
        belongs = belongs_with(module_name, self._folder)

        def record(importer: Mapping[str, Any], imported: Iterable[str]) -> None:
            name = importer.get("__name__")
            if isinstance(name, str) and belongs(name, importer.get("__file__")):
                imports.setdefault(name, set()).update(imported)

        try:
            with recording(record):
                yield
        finally:
            self._note_files(module_name, since)
            self._note_imports(module_name, imports, before)

    def watch(self, module_name: str, files: Iterable[Path], *, reread: bool) -> None:
        """Treat `files` as read by the import of a module, which may be loaded already.

        Args:
            module_name: the agent's module.
            files: files that its import may have read.
            reread: treat the module as out of date if one of `files` was not watched when it was imported.
        """
        if module_name in sys.modules:
            known = self._watched.setdefault(module_name, {})
            for path in files:
                known.setdefault(path, None if reread else stamp(path))

    def files_behind(self, module_name: str) -> Files:
        """The files of the module and of the project modules that it imports, with their stamps at the import."""
        loaded = (self._loaded.get(name) for name in self._with_imports(module_name))
        return {one.path: one.stamp for one in loaded if one is not None}

    def watched(self, module_name: str) -> Files:
        """The files that its import may have read, with their stamps at that time."""
        return self._watched.get(module_name, {})

    def forget_outdated(self, *, but: Iterable[str] = ()) -> None:
        """Remove modules that are out of date, so that the next import reads them. Their importers keep them.

        Args:
            but: names of modules that are being imported right now.
        """
        loaded, busy = dict(self._loaded), set(but)  # copies: another import may end in its thread meanwhile
        changed = {name for name, one in loaded.items() if stamp(one.path) != one.stamp}
        for module_name in self._watched.keys() - busy:
            changed |= self._read_with_watched(module_name)
        if not changed:
            return
        outdated = {name for name in loaded if changed & self._with_imports(name)}
        removed = (outdated | changed) - busy
        for examined in self._examined.values():
            examined.difference_update(removed)
        for name in removed:
            if (one := self._loaded.pop(name, None)) is not None:
                forget_compiled(one.path)
            self._imports.pop(name, None)
            sys.modules.pop(name, None)

    def _read_with_watched(self, module_name: str) -> set[str]:
        """The modules that may have read a watched file that changed: all that the agent's module imports.

        A watched file may itself be a module that no recorded statement imports.
        """
        files = self._watched[module_name]
        if not have_changed(files):
            return set()
        del self._watched[module_name]
        for path in files:
            forget_compiled(path)
        themselves = {name for name, path in loaded_with(module_name, self._folder, set(sys.modules)) if path in files}
        return self._with_imports(module_name) | themselves

    def _note_files(self, module_name: str, since: int) -> None:
        examined = self._examined.setdefault(module_name.rpartition(".")[0], set())
        loaded = set(sys.modules)  # a copy, because other threads import
        replaced = {name for name, one in self._loaded.items() if one.module() is not sys.modules.get(name)}
        unknown = loaded - examined | replaced  # a failed start replaces its modules
        examined |= loaded
        for name, path in loaded_with(module_name, self._folder, unknown):
            module = sys.modules.get(name)
            known = self._loaded.get(name)
            if module is not None and (known is None or known.module() is not module):
                self._loaded[name] = _Loaded(weakref.ref(module), path, _unless_newer(stamp(path), since))

    def _note_imports(self, module_name: str, imports: Mapping[str, set[str]], before: set[str]) -> None:
        """Keep the imports of modules that ran.

        A new module that no import statement names (`importlib.import_module`) counts as imported by each module that
        was new.
        """
        appeared = {name for name in self._loaded if name in sys.modules and name not in before}
        named = {*and_its_packages(module_name), *(name for names in imports.values() for name in names)}
        strays = (appeared | imports.keys()) - named
        for name in {module_name, *appeared, *imports}:
            known = self._imports.get(name, set()) if name in before else strays
            self._imports[name] = known | imports.get(name, set())

    def _with_imports(self, module_name: str) -> set[str]:
        found: set[str] = set()
        pending = [module_name]
        while pending:
            name = pending.pop()
            if name not in found and (name in self._loaded or name in self._imports):
                found.add(name)
                pending += [*and_its_packages(name), *self._imports.get(name, ())]
        return found


def _unless_newer(found: Stamp, since: int) -> Stamp:
    """None if the file may have been written after it was read; times in the future do not show that."""
    return None if found is not None and since <= found[0] <= time_ns() else found
