"""Packages of OpenAI's library that import a type when it is first used.

`openai.types` imports 490 modules of all of OpenAI's APIs. A model needs 60 of them, or 300 with the Responses API.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime import fast_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "openai.types"


def install() -> None:
    """Have the packages below `openai.types` import their types lazily; safe to call again.

    The fast path is decided at the import of the package: projects without these models do not need it.
    """
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.submodule_search_locations is None or type(found.loader) is not SourceFileLoader:
            return found
        if fast_paths.OPENAI_IMPORTS.is_on:
            found.loader = _LazyPackage(found.loader.name, found.loader.path)
        return found


class _LazyPackage(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        sources = sources_of(self.get_source(self.name) or "")
        if sources is None:
            super().exec_module(module)
            return
        package: Any = module

        def load(name: str) -> Any:
            if name not in sources:
                return _submodule(package, name)
            value = getattr(import_module(f"{package.__name__}.{sources[name][0]}"), sources[name][1])
            setattr(package, name, value)
            return value

        package.__all__ = list(sources)
        package.__getattr__ = load
        package.__dir__ = lambda: sorted({*vars(package), *sources})


def sources_of(text: str) -> Mapping[str, tuple[str, str]] | None:
    """The names that a package imports from its modules, as "module, name there"; None if it does anything else."""
    sources: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.ImportFrom):
            return None
        if statement.module == "__future__":
            continue
        if statement.level != 1 or statement.module is None:
            return None
        sources |= {one.asname or one.name: (statement.module, one.name) for one in statement.names}
    return sources


def _submodule(package: ModuleType, name: str) -> ModuleType:
    """A module of the package; without lazy imports all are attributes of it."""
    missing = AttributeError(f"module {package.__name__!r} has no attribute {name!r}", name=name, obj=package)
    if name.startswith("_"):
        raise missing
    try:
        return import_module(f"{package.__name__}.{name}")
    except ModuleNotFoundError:
        raise missing from None
