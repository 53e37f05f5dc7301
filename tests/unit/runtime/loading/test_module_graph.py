"""The files behind an agent's module, and when it is out of date."""

from __future__ import annotations

import importlib
import itertools
import os
import py_compile
import sys
from time import time_ns
from types import ModuleType
from typing import TYPE_CHECKING, override

import pytest

from pallas_gateway.runtime.loading.module_graph import ProjectModules

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

    def load(self, module: str, *watched: Path) -> None:
        importlib.invalidate_caches()
        with self.project.importing(f"{self.name}.{module}", watched):
            importlib.import_module(f"{self.name}.{module}")

    def behind(self, module: str) -> set[str]:
        return {path.name for path in self.project.files_behind(f"{self.name}.{module}")}

    def stamp_of(self, file: str, module: str = "agent") -> object:
        return self.project.files_behind(f"{self.name}.{module}")[self.folder / file]

    def is_loaded(self, module: str) -> bool:
        return f"{self.name}.{module}" in sys.modules

    def reload(self, *modules: str) -> None:
        """Load modules after those that are out of date were forgotten."""
        self.project.forget_outdated()
        for module in modules:
            self.load(module)


class Library(ModuleType):
    """A loaded module that counts how often its file is read."""

    times_examined = 0

    @property
    @override
    def __file__(self) -> str:  # type: ignore[override]
        self.times_examined += 1
        return "/elsewhere/library.py"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    one = Files(tmp_path)
    yield one
    for name in [name for name in [*sys.modules] if one.name in name]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "source",
    [
        "from .helper import WORD",
        "from . import helper",
        "from {package}.helper import WORD as OTHER",
        "import {package}.helper as h",
        "def now():\n    from .helper import WORD\nnow()",
        "from .between import helper",
        "from .helper import *\nassert WORD",
    ],
)
@pytest.mark.parametrize("is_loaded_by_another_agent", [False, True])
def test_a_module_comes_from_what_its_import_loaded_and_the_packages_they_are_in(
    files: Files, source: str, *, is_loaded_by_another_agent: bool
) -> None:
    files.write("helper", "WORD = 1")
    files.write("between", "from . import helper")
    files.write("other", "WORD = 2")
    files.write("agent", source.format(package=files.name))
    files.write("first", source.format(package=files.name))
    if is_loaded_by_another_agent:
        files.load("first")
    files.load("agent")
    files.load("other")
    assert files.behind("agent") - {"between.py"} == {"agent.py", "helper.py", "__init__.py"}
    assert files.behind("other") == {"other.py", "__init__.py"}


def test_an_import_of_a_loaded_module_counts_with_all_that_the_module_had_imported(files: Files) -> None:
    files.write("deepest", "WORD = 1")
    files.write("helper", "from . import deepest")
    for agent in ("first", "second"):
        files.write(agent, "from . import helper")
        files.load(agent)
    assert files.behind("second") == {"second.py", "helper.py", "deepest.py", "__init__.py"}


def test_loaded_module_is_examined_once_for_all_agents_of_a_package(files: Files) -> None:
    library = Library("library_of_" + files.name)
    sys.modules[library.__name__] = library
    for agent in ("first", "second", "third"):
        files.write(agent, "")
        files.load(agent)

    assert library.times_examined == 1


def test_module_that_is_imported_again_by_a_call_is_examined_again(files: Files) -> None:
    files.write("helper", "")
    files.write("agent", "from . import helper")
    files.load("agent")
    files.write("helper", "WORD = 2")
    files.project.forget_outdated()
    importlib.import_module(f"{files.name}.helper")  # outside of an import of an agent
    files.load("agent")

    assert files.behind("agent") == {"agent.py", "helper.py", "__init__.py"}


def test_modules_that_a_loaded_one_imported_by_name_count_for_its_later_importers_too(files: Files) -> None:
    files.write("plugin", "WORD = 1")
    files.write("helper", f"import importlib\nimportlib.import_module('{files.name}.plugin')")
    for agent in ("first", "second"):
        files.write(agent, "from . import helper")
        files.load(agent)
    assert files.behind("second") == {"second.py", "helper.py", "plugin.py", "__init__.py"}
    files.write("plugin", "WORD = 2")
    files.reload()
    assert [module for module in ("first", "second", "helper", "plugin") if files.is_loaded(module)] == []


def test_what_a_failed_import_loaded_counts_for_the_module_that_failed(files: Files) -> None:
    files.write("deepest", "WORD = 1")
    files.write("helper", "from .deepest import WORD\nassert WORD == 2")
    files.write("agent", "from . import helper")
    with pytest.raises(AssertionError):
        files.load("agent")
    assert files.behind("agent") == {"deepest.py", "__init__.py"}
    files.write("deepest", "WORD = 2")
    files.reload("agent")
    assert files.behind("agent") == {"agent.py", "helper.py", "deepest.py", "__init__.py"}


def test_an_import_that_is_no_longer_written_counts_no_longer(files: Files) -> None:
    files.write("helper", "WORD = 1")
    files.write("agent", "from .helper import WORD")
    files.load("agent")
    files.write("agent", "WORD = 1")
    files.reload("agent")
    assert files.behind("agent") == {"agent.py", "__init__.py"}


def test_strings_and_imports_that_never_run_are_no_files_of_a_module(files: Files) -> None:
    files.write("helper", "WORD = 1")
    (files.folder / "prompt.md").write_text("You are kind.")
    files.write("other", "from . import helper")
    files.load("other")
    files.write("agent", "NAME = 'prompt.md'\ndef later():\n    from .helper import WORD")
    files.load("agent")
    assert files.behind("agent") == {"agent.py", "__init__.py"}


@pytest.mark.parametrize("reads", ["agent", "helper"])
def test_a_watched_file_that_changed_has_all_that_may_have_read_it_imported_again(files: Files, reads: str) -> None:
    prompt = files.folder / "prompt.md"
    prompt.write_text("one")
    files.write("other", "WORD = 2")
    sources = {"agent": "from .helper import TEXT", "helper": "TEXT = 0"}
    sources[reads] += f"\nfrom pathlib import Path\nTEXT = Path({str(prompt)!r}).read_text()"
    for module, source in sources.items():
        files.write(module, source)
    files.load("agent", prompt)
    files.load("other")
    files.reload("agent", "other")
    assert sys.modules[f"{files.name}.agent"].TEXT == "one"
    prompt.write_text("two")
    files.project.forget_outdated(but=[f"{files.name}.agent", f"{files.name}.helper"])
    assert sys.modules[f"{files.name}.agent"].TEXT == "one"
    files.reload()
    assert not files.is_loaded("agent")
    files.load("agent", prompt)
    assert sys.modules[f"{files.name}.agent"].TEXT == "two"
    files.project.forget_outdated()
    assert files.is_loaded("agent")


def test_a_watched_module_that_is_imported_at_a_call_is_imported_again(files: Files) -> None:
    late = files.write("late", "WORD = 1")
    files.write("agent", "def call():\n    from .late import WORD\n    return WORD")
    files.load("agent", late)
    call = sys.modules[f"{files.name}.agent"].call
    assert call() == 1
    files.write("late", "WORD = 2")
    files.project.forget_outdated()
    assert call() == 2


@pytest.mark.parametrize("reread", [False, True])
def test_a_file_that_is_watched_only_now_may_have_changed_since_the_import(files: Files, *, reread: bool) -> None:
    prompt = files.folder / "prompt.md"
    prompt.write_text("one")
    files.write("agent", "WORD = 1")
    name = f"{files.name}.agent"
    files.project.watch(name, [prompt], reread=reread)
    files.load("agent")
    files.project.watch(name, [prompt], reread=reread)
    files.project.forget_outdated()
    assert files.is_loaded("agent") == (not reread)
    files.load("agent", prompt)
    files.project.watch(name, [prompt], reread=reread)
    files.project.forget_outdated()
    assert files.is_loaded("agent")
    prompt.write_text("another text")
    files.project.forget_outdated()
    assert not files.is_loaded("agent")


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


def test_a_relative_import_that_leads_nowhere_is_none(files: Files) -> None:
    files.write("agent", "try:\n    from ...nowhere import word\nexcept ImportError:\n    word = 1")
    files.load("agent")
    assert files.behind("agent") == {"agent.py", "__init__.py"}


def test_a_file_that_was_written_during_its_import_is_out_of_date_until_the_next(files: Files) -> None:
    path = files.write("agent", "WORD = 1")
    with files.project.importing(f"{files.name}.agent"):
        now = time_ns()
        os.utime(path, ns=(now, now))
        importlib.import_module(f"{files.name}.agent")
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


def test_a_compiled_module_is_one_like_others(files: Files) -> None:
    files.write("helper", "WORD = 1")
    source = files.write("agent", "from . import helper")
    compiled = files.folder / "agent.pyc"
    py_compile.compile(str(source), cfile=str(compiled))
    source.unlink()
    files.load("agent")
    assert files.behind("agent") == {"agent.pyc", "helper.py", "__init__.py"}
    files.project.forget_outdated()
    assert files.is_loaded("agent")
