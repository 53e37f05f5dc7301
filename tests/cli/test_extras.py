"""The gateway as `pip install pallas-gateway` leaves it: without the packages of the extra `threads`."""

from __future__ import annotations

import signal
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pallas_gateway.config.loading.loader import THREADS_PACKAGES
from tests.support.commands import READY_SECONDS, Command, started
from tests.support.gateway import Agent, write_project

ROOT = Path(__file__).parents[2]
CHECK_AND_SERVE = f"""
import sys
sys.modules.update(dict.fromkeys({THREADS_PACKAGES!r}))  # as if they were not installed
from pallas_gateway.cli.app import main
example = sys.argv[1:]
for command in ("check", "serve --port 0"):
    try:
        main([*command.split(), *example])
    except SystemExit as ended:
        print(f"{{command}}: {{ended.code}}", file=sys.stderr)
print("imported:", [name for name in sys.modules if "pallas_gateway.threads" in name], file=sys.stderr)
"""


def test_the_extra_is_what_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(Requirement(one).name for one in project["optional-dependencies"]["threads"]) == THREADS_PACKAGES


def test_the_example_needs_no_extra(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "PALLAS_EXAMPLE_MODEL": ""}
    example = ["--config", str(ROOT / "agents.example.yaml")]
    with started(example, tmp_path, command=("-c", CHECK_AND_SERVE), environ=environ) as program:
        program.wait_for("Try:")
        program.signal(signal.SIGTERM)
        ran = program.end(READY_SECONDS)
    assert [line for line in ran.err.splitlines() if line.startswith(("check", "serve", "imported"))] == [
        "check: 0",
        "serve --port 0: 0",
        "imported: []",
    ]


@pytest.mark.parametrize("command", ["check", "serve"])
def test_threads_without_their_packages_are_a_problem_among_the_others(
    command: str, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"port": 0, "threads": "sqlite:///threads.db", "bogus": 1})
    lines = Path("agents.yaml").read_text().splitlines()
    bogus, threads = (lines.index(text) + 1 for text in ("  bogus: 1", "  threads: sqlite:///threads.db"))
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    ran = run(command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        f"agents.yaml:{threads}: gateway.threads: requires packages that are not installed (alembic, sqlalchemy): "
        "pip install 'pallas-gateway[threads]'",
        f"agents.yaml:{bogus}: gateway.bogus: unknown key",
    ]
