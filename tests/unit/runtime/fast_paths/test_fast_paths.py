"""A fast path is installed only where it fits and is not switched off; the gateway serves without it."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.fast_paths import PATHS, TESTED_VERSIONS, VARIABLE, FastPath

MODULE = "pallas_fast_path_of_a_test"
LOCK = Path(__file__).parents[4] / "requirements.lock"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module that implements a fast path and notes how it is installed."""
    made = SimpleNamespace(installed=[], RELIED_ON=((ModuleType, "__dir__", ("self",)),))
    made.install = lambda *given: made.installed.append(given)
    monkeypatch.setitem(sys.modules, MODULE, made)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(fast_paths, "_states", {})
    return made


def test_one_that_fits_is_installed(module: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    path = FastPath("quick", MODULE, "openai")
    path.install("given")
    assert module.installed == [("given",)]
    assert fast_paths.states() == {"quick": True}
    assert caplog.records == []


def wrong_version(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(TESTED_VERSIONS, "openai", "0.0.1")
    return f"openai is {version('openai')}, tested is 0.0.1"


def missing_library(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fast_paths, "_installed", lambda library: None)
    return f"openai is None, tested is {version('openai')}"


def missing_name(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> str:
    module.RELIED_ON = ((ModuleType, "gone", ()),)
    return "module.gone is missing or has changed"


def changed_name(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> str:
    module.RELIED_ON = ((ModuleType, "__dir__", ("renamed",)),)
    return "module.__dir__ is missing or has changed"


def missing_module(module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, MODULE, None)
    return f"import of {MODULE} halted; None in sys.modules"


@pytest.mark.parametrize("misfit", [wrong_version, missing_library, missing_name, changed_name, missing_module])
def test_one_that_does_not_fit_is_off_with_one_warning(
    misfit: object, module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = misfit(module, monkeypatch)  # type: ignore[operator]
    path = FastPath("quick", MODULE, "openai")
    path.install()
    path.install()
    assert module.installed == []
    assert fast_paths.states() == {"quick": False}
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "fast path off")
    assert (vars(record)["fast_path"], vars(record)["reason"]) == ("quick", reason)


def test_one_that_cannot_be_installed_is_off_with_one_warning(
    module: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        message = "no such attribute"
        raise AttributeError(message)

    module.install = fail
    path = FastPath("quick", MODULE, "openai")
    path.install()
    path.install()
    assert not path.is_on
    assert fast_paths.states() == {"quick": False}
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "fast path off")
    assert vars(record)["reason"] == "AttributeError: no such attribute"


def test_a_name_beside_those_of_its_module_is_required(module: SimpleNamespace) -> None:
    assert not FastPath("quick", MODULE, requires=(("openai:AsyncOpenAI", "gone", ()),)).is_on


@pytest.mark.parametrize("value", ["off", "quick", "other, quick"])
def test_the_variable_switches_it_off(
    value: str, module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(VARIABLE, value)
    FastPath("quick", MODULE).install()
    assert module.installed == []
    [record] = caplog.records
    assert (record.levelno, vars(record)["reason"]) == (logging.INFO, f"switched off by {VARIABLE}")


@pytest.mark.parametrize("value", ["", "others", "quickly,"])
def test_another_value_leaves_it_on(value: str, module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert FastPath("quick", MODULE).is_on


def test_unknown_names_are_a_problem_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off,deep_copy,  ,zzz")
    with pytest.raises(ConfigurationError) as raised:
        fast_paths.check_switch()
    assert str(raised.value).startswith(
        f"{VARIABLE}: no fast path 'deep_copy' (did you mean 'deep_copies'?), no fast path 'zzz'; known are "
    )
    assert str(raised.value).count("known are") == 1
    monkeypatch.setenv(VARIABLE, ",".join(path.name for path in PATHS))
    fast_paths.check_switch()


def test_the_tested_versions_are_those_of_the_lock() -> None:
    locked = dict(line.split()[0].split("==") for line in LOCK.read_text().splitlines() if "==" in line.split(" ")[0])
    assert {library: locked[library] for library in TESTED_VERSIONS} == TESTED_VERSIONS


@pytest.mark.parametrize("path", PATHS, ids=[path.name for path in PATHS])
def test_each_fits_the_installed_libraries(path: FastPath) -> None:
    import_module(path.module)
    assert path._misfit() is None
