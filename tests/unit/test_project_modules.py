"""Which files an agent module came from, and when it is out of date."""

from __future__ import annotations

import importlib
import itertools
import os
import py_compile
import sys
from time import time_ns
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.runtime.project_modules import ProjectModules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_packages = itertools.count()


class Files:
    """A package `name` in the working directory whose modules are written, imported and noted."""

    def __init__(self, folder: Path) -> None:
        self.name = f"project_under_test_{next(_packages)}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.project = ProjectModules()
        self.write("__init__", "")

    def write(self, module: str, source: str) -> Path:
        path = self.folder / f"{module}.py"
        path.write_text(source)
        self.age(path)
        return path

    def age(self, path: Path) -> None:
        """Make it older than any import of the test: an hour old, another one each time."""
        written = time_ns() - 3_600_000_000_000
        os.utime(path, ns=(written, written))

    def load(self, module: str) -> None:
        since = time_ns()
        importlib.invalidate_caches()
        importlib.import_module(f"{self.name}.{module}")
        self.project.note(f"{self.name}.{module}", since=since)

    def behind(self, module: str) -> set[str]:
        return {path.name for path in self.project.files_behind(f"{self.name}.{module}")}

    def stamp_of(self, file: str, module: str = "agent") -> object:
        return self.project.files_behind(f"{self.name}.{module}")[self.folder / file]

    def is_loaded(self, module: str) -> bool:
        return f"{self.name}.{module}" in sys.modules


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    one = Files(tmp_path)
    yield one
    for name in [name for name in sys.modules if name.startswith(one.name)]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "source",
    [
        "from .helper import WORD",
        "from . import helper",
        "from {package}.helper import WORD as OTHER",
        "import {package}.helper as h",
        "def later():\n    from .helper import WORD\nfrom . import helper",
        "from .between import helper",
    ],
)
def test_a_module_comes_from_what_it_imports_and_the_packages_they_are_in(files: Files, source: str) -> None:
    files.write("helper", "WORD = 1")
    files.write("between", "from . import helper")
    files.write("other", "WORD = 2")
    files.write("agent", source.format(package=files.name))
    files.load("agent")
    files.load("other")
    assert files.behind("agent") - {"between.py"} == {"agent.py", "helper.py", "__init__.py"}
    assert files.behind("other") == {"other.py", "__init__.py"}


def test_files_that_a_string_names_belong_to_it_if_they_are_there(files: Files) -> None:
    (files.folder / "prompt.md").write_text("You are kind.")
    (files.folder / "memory.sqlite").write_text("")
    (files.folder.parent / "tone.txt").write_text("soft")
    files.write("agent", "NAMES = ['prompt.md', 'tone.txt', 'gone.md', 'memory.sqlite', 'a\\0b.md', 'x' * 400 + '.md']")
    files.load("agent")
    assert files.behind("agent") == {"agent.py", "__init__.py", "prompt.md", "tone.txt"}


@pytest.mark.parametrize("change", ["edited", "removed", "package edited"])
def test_what_imports_a_file_that_changed_is_forgotten_and_nothing_else(files: Files, change: str) -> None:
    helper = files.write("helper", "WORD = 1")
    files.write("agent", "from .helper import WORD")
    files.write("other", "WORD = 2")
    for module in ("agent", "other"):
        files.load(module)
    files.project.forget_outdated()
    assert all(files.is_loaded(module) for module in ("agent", "helper", "other"))

    if change == "removed":
        helper.unlink()
    else:
        files.write("helper" if change == "edited" else "__init__", "WORD = 3")
    files.project.forget_outdated()
    assert [module for module in ("agent", "helper") if files.is_loaded(module)] == []
    assert files.is_loaded("other") == (change != "package edited")


def test_a_module_that_is_being_imported_is_not_forgotten(files: Files) -> None:
    files.write("agent", "WORD = 1")
    files.load("agent")
    files.write("agent", "WORD = 2")
    files.project.forget_outdated(but=[f"{files.name}.agent"])
    assert files.is_loaded("agent")


def test_a_module_may_become_a_package(files: Files) -> None:
    path = files.write("agent", "WORD = 1")
    files.load("agent")
    path.unlink()
    (files.folder / "agent").mkdir()
    files.write("agent/__init__", "WORD = 2")
    files.project.forget_outdated()
    files.load("agent")
    assert sys.modules[f"{files.name}.agent"].WORD == 2
    assert files.behind("agent") == {"__init__.py"}


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from ...nowhere import word\nexcept ImportError:\n    word = 1",
        "def never():\n    from ....nowhere import word",
    ],
)
def test_a_relative_import_that_leads_nowhere_is_none(files: Files, source: str) -> None:
    files.write("agent", source)
    files.load("agent")
    assert files.behind("agent") == {"agent.py", "__init__.py"}


def test_a_top_level_module_may_try_to_be_in_a_package(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{files.name}_alone"
    path = files.folder.parent / f"{name}.py"
    path.write_text("try:\n    from .helper import word\nexcept ImportError:\n    word = 1")
    files.age(path)
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    files.project.note(name, since=time_ns())
    assert {one.name for one in files.project.files_behind(name)} == {path.name}


def test_a_file_that_was_written_during_its_import_is_out_of_date_until_the_next(files: Files) -> None:
    path = files.write("agent", "WORD = 1")
    now = time_ns()
    os.utime(path, ns=(now, now))
    importlib.import_module(f"{files.name}.agent")
    files.project.note(f"{files.name}.agent", since=now)
    assert files.stamp_of("agent.py") is None
    files.project.forget_outdated()
    files.load("agent")
    assert files.stamp_of("agent.py") is not None


def test_a_file_dated_in_the_future_is_as_good_as_any(files: Files) -> None:
    path = files.write("agent", "WORD = 1")
    future = time_ns() + 10**15
    os.utime(path, ns=(future, future))
    files.load("agent")
    files.project.forget_outdated()
    assert files.is_loaded("agent")


def test_a_file_that_each_import_writes_makes_the_module_out_of_date_once_only(files: Files) -> None:
    files.write("agent", "from pathlib import Path\nimport time\nPath('state.json').write_text(str(time.time_ns()))\n")
    for _ in range(2):
        files.load("agent")
        files.project.forget_outdated()
    assert files.is_loaded("agent")
    assert "state.json" not in files.behind("agent")


def test_a_compiled_module_has_a_file_and_no_imports(files: Files) -> None:
    source = files.write("agent", "WORD = 1")
    compiled = files.folder / "agent.pyc"
    py_compile.compile(str(source), cfile=str(compiled))
    source.unlink()
    files.load("agent")
    assert files.behind("agent") == {"agent.pyc"}
    files.project.forget_outdated()
    assert files.is_loaded("agent")
