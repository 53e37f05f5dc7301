"""Files of a project: stamps that show changes, its Python files, and the modules that were loaded from them."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MOST_FOLDERS = 1_000
"""The number of folders of a project in which Python files are looked for."""
_LIBRARIES = (Path(__file__).parent, Path(sysconfig.get_path("stdlib")))
_FOLDERS_OF_LIBRARIES = {"site-packages", "dist-packages", "node_modules", "__pycache__"}

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


def python_files(folder: Path | None) -> Iterator[Path]:
    """Yield the Python files below the project's folders, without those of libraries.

    At most `MOST_FOLDERS` folders are read; those near the top come first.
    """
    pending, seen = deque(project_folders(folder)), set[tuple[int, int]]()
    while pending and len(seen) < MOST_FOLDERS:
        place = pending.popleft()
        try:
            status, entries = place.stat(), list(os.scandir(place))
        except OSError:  # no folder, or one that may not be read
            continue
        identity = status.st_dev, status.st_ino  # a link may lead back
        if identity in seen or place in _LIBRARIES or any(one.name == "pyvenv.cfg" for one in entries):
            continue
        seen.add(identity)
        for one in entries:
            if _is_of_libraries(one.name):
                continue
            if one.name.endswith(".py"):
                yield Path(one.path)
            elif not one.is_file(follow_symlinks=False):
                pending.append(Path(one.path))


def loaded_modules(folder: Path | None) -> list[str]:
    """The names of the loaded modules and packages below the project's folders, without libraries."""
    folders = [os.path.join(place, "") for place in project_folders(folder)]  # noqa: PTH118  ends with a separator
    libraries = tuple(f"{place}{os.sep}" for place in _LIBRARIES)
    names = []
    for name, module in list(sys.modules.items()):  # a copy, because other threads import
        # A package without `__init__.py` has a folder only.
        file: object = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", None) or ()), None)
        if name == "__main__" or not isinstance(file, str) or (path := os.path.normpath(file)).startswith(libraries):
            continue
        inner = [path.removeprefix(place) for place in folders if path.startswith(place)]
        if any(not any(map(_is_of_libraries, Path(one).parts)) for one in inner):
            names.append(name)
    return names


def _is_of_libraries(name: str) -> bool:
    return name.startswith(".") or name in _FOLDERS_OF_LIBRARIES


def possible_files(module_name: str, folder: Path | None) -> Iterator[Path]:
    """Yield the files that a module may have, whether they exist or not."""
    package, _, leaf = module_name.rpartition(".")
    folders = [place.joinpath(*package.split(".")) for place in project_folders(folder)]
    folders += [Path(place) for place in getattr(sys.modules.get(package), "__path__", ())]
    for place in folders:
        yield place / f"{leaf}.py"
        yield place / leaf / "__init__.py"
