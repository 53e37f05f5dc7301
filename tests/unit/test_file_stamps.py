"""The files behind a module that failed: which are looked at, when they count as changed, how they are read anew."""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.loading.importer import Imports

HEADER = "from fast_agent import FastAgent\nfast = FastAgent('good', parse_cli_args=False)\n"
NEEDS_42 = "from .helper import answer\nassert answer() == 42\n" + HEADER
_packages = itertools.count()

type Write = Callable[[str, str], Path]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an empty package in the working directory."""
    name = f"sources_under_test_{next(_packages)}"
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def write(package: str, tmp_path: Path) -> Write:
    """Write a module of the package, `agent` being the agent's."""

    def write_module(name: str, source: str) -> Path:
        path = tmp_path / package / f"{name}.py"
        path.write_text(source)
        return path

    write_module("__init__", "")
    return write_module


async def failure(imports: Imports, package: str) -> AgentStartError:
    with pytest.raises(AgentStartError) as raised:
        await imports.load_fast(f"{package}.agent")
    return raised.value


@pytest.mark.parametrize(
    ("agent", "helper"),
    [
        (NEEDS_42, "raise ValueError('no key')"),  # it did not import
        (NEEDS_42, "def broken(:"),  # nor could it
        (NEEDS_42, "def answer(): return 41"),  # it did, and was wrong
        (NEEDS_42, "def answer(): raise ValueError('no key')"),  # it failed when it was used
        ("raise ValueError('no key')", "pass"),
        ("def broken(:", "pass"),
        ("slow = 1", "pass"),
    ],
)
async def test_an_edit_of_a_file_that_the_import_touched_is_noticed_and_read(
    agent: str, helper: str, write: Write, package: str
) -> None:
    imports = Imports()
    write("agent", agent)
    write("helper", helper)
    error = await failure(imports, package)
    assert not error.may_be_mended()

    write("agent", NEEDS_42)
    write("helper", "def answer(): return 21 + 21")

    assert error.may_be_mended()
    assert (await imports.load_fast(f"{package}.agent")).name == "good"


async def test_a_file_that_appears_is_a_change(write: Write, package: str) -> None:
    imports = Imports()
    error = await failure(imports, package)
    assert error.reason == "module_missing"
    assert not error.may_be_mended()
    write("agent", HEADER)
    assert error.may_be_mended()
    await imports.load_fast(f"{package}.agent")


async def test_a_package_that_appears_is_a_change(package: str, tmp_path: Path) -> None:
    imports = Imports()
    with pytest.raises(AgentStartError) as raised:
        await imports.load_fast(f"{package}.not.yet.agent")
    folder = tmp_path / package / "not" / "yet"
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(HEADER)
    assert raised.value.may_be_mended()


async def test_a_module_between_the_two_is_read_anew_with_the_one_that_changed(write: Write, package: str) -> None:
    imports = Imports()
    write("deepest", "ANSWER = 41")
    write("helper", "from .deepest import ANSWER\ndef answer(): return ANSWER")
    write("agent", NEEDS_42)
    await failure(imports, package)
    write("deepest", "ANSWER = 42")
    await imports.load_fast(f"{package}.agent")


async def test_a_helper_that_another_agent_has_loaded_before_is_read_anew_and_the_other_keeps_its_own(
    write: Write, package: str
) -> None:
    imports = Imports()
    write("helper", "def answer(): return 41")
    write("other", "from .helper import answer\n" + HEADER)
    await imports.load_fast(f"{package}.other")
    other = sys.modules[f"{package}.other"]
    write("agent", NEEDS_42)
    error = await failure(imports, package)
    write("helper", "def answer(): return 42")
    assert error.may_be_mended()
    await imports.load_fast(f"{package}.agent")
    assert vars(other)["answer"]() == 41


async def test_a_module_outside_the_package_is_looked_at_when_it_is_the_projects(write: Write, package: str) -> None:
    beside = Path(f"beside_{package}.py")
    beside.write_text("answer = 41")
    write("agent", f"from beside_{package} import answer\nassert answer == 42\n{HEADER}")
    imports = Imports()
    error = await failure(imports, package)
    beside.write_text("answer = 42")
    assert error.may_be_mended()
    await imports.load_fast(f"{package}.agent")


async def test_modules_beside_the_configuration_are_the_projects_too(
    write: Write, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Path(f"beside_{package}.py").absolute()
    beside.write_text("answer = 41")
    write("agent", f"from beside_{package} import answer\nassert answer == 42\n{HEADER}")
    working_directory = tmp_path / "elsewhere"
    working_directory.mkdir()
    monkeypatch.chdir(working_directory)
    imports = Imports(folder=tmp_path)
    error = await failure(imports, package)
    beside.write_text("answer = 42")
    assert error.may_be_mended()
    fast = await imports.load_fast(f"{package}.agent")
    assert beside in imports.files_behind(fast)


async def test_an_edit_within_the_second_and_of_the_same_size_is_read(write: Write, package: str) -> None:
    imports = Imports()
    path = write("helper", "def answer(): return 41")
    os.utime(path, ns=(1_700_000_000_100_000_000, 1_700_000_000_100_000_000))
    write("agent", NEEDS_42)
    error = await failure(imports, package)
    write("helper", "def answer(): return 42")
    os.utime(path, ns=(1_700_000_000_900_000_000, 1_700_000_000_900_000_000))
    assert error.may_be_mended()
    await imports.load_fast(f"{package}.agent")


async def test_a_settings_file_is_looked_at_too(write: Write, package: str) -> None:
    settings = Path("fastagent.config.yaml").absolute()
    write("agent", "raise ValueError('no model')")
    error = await failure(Imports([settings]), package)
    settings.write_text("default_model: passthrough")
    assert error.may_be_mended()


async def test_installed_libraries_and_the_gateway_itself_are_not_looked_at(write: Write, package: str) -> None:
    installed = Path("site-packages") / f"installed_{package}.py"
    installed.parent.mkdir()
    installed.write_text("answer = 41")
    write("agent", f"import sys; sys.path.append('site-packages')\nimport installed_{package}\nraise ValueError")
    error = await failure(Imports(), package)
    sys.path.remove("site-packages")
    installed.write_text("answer = 42")
    assert not error.may_be_mended()
    assert "pallas_gateway.errors" in sys.modules


async def test_a_retry_without_a_change_reads_only_the_module_again(write: Write, package: str) -> None:
    imports = Imports()
    write("helper", "def answer(): return 41")
    write("agent", NEEDS_42)
    await failure(imports, package)
    helper = sys.modules[f"{package}.helper"]
    await failure(imports, package)
    assert sys.modules[f"{package}.helper"] is helper
