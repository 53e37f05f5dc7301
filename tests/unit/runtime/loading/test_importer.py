"""Importing an agent's module, and the sentence for each way that can fail."""

import asyncio
import gc
import importlib
import itertools
import re
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pallas_gateway.errors import AgentStartError
from pallas_gateway.limits import RuntimeLimits
from pallas_gateway.runtime.loading import importer
from pallas_gateway.runtime.loading.importer import Imports
from tests.support.waiting import cancelled, eventually

GOOD = "from fast_agent import FastAgent\nfast = FastAgent('good', parse_cli_args=False)\n"
_packages = itertools.count()

type Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module of one package; its importable name is returned."""
    package = f"modules_under_test_{next(_packages)}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(name: str, source: str) -> str:
        (tmp_path / package / f"{name}.py").write_text(source)
        return f"{package}.{name}"

    return write_module


async def failure(module: str, limits: RuntimeLimits | None = None) -> AgentStartError:
    with pytest.raises(AgentStartError) as raised:
        await Imports(limits=limits).load_fast(module)
    return raised.value


@pytest.mark.parametrize(
    ("source", "reason", "says"),
    [
        ("raise ValueError('no key')", "import_failed", r"ValueError: no key \(\S+agent\.py:1\)"),
        ("x = 1\nraise ValueError('one\\ntwo')", "import_failed", r"ValueError: one \(\S+agent\.py:2\)"),
        ("def broken(:", "import_failed", r"SyntaxError: .+ \(\S+agent\.py:1\)"),
        (
            "import nowhere_to_be_found",
            "import_failed",
            r"ModuleNotFoundError: No module named 'nowhere_to_be_found' \(\S+agent\.py:1\)",
        ),
        ("from json import nothing_like_it", "import_failed", r"ImportError: cannot import name .+ \(\S+agent\.py:1\)"),
        ("import json\njson.loads('{')", "import_failed", r"JSONDecodeError: Expecting .+ \(\S+agent\.py:2\)"),
        ("raise SystemExit('bye')", "import_failed", r"SystemExit: bye \(\S+agent\.py:1\)"),
    ],
)
async def test_a_module_that_does_not_import_is_told_with_its_own_line(
    write: Write, source: str, reason: str, says: str
) -> None:
    module = write("agent", source)
    error = await failure(module)
    assert error.reason == reason
    assert re.fullmatch(rf"module '{re.escape(module)}' failed to import: {says}", str(error))


async def test_the_line_is_the_deepest_of_the_projects_own(write: Write) -> None:
    helper = write("helper", "import json\n\ndef read():\n    return json.loads('{')\n")
    error = await failure(write("agent", f"from {helper} import read\nread()\n"))
    assert re.search(r"\(\S+helper\.py:4\)$", str(error))


async def test_a_missing_module_says_every_folder_it_was_looked_for_in(write: Write, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(AgentStartError, match=re.escape(f" in {Path.cwd()} or {elsewhere}, and none")):
        await Imports(folder=elsewhere).load_fast("no_such_package_anywhere.agent")
    module = write("agent", GOOD)
    says = f"no module '{module}.inner' in {module}, which is no package"
    with pytest.raises(AgentStartError, match=re.escape(says)):
        await Imports().load_fast(f"{module}.inner")


async def test_a_module_missing_from_its_package_is_missing(write: Write) -> None:
    module = write("agent", GOOD).replace(".agent", ".agnet")
    error = await failure(module)
    folder = Path.cwd() / module.partition(".")[0]
    assert (error.reason, str(error)) == ("module_missing", f"no module '{module}' in {folder}")


@pytest.mark.parametrize("module", ["no_such_agents/ok.py", "./no_such_agents/ok.py", "no_such_agents/ok"])
async def test_a_path_in_place_of_a_module_is_answered_with_the_module(module: str) -> None:
    error = await failure(module)
    assert (error.reason, str(error)) == (
        "module_missing",
        f"no module '{module}'; write 'no_such_agents.ok': a module is named with dots, and without .py",
    )


@pytest.mark.parametrize("source", ["quick = 1", "fast = None", "fast = 'yes'"])
async def test_a_module_without_an_agent_program_says_what_to_define(write: Write, source: str) -> None:
    module = write("agent", source)
    error = await failure(module)
    assert (error.reason, str(error)) == (
        "no_fast",
        f"module '{module}' has no FastAgent; define `fast = FastAgent(…)`",
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("agents = FastAgent('only', parse_cli_args=False)", "only"),
        ("agents = app = FastAgent('only', parse_cli_args=False)", "only"),
        ("fast = 1\nagents = FastAgent('only', parse_cli_args=False)", "only"),
        ("base = FastAgent('base', parse_cli_args=False)\nfast = FastAgent('own', parse_cli_args=False)", "own"),
    ],
)
async def test_the_only_agent_program_of_a_module_is_taken_whatever_its_name(
    write: Write, source: str, name: str
) -> None:
    fast = await Imports().load_fast(write("agent", f"from fast_agent import FastAgent\n{source}"))
    assert fast.name == name


async def test_of_several_agent_programs_one_has_to_be_called_fast(write: Write) -> None:
    module = write("agent", GOOD.replace("fast =", "one =") + GOOD.splitlines()[1].replace("fast =", "two ="))
    error = await failure(module)
    says = f"module '{module}' has several FastAgents (one, two); call the one to serve `fast`"
    assert (error.reason, str(error)) == ("no_fast", says)


@dataclass
class Hanging:
    """A module whose import does not end before the test does, and how often it began."""

    module: str
    begun: int = 0


@pytest.fixture
def hanging(write: Write, monkeypatch: pytest.MonkeyPatch) -> Generator[Hanging]:
    one, over = Hanging(write("hanging", "import threading\nthreading.hang_for_a_test()\n")), threading.Event()

    def hang() -> None:
        one.begun += 1
        over.wait(30)

    monkeypatch.setattr(threading, "hang_for_a_test", hang, raising=False)
    yield one
    over.set()


async def test_an_import_that_hangs_is_waited_for_once_and_not_begun_again(hanging: Hanging) -> None:
    limits = RuntimeLimits(import_turn_seconds=0.02, import_seconds=0.05)
    imports = Imports(limits=limits)
    for _ in range(3):
        with pytest.raises(AgentStartError, match="is still importing"):
            await imports.load_fast(hanging.module)
        limits.import_turn_seconds = limits.import_seconds = 600  # a second wait would be noticed
    await eventually(lambda: hanging.begun, what="the import that hangs")
    imports.give_up()
    assert hanging.begun == 1


async def test_an_import_that_hangs_does_not_keep_others_from_theirs(hanging: Hanging, write: Write) -> None:
    imports = Imports(limits=RuntimeLimits(import_turn_seconds=0.02))
    stuck = asyncio.create_task(imports.load_fast(hanging.module))
    await eventually(lambda: hanging.begun, what="the import that hangs")
    async with asyncio.timeout(20):
        assert (await imports.load_fast(write("agent", GOOD))).name == "good"
        assert not stuck.done()
        imports.give_up()
        await asyncio.wait({stuck})
    assert stuck.cancelled()


async def test_an_import_that_fails_after_its_agent_was_left_is_no_error(
    write: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, over = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "enter_a_test", entered.set, raising=False)
    monkeypatch.setattr(threading, "end_a_test", lambda: over.wait(30), raising=False)
    late = write("late", "import threading\nthreading.enter_a_test()\nthreading.end_a_test()\nraise ValueError('no')")
    imports = Imports()
    agent = asyncio.create_task(imports.load_fast(late))
    await eventually(entered.is_set, what="the import")
    await cancelled(agent)
    over.set()
    await eventually(lambda: not imports._running, what="the import's end")
    del agent
    gc.collect()  # asyncio complains when a task goes whose failure nobody saw
    assert not caplog.records


async def test_a_good_module_gives_its_fast_without_holding_up_the_loop(write: Write) -> None:
    source = f"import threading\nassert threading.current_thread().name == 'agent-import'\n{GOOD}"
    assert (await Imports().load_fast(write("agent", source))).name == "good"


def test_forgetting_a_module_forgets_what_is_inside_it_and_nothing_else(write: Write) -> None:
    module = write("agent", "")
    neighbour = write("agent_too", "")
    first, other = importlib.import_module(module), importlib.import_module(neighbour)
    importer.forget(module)
    assert importlib.import_module(module) is not first
    assert importlib.import_module(neighbour) is other
