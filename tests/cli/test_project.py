"""What commands take from the environment they run in."""

from pathlib import Path

import pytest

from pallas_gateway.telemetry.redaction import cleaned
from tests.support.commands import Command
from tests.support.gateway import Agent, write_project


def test_secrets_of_the_environment_are_hidden_and_folders_are_not(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(folder, {"echo": Agent()})
    monkeypatch.setenv("PWD", str(folder))
    monkeypatch.setenv("OLDPWD", "/gone/since/then")
    monkeypatch.setenv("SIGNING_KEY", str(folder))
    monkeypatch.setenv("DB_PWD", "/canary")
    monkeypatch.setenv("LONG_KEY", "/canary" * 1000)
    assert run("check").code == 0
    assert cleaned(f"in {folder} from /gone/since/then with /canary") == (
        f"in {folder} from /gone/since/then with ****"
    )


def test_the_password_of_the_threads_database_is_hidden(run: Command, folder: Path) -> None:
    write_project(folder, {"echo": Agent()}, gateway={"database": "postgresql://me:correct-horse@db/pallas"})
    assert run("check").code == 0
    assert cleaned("cannot log in with correct-horse") == "cannot log in with ****"
