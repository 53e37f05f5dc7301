"""`pallas-gateway init`: what it writes can be served at once, and it never touches what is there."""

import signal
from pathlib import Path

import pytest
import yaml

from tests.support.commands import Command, started


def test_a_new_project_is_fine_and_serves_without_a_key(run: Command, tmp_path: Path) -> None:
    project = tmp_path / "My Agents"
    made = run("init", str(project))
    assert (made.code, made.out.splitlines()[0]) == (0, "4 files written for 'My-Agents'. Next:")
    assert made.out.splitlines()[-1] == f"  cd '{project}' && pallas-gateway serve"
    with started(["serve", "--port", "0"], project) as program:
        program.wait_for("Try:")
        program.signal(signal.SIGTERM)
        ran = program.end()
    assert ran.code == 0
    assert "assistant   ready" in ran.out


def test_the_secrets_of_a_new_project_stay_out_of_git(run: Command, tmp_path: Path) -> None:
    run("init", str(tmp_path / "new"))
    assert ".env" in (tmp_path / "new" / ".gitignore").read_text().split()
    assert (tmp_path / "new" / ".env.example").is_file()


def test_the_project_is_named_as_told(run: Command, tmp_path: Path) -> None:
    run("init", str(tmp_path / "new"), "--name", "acme")
    assert yaml.safe_load((tmp_path / "new" / "agents.yaml").read_text())["name"] == "acme"


@pytest.mark.parametrize("file", ["agents.yaml", ".gitignore", "fastagent.config.yaml"])
def test_a_folder_with_a_file_of_that_name_is_left_alone(run: Command, tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    ran = run("init", str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"{tmp_path / file} is there already, nothing was written. Choose an empty folder.\n"
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / file).read_text() == "mine"


def test_a_name_that_yaml_would_misread_is_refused(run: Command, tmp_path: Path) -> None:
    ran = run("init", str(tmp_path / "new"), "--name", "a: b")
    assert (ran.code, ran.err) == (2, "--name 'a: b' may hold no spaces, quotes, brackets, ':' or '#'.\n")
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_named(run: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("init", str(tmp_path / "file" / "new"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(": Not a directory.\n")
