"""The gateway as `pip install pallas-gateway` leaves it: without the packages of the extra `database`."""

import signal
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pallas_gateway.config.loading.loader import DATABASE_PACKAGES
from tests.support.commands import READY_SECONDS, Command, started
from tests.support.gateway import Agent, write_project

ROOT = Path(__file__).parents[2]
CHECK_ONLINE = f"""
import sys
sys.modules.update(dict.fromkeys({DATABASE_PACKAGES!r}))  # as if they were not installed
from pallas_gateway.cli.app import main
main(["check", "--online"])
"""
ROUTES = f"""
import sys
sys.modules.update(dict.fromkeys({DATABASE_PACKAGES!r}))  # as if they were not installed
from pallas_gateway.cli.app import main
main(["routes"])
"""
CHECK_AND_SERVE = f"""
import sys
sys.modules.update(dict.fromkeys({DATABASE_PACKAGES!r}))  # as if they were not installed
from pallas_gateway.cli.app import main
example = sys.argv[1:]
for command in ("check", "serve --port 0"):
    try:
        main([*command.split(), *example])
    except SystemExit as ended:
        print(f"{{command}}: {{ended.code}}", file=sys.stderr)
parts = tuple(f"pallas_gateway.{{part}}" for part in ("threads", "definitions", "hosting.stored", "serving.stored"))
print("imported:", [name for name in [*sys.modules] if name.startswith(parts)], file=sys.stderr)
"""


def test_the_extra_is_what_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert tuple(Requirement(one).name for one in extras["database"]) == DATABASE_PACKAGES
    assert extras["threads"] == ["pallas-gateway[database]"]  # its older name


def test_the_example_needs_no_extra(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "PALLAS_EXAMPLE_MODEL": ""}
    example = ["--config", str(ROOT / "agents.example.yaml")]
    with started(example, tmp_path, command=("-c", CHECK_AND_SERVE), environ=environ, is_real=True) as program:
        program.wait_for("Try:")
        program.signal(signal.SIGTERM)
        ran = program.end(READY_SECONDS)
    assert [line for line in ran.err.splitlines() if line.startswith(("check", "serve", "imported"))] == [
        "check: 0",
        "serve --port 0: 0",
        "imported: []",
    ]


def test_the_other_routes_are_shown_without_the_extra(tmp_path: Path) -> None:
    with started([], tmp_path, command=("-c", ROUTES), environ={"PYTHONPATH": str(ROOT)}, is_real=True) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, "/api/v1/usage" in ran.out, "/api/v1/threads" in ran.out) == (0, True, False)
    assert "pip install 'pallas-gateway[database]'" in ran.err


@pytest.mark.parametrize(("command", "key"), [("check", "threads"), ("serve", "database")])
def test_a_database_without_its_packages_is_a_problem_among_the_others(
    command: str, key: str, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"port": 0, key: "sqlite:///threads.db", "bogus": 1})
    lines = Path("agents.yaml").read_text().splitlines()
    bogus, database = (lines.index(text) + 1 for text in ("  bogus: 1", f"  {key}: sqlite:///threads.db"))
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    ran = run(command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        f"agents.yaml:{database}: gateway.{key}: requires packages that are not installed (alembic, sqlalchemy): "
        "pip install 'pallas-gateway[database]'",
        f"agents.yaml:{bogus}: gateway.bogus: unknown key",
    ]


@pytest.mark.whole("cli/test_extras.py::test_a_database_without_its_packages_is_a_problem_among_the_others")
def test_check_online_tries_no_database_without_its_packages(tmp_path: Path) -> None:
    write_project(tmp_path, {"echo": Agent()}, gateway={"database": "sqlite:///threads.db"})
    with started(
        [], tmp_path, command=("-c", CHECK_ONLINE), environ={"PYTHONPATH": str(ROOT)}, is_real=True
    ) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (2, "")
    [problem] = ran.err.splitlines()
    assert " gateway.database: requires packages that are not installed (" in problem
