"""The project's modules that are loaded: which files each came from, and which are out of date.

A module is out of date when its file, or that of a project module it imports, was changed since it was imported. The
imports are read from the source: what a module took from another (a function, a number) does not tell where it is from.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING

from pallas_gateway.runtime.sources import forget_compiled, loaded_with, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from pallas_gateway.runtime.sources import Files, Stamp

_LONGEST_FILE_NAME = 255
_READ_BY_MODULES = (".md", ".txt", ".j2", ".jinja", ".json", ".toml", ".yaml", ".yml")
"""How names of files end that are read for an agent, unlike those that an agent may write, such as a log."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One module as it was imported: its file, the files it names (such as a prompt), the modules it may import."""

    module: weakref.ref[ModuleType]
    files: Files
    imports: frozenset[str]

    @property
    def is_changed(self) -> bool:
        return any(stamp(path) != before for path, before in self.files.items())


class ProjectModules:
    """What was loaded from the project's files; kept by who imports agent modules."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` holds modules of the project, as the working directory does."""
        self._folder = folder
        self._loaded: dict[str, _Loaded] = {}
        self._written: dict[str, set[Path]] = {}

    def note(self, module_name: str, *, since: int) -> None:
        """Remember the module and what it brought along.

        Args:
            module_name: an imported module of an agent.
            since: `time.time_ns()` before the import; a file written later may not be what was read.
        """
        for name, path in list(loaded_with(module_name, self._folder)):
            module = sys.modules.get(name)
            known = self._loaded.get(name)
            if module is not None and (known is None or known.module() is not module):
                self._loaded[name] = self._without_its_own(name, _looked_at(module, path, since))

    def _without_its_own(self, name: str, loaded: _Loaded) -> _Loaded:
        """Without files that one import after the other writes: they would make the module out of date for ever."""
        written = {path for path, before in loaded.files.items() if before is None and path.suffix != ".py"}
        again = written & self._written.get(name, set())
        self._written[name] = written
        return replace(loaded, files={path: before for path, before in loaded.files.items() if path not in again})

    def files_behind(self, module_name: str) -> Files:
        """Every file that the module and those it imports came from, as they were then."""
        return {
            path: before
            for name in self._with_imports(module_name)
            for path, before in self._loaded[name].files.items()
        }

    def forget_outdated(self, *, but: Iterable[str] = ()) -> None:
        """Have modules that are out of date read anew when they are next imported; who has them keeps what it has.

        Args:
            but: names of modules that are being imported right now.
        """
        changed = {name for name, loaded in self._loaded.items() if loaded.is_changed}
        outdated = {name for name in self._loaded if changed & self._with_imports(name)} - set(but)
        for name in outdated:
            for path in self._loaded.pop(name).files:
                forget_compiled(path)
            sys.modules.pop(name, None)

    def _with_imports(self, module_name: str) -> set[str]:
        found: set[str] = set()
        pending = [module_name]
        while pending:
            name = pending.pop()
            if name in self._loaded and name not in found:
                found.add(name)
                pending += self._loaded[name].imports
        return found


def _looked_at(module: ModuleType, path: Path, since: int) -> _Loaded:
    if path.suffix != ".py":  # compiled: no source to look into
        return _Loaded(weakref.ref(module), {path: stamp(path)}, frozenset())
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # gone or edited since it was imported: out of date at the next look
        return _Loaded(weakref.ref(module), {path: None}, frozenset())
    files = {path, *_named_files(tree, path.parent)}
    stamps = {file: _unless_newer(stamp(file), since) for file in files}
    return _Loaded(weakref.ref(module), stamps, frozenset(_imports(tree, module)))


def _unless_newer(found: Stamp, since: int) -> Stamp:
    """None if the file may have been written after it was read; a time in the future tells nothing of that."""
    return None if found is not None and since <= found[0] <= time_ns() else found


def _imports(tree: ast.AST, module: ModuleType) -> Iterator[str]:
    """Names of modules that the source may import, packages included, its own as well."""
    package = module.__package__ or ""
    yield from _and_its_packages(package)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _and_its_packages(alias.name)
        elif isinstance(node, ast.ImportFrom) and (base := _base(node, package)) is not None:
            yield from _and_its_packages(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base(node: ast.ImportFrom, package: str) -> str | None:
    try:
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # beyond the top; it stands where it was tried in vain, or never ran
        return None


def _and_its_packages(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _named_files(tree: ast.AST, folder: Path) -> Iterator[Path]:
    """Files beside the module or in the working directory that a string of it names, such as an agent's prompt."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_be_file(node.value):
            yield from (path for path in (folder / node.value, Path.cwd() / node.value) if os.path.isfile(path))  # noqa: PTH113  never raises


def _may_be_file(text: str) -> bool:
    return len(text) <= _LONGEST_FILE_NAME and text.isprintable() and text.endswith(_READ_BY_MODULES)
