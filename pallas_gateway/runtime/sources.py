"""The project's files behind an agent module: which they are, whether they changed, and how to have them read anew."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_OURS = "pallas_gateway"

type Stamp = tuple[int, int, int] | None
type Files = Mapping[Path, Stamp]


class Sources:
    """The files that a start of one module read or looked for, as they are when this is made."""

    def __init__(
        self, module_name: str, error: BaseException, more: Iterable[Path] = (), folder: Path | None = None
    ) -> None:
        """`folder` holds modules of the project, as the working directory does."""
        self._module_name = module_name
        self._folder = folder
        files = {*_behind(module_name, folder), *_in_traceback(error, folder), *more}
        self._stamps = {path: stamp(path) for path in files}

    def changed(self) -> bool:
        """Whether one of them was edited, made or removed since."""
        return any(stamp(path) != before for path, before in self._stamps.items())

    def forget(self, *, but: Iterable[str] = ()) -> None:
        """Have them all read anew when they are next imported: one that stayed may hold on to one that changed.

        Who has imported them already keeps what it has.

        Args:
            but: names of modules that are being imported right now.
        """
        kept = set(but)
        for name, path in list(loaded_with(self._module_name, self._folder)):
            if path in self._stamps and name not in kept:
                sys.modules.pop(name, None)
        for path, before in self._stamps.items():
            if stamp(path) != before:
                forget_compiled(path)


def forget_compiled(path: Path) -> None:
    """Have a module's source compiled anew: Python compares whole seconds and sizes, and an edit may change neither."""
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def stamp(path: Path) -> Stamp:
    """What changes whenever the file does; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def project_folders(folder: Path | None) -> list[Path]:
    """The folders that a project's modules are looked for in, first things first: the working directory, `folder`."""
    return [*dict.fromkeys((Path.cwd(), *([folder.absolute()] if folder is not None else ())))]


def _behind(module_name: str, folder: Path | None) -> Iterator[Path]:
    """Where the module is or should be, and what the project has loaded beside it."""
    package, _, leaf = module_name.rpartition(".")
    folders = [place.joinpath(*package.split(".")) for place in project_folders(folder)]
    folders += [Path(place) for place in getattr(sys.modules.get(package), "__path__", ())]
    for place in folders:
        yield place / f"{leaf}.py"
        yield place / leaf / "__init__.py"
    for _, path in loaded_with(module_name, folder):
        yield path


def loaded_with(module_name: str, folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Loaded modules of the module's own package, and others that lie in a folder of the project."""
    package = module_name.rpartition(".")[0]
    is_of_the_project = _project_files(folder)
    for name, module in list(sys.modules.items()):  # a copy, other threads import
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name == "__main__":
            continue
        is_beside = bool(package) and (name == package or name.startswith(f"{package}."))
        if is_beside or (name.partition(".")[0] != _OURS and is_of_the_project(file)):
            yield name, Path(file)


def _in_traceback(error: BaseException, folder: Path | None) -> Iterator[Path]:
    """Files of the project that the failure passed through; one with a syntax error is in no frame."""
    is_of_the_project = _project_files(folder)
    cause: BaseException | None = error
    while cause is not None:
        names = [frame.f_code.co_filename for frame, _ in walk_tb(cause.__traceback__)]
        if isinstance(cause, SyntaxError) and cause.filename:
            names.append(cause.filename)
        yield from (Path(name) for name in names if is_of_the_project(name))
        cause = cause.__cause__ or cause.__context__


def _project_files(folder: Path | None) -> Callable[[str], bool]:
    """Tells a name of a project file. Works on strings: each failed start asks it about every module there is."""
    inside = tuple(os.path.join(place, "") for place in project_folders(folder))  # noqa: PTH118  ends with a separator

    def is_of_the_project(name: str) -> bool:
        path = os.path.normpath(name)
        return path.startswith(inside) and not any(folder in path for folder in _INSTALLED)

    return is_of_the_project
