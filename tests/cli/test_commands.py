"""The commands there are, and the program's name for them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pallas_gateway import __version__
from tests.support.commands import GATEWAY, PALLAS, PALLAS_MODULE, Command

ROOT = Path(__file__).parents[2]


def test_help_names_every_command(run: Command) -> None:
    ran = run("--help")
    assert (ran.code, ran.err) == (0, "")
    serving = ("init", "serve", "check", "schema", "token", "audit", "database")
    for name in (*serving, "agents", "health", "call", "calls", "connect"):
        assert f" {name} " in ran.out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("serve", ["--config", "--host", "--port", "--public-url", "--per-port", "--agent"]),
        ("check", ["--config"]),
        ("agents", ["--url", "--bearer", "--json"]),
        ("connect", ["--url", "--bearer"]),
        ("health", ["--url", "--bearer", "--json", "--watch", "--interval"]),
        ("calls", ["--url", "--bearer", "--json", "--watch", "--interval", "--recent", "--last"]),
        ("call", ["--image", "--history", "--conversation-id", "--bearer", "--url", "--json"]),
    ],
)
def test_a_commands_help_names_its_options(run: Command, command: str, options: list[str]) -> None:
    ran = run(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert [option for option in options if option not in ran.out] == []


@pytest.mark.parametrize("command", [PALLAS, pytest.param(PALLAS_MODULE, marks=pytest.mark.whole)])
def test_help_of_pallas_shows_the_command_that_works(command: tuple[str, ...]) -> None:
    ran = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: pallas [OPTIONS]" in ran.stdout
    assert "pallas serve" not in ran.stdout.replace("pallas-gateway serve", "")


def test_the_wheel_has_the_module_that_older_service_files_name(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    assert sorted(one.name for one in installed.iterdir() if one.suffix != ".dist-info") == ["pallas", "pallas_gateway"]

    (tmp_path / "project" / "pallas").mkdir(parents=True)  # a folder of the project, which must not hide the module
    ran = subprocess.run(
        [sys.executable, "-m", "pallas.server", "--agent", "echo"],
        cwd=tmp_path / "project",
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "agents.yaml: no such file" in ran.stderr


def test_the_shell_completes_commands() -> None:
    asked = {"_PALLAS_GATEWAY_COMPLETE": "complete_bash", "COMP_WORDS": "pallas-gateway he", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'pallas-gateway'; from pallas_gateway.cli.app import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["health"]


def test_python_m_is_the_same_program() -> None:
    ran = subprocess.run([sys.executable, *GATEWAY, "--version"], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == (f"pallas-gateway {__version__}\n", "")


def test_commands_that_start_no_agent_do_not_wait_for_fast_agent() -> None:
    code = "import sys, pallas_gateway.cli.commands as _; print({'fast_agent', 'mcp', 'httpx'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
