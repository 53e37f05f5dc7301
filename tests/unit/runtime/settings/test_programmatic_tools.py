"""Programmatic tool calling is refused by `check` and off at hosting, in each way in which it can be switched on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fast_agent.config import ProgrammaticToolCallingSettings
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.config.loading.fastagent_file import read_fastagent_file
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.settings.hosting import settings_for_hosting, settings_of
from pallas_gateway.runtime.settings.programmatic_tools import is_on
from pallas_gateway.runtime.settings.review import review

ON = "ptc:\n  enabled: true\n"
CONFIG = "fastagent.config.yaml"
SECRETS = "fastagent.secrets.yaml"
NAMED = "named.yaml"
OFF = "programmatic tool calling off"
VARIABLES = ["PTC__ENABLED", "ptc__enabled", ".env"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)
    Path(CONFIG).write_text("default_model: passthrough\n")


def add(file: str, text: str) -> None:
    with Path(file).open("a") as opened:
        opened.write(text)


def in_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable == ".env":
        add(".env", "PTC__ENABLED=true\n")
    else:
        monkeypatch.setenv(variable, "true")


def problems() -> list[str]:
    """The problems that `check` prints."""
    file, found = read_fastagent_file(None, {})
    return [str(one) for one in (*found, *(file.problem(*place) for place in review(file.written, None)))]


def hosted(change: Callable[[Any], None] | None = None, **made_with: Any) -> bool:
    """True if it is on in the settings with which an agent is hosted."""
    fast = FastAgent("hosted", parse_cli_args=False, **made_with)
    if change is not None:
        change(settings_of(fast))
    named = Path(NAMED)
    settings: Any = settings_for_hosting(fast, config_file=named if named.exists() else None)
    return bool(settings.ptc.enabled)


@pytest.mark.parametrize("file", [CONFIG, SECRETS])
def test_check_refuses_it_in_a_file_with_its_line(file: str) -> None:
    add(file, ON)
    line = len(Path(file).read_text().splitlines())
    (problem,) = problems()
    assert problem.startswith(f"{file}:{line}: ptc.enabled: programmatic tool calling is not supported: approvals, ")
    assert problem.endswith("; remove the key, or set it to false")


@pytest.mark.parametrize("variable", VARIABLES)
def test_check_refuses_it_in_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_environment(variable, monkeypatch)
    (problem,) = problems()
    assert problem.startswith(f"{CONFIG}: ptc.enabled: programmatic tool calling is not supported")
    assert problem.endswith("; unset the environment variable PTC__ENABLED")


@pytest.mark.parametrize("value", [False, "false", "off", 0, None, "perhaps"])
def test_check_accepts_it_switched_off(value: object) -> None:
    assert not is_on({"enabled": value})
    assert not is_on(None)


@pytest.mark.parametrize("value", [True, "true", "yes", "on", 1, "1"])
def test_each_value_that_pydantic_reads_as_true_switches_it_on(value: object) -> None:
    assert is_on({"enabled": value})
    assert ProgrammaticToolCallingSettings.model_validate({"enabled": value}).enabled


@pytest.mark.parametrize("where", [CONFIG, SECRETS, NAMED, *VARIABLES])
def test_hosting_switches_it_off_of_a_file_and_of_the_environment(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if where in VARIABLES:
        in_environment(where, monkeypatch)
    else:
        add(where, ON)
    assert not hosted()
    assert caplog.messages == [OFF]


def test_hosting_switches_it_off_of_a_modules_own_file_and_code(caplog: pytest.LogCaptureFixture) -> None:
    def switch_on(settings: Any) -> None:
        settings.ptc.enabled = True

    add("own.yaml", ON)
    assert not hosted(config_path="own.yaml")
    assert not hosted(switch_on)
    assert caplog.messages == [OFF, OFF]


def test_nothing_is_logged_where_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    assert not hosted()
    assert caplog.messages == []
