"""The files of a project: which are its Python files, when they count as changed, how its modules are read again."""

import itertools
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_gateway import file_stamps
from pallas_gateway.errors import AgentStartError
from pallas_gateway.file_stamps import loaded_modules, python_files
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


@pytest.mark.parametrize("module", ["agent", "not.yet.agent"])
async def test_a_module_or_a_package_that_appears_is_a_change(module: str, package: str) -> None:
    imports = Imports()
    with pytest.raises(AgentStartError) as raised:
        await imports.load_fast(f"{package}.{module}")
    assert raised.value.reason == "module_missing"
    assert not raised.value.may_be_mended()
    file = Path(package, *module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEADER)
    assert raised.value.may_be_mended()
    await imports.load_fast(f"{package}.{module}")


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


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_modules_beside_the_package_or_the_configuration_are_the_projects_too(
    is_elsewhere: bool, write: Write, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Path(f"beside_{package}.py").absolute()
    beside.write_text("answer = 41")
    write("agent", f"from beside_{package} import answer\nassert answer == 42\n{HEADER}")
    if is_elsewhere:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    imports = Imports(folder=tmp_path if is_elsewhere else None)
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


def named(*paths: str) -> list[str]:
    """Make empty files below the working directory; returns those of `python_files`."""
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return sorted(str(path.relative_to(Path.cwd())) for path in python_files(None))


def test_hidden_files_and_those_of_libraries_are_not_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".#one.py").symlink_to("nobody@nowhere.1")  # Emacs has one while it edits a file
    libraries = (
        ".hidden.py",
        "site-packages/a.py",
        ".venv/a.py",
        "env/pyvenv.cfg",
        "env/lib/a.py",
        "node_modules/a.py",
    )
    assert named("top.py", "agents/deep/down/one.py", "prompt.md", *libraries) == ["agents/deep/down/one.py", "top.py"]


def test_the_folder_of_the_configuration_has_python_files_of_the_project_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "top.py").touch()
    assert list(python_files(None)) == []
    assert list(python_files(tmp_path)) == [tmp_path / "top.py"]
    assert list(python_files(tmp_path / "missing")) == []


def test_a_linked_folder_is_read_and_one_that_leads_back_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "one.py").touch()
    Path("linked").symlink_to("../shared")
    Path("linked/back").symlink_to("../project")
    assert named("top.py") == ["linked/one.py", "top.py"]


def test_of_too_many_folders_the_first_below_the_top_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_stamps, "MOST_FOLDERS", 2)
    assert named("top.py", "agents/one.py", "agents/deep/two.py") == ["agents/one.py", "top.py"]


def test_loaded_modules_of_the_project_are_those_below_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "of_project": "agents/one.py",
        "of_libraries": ".venv/lib/python3.13/site-packages/one.py",
        "of_others": f"../{tmp_path.name}_others/one.py",
    }
    for name, path in files.items():
        module = types.ModuleType(name)
        module.__file__ = os.path.normpath(tmp_path / path)
        monkeypatch.setitem(sys.modules, name, module)
    folder_only = types.ModuleType("folder_only")
    folder_only.__path__ = [str(tmp_path / "agents")]
    monkeypatch.setitem(sys.modules, "folder_only", folder_only)
    assert sorted(loaded_modules(None)) == ["folder_only", "of_project"]


async def test_a_changed_file_of_a_package_without_init_is_read_again(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.invalidate_caches", lambda: None)  # it must not depend on it
    imports = Imports()
    agent, helper = tmp_path / package / "agent.py", tmp_path / package / "helper.py"
    agent.write_text(f"from {package} import helper\n" + HEADER)
    helper.write_text("answer = 41")
    fast = await imports.load_fast(f"{package}.agent")
    assert helper in imports.files_behind(fast)
    helper.write_text("answer = 'another'")
    assert await imports.load_fast(f"{package}.agent") is not fast
    assert vars(sys.modules[f"{package}.agent"])["helper"].answer == "another"


async def test_agents_share_modules_and_files_until_one_changes(write: Write, package: str) -> None:
    imports = Imports()
    write("helper", "")
    write("agent", "from . import helper\n" + HEADER)
    write("other", "from . import helper\n" + HEADER)
    first, second = [await imports.load_fast(f"{package}.{name}") for name in ("agent", "other")]
    assert vars(sys.modules[f"{package}.agent"])["helper"] is vars(sys.modules[f"{package}.other"])["helper"]
    assert imports.files_behind(first) == imports.files_behind(second)
    assert await imports.load_fast(f"{package}.agent", reread=True) is first
    write("other", HEADER)
    assert await imports.load_fast(f"{package}.agent", reread=True) is not first


@pytest.mark.parametrize("reads", ["agent", "helper"])
async def test_a_watched_file_that_changed_is_read_again_by_the_module_or_its_imports(
    reads: str, write: Write, package: str, tmp_path: Path
) -> None:
    imports, prompt = Imports(), tmp_path / "prompt.md"
    prompt.write_text("one")
    sources = {"helper": "", "agent": "from . import helper\n" + HEADER}
    sources[reads] += f"from pathlib import Path\nTEXT = Path({str(prompt)!r}).read_text()\n"
    for name, source in sources.items():
        write(name, source)
    first = await imports.load_fast(f"{package}.agent", [prompt])
    assert await imports.load_fast(f"{package}.agent", [prompt]) is first
    prompt.write_text("another")
    assert await imports.load_fast(f"{package}.agent", [prompt]) is not first
    assert vars(sys.modules[f"{package}.{reads}"])["TEXT"] == "another"


@pytest.mark.parametrize("reread", [False, True])
async def test_a_file_that_is_watched_only_now_may_have_changed_since_the_import(
    write: Write, package: str, tmp_path: Path, *, reread: bool
) -> None:
    imports, prompt = Imports(), tmp_path / "prompt.md"
    prompt.write_text("one")
    write("agent", HEADER)
    first = await imports.load_fast(f"{package}.agent")
    second = await imports.load_fast(f"{package}.agent", [prompt], reread=reread)
    assert (second is first) == (not reread)
    prompt.write_text("another")
    assert await imports.load_fast(f"{package}.agent", [prompt]) is not second


async def test_a_module_outside_of_the_project_counts_for_its_own_agent(
    write: Write, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("agent", HEADER)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    imports = Imports()
    fast = await imports.load_fast(f"{package}.agent")
    assert set(imports.files_behind(fast)) == {tmp_path / package / "agent.py"}
    write("agent", HEADER + "SECOND = 2\n")
    assert await imports.load_fast(f"{package}.agent") is not fast


async def test_a_module_may_become_a_package(write: Write, package: str) -> None:
    imports = Imports()
    path = write("agent", HEADER)
    fast = await imports.load_fast(f"{package}.agent")
    path.unlink()
    path.with_suffix("").mkdir()
    inner = write("agent/__init__", HEADER)
    again = await imports.load_fast(f"{package}.agent")
    assert again is not fast
    assert inner in imports.files_behind(again)


async def test_a_retry_without_a_change_reads_only_the_module_again(write: Write, package: str) -> None:
    imports = Imports()
    write("helper", "def answer(): return 41")
    write("agent", NEEDS_42)
    await failure(imports, package)
    helper = sys.modules[f"{package}.helper"]
    await failure(imports, package)
    assert sys.modules[f"{package}.helper"] is helper
