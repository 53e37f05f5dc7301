"""Files of a project: stamps that show changes, the project's loaded modules, and the files of a failed import."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import lru_cache, partial
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_OURS = "pallas_gateway"

type Stamp = tuple[int, int, int] | None
type Files = Mapping[Path, Stamp]


def stamp(path: Path) -> Stamp:
    """A value that changes when the file does; None while there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def stamps(paths: Iterable[Path]) -> dict[Path, Stamp]:
    return {path: stamp(path) for path in paths}


def have_changed(files: Files) -> bool:
    """Return True if one of the files was edited, made or removed since its stamp was taken."""
    return any(stamp(path) != before for path, before in files.items())


def forget_compiled(path: Path) -> None:
    """Remove a module's compiled file: Python compares whole seconds and sizes, and an edit may change neither."""
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def project_folders(folder: Path | None) -> list[Path]:
    """The folders in which Python looks for the project's modules, in order: the working directory, then `folder`."""
    return [*dict.fromkeys((Path.cwd(), *([folder.absolute()] if folder is not None else ())))]


def files_of_failure(module_name: str, error: BaseException, folder: Path | None) -> set[Path]:
    """The files where the module is or should be, and the project's files in the traceback of its failed start."""
    return {*_places(module_name, folder), *_in_traceback(error, folder)}


def loaded_with(module_name: str, folder: Path | None, names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the loaded ones of `names` that are in the module's own package or in a folder of the project."""
    belongs = belongs_with(module_name, folder)
    for name in names:
        file: Any = getattr(sys.modules.get(name), "__file__", None)
        if belongs(name, file):
            yield name, Path(file)


def belongs_with(module_name: str, folder: Path | None) -> Callable[[str, object], bool]:
    """Return a predicate (name, file) for modules of the module's own package or in a folder of the project."""
    package = module_name.rpartition(".")[0]
    inside_package = f"{package}."
    is_of_the_project = _project_files(folder)

    def belongs(name: str, file: object) -> bool:
        if not isinstance(file, str) or name == "__main__":
            return False
        if package and (name == package or name.startswith(inside_package)):
            return True
        return is_of_the_project(file) and name.partition(".")[0] != _OURS

    return belongs


def _places(module_name: str, folder: Path | None) -> Iterator[Path]:
    package, _, leaf = module_name.rpartition(".")
    folders = [place.joinpath(*package.split(".")) for place in project_folders(folder)]
    folders += [Path(place) for place in getattr(sys.modules.get(package), "__path__", ())]
    for place in folders:
        yield place / f"{leaf}.py"
        yield place / leaf / "__init__.py"


def _in_traceback(error: BaseException, folder: Path | None) -> Iterator[Path]:
    """The project's files in a traceback; a file with a syntax error is in no frame of it."""
    is_of_the_project = _project_files(folder)
    cause: BaseException | None = error
    while cause is not None:
        names = [frame.f_code.co_filename for frame, _ in walk_tb(cause.__traceback__)]
        if isinstance(cause, SyntaxError) and cause.filename:
            names.append(cause.filename)
        yield from (Path(name) for name in names if is_of_the_project(name))
        cause = cause.__cause__ or cause.__context__


def _project_files(folder: Path | None) -> Callable[[str], bool]:
    """Return a predicate for names of project files. It compares strings: a failed start checks every loaded module."""
    inside = tuple(os.path.join(place, "") for place in project_folders(folder))  # noqa: PTH118  ends with a separator

    return partial(_is_inside, inside)


@lru_cache(maxsize=16_384)  # the modules of each package of agents are compared
def _is_inside(folders: tuple[str, ...], name: str) -> bool:
    path = os.path.normpath(name)
    return path.startswith(folders) and not any(folder in path for folder in _INSTALLED)
