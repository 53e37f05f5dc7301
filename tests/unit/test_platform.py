"""What the gateway relies on inside fast-agent is checked by name before anything starts."""

import types
from pathlib import Path
from typing import Any

import fast_agent.config
import pytest
from fast_agent.core.fastagent import FastAgent
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import platform


class Fits:
    def load(self, *, force: bool) -> None: ...

    value = 7


RELIED_ON = platform._RELIED_ON


def rely_on(monkeypatch: pytest.MonkeyPatch, *needs: tuple[Any, str, tuple[str, ...]]) -> None:
    monkeypatch.setattr(platform, "_RELIED_ON", needs)


def test_the_installed_fast_agent_fits_and_still_does_once_it_is_prepared() -> None:
    platform.check()
    platform.prepare()
    platform.check()


@pytest.mark.parametrize("need", RELIED_ON, ids=[need[1] for need in RELIED_ON])
def test_each_name_that_is_gone_is_named(
    need: tuple[Any, str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, parameters = need
    emptied = types.SimpleNamespace(__name__=owner.__name__)
    rely_on(monkeypatch, (emptied, name, parameters))
    with pytest.raises(PlatformError, match=rf"does not fit: {owner.__name__}\.{name} is missing or has changed"):
        platform.check()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gone", ()), ("load", ("self", "renamed")), ("value", ("self",))],
    ids=["gone", "another parameter", "no function any more"],
)
def test_a_name_that_does_not_fit_is_a_platform_error(
    name: str, parameters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rely_on(monkeypatch, (Fits, "load", ("self", "force")), (Fits, name, parameters))
    with pytest.raises(PlatformError, match=rf"fast-agent \d+\.\S+ does not fit: Fits\.{name}") as raised:
        platform.check()
    assert raised.value.reason == "platform_mismatch"
    assert "requirements.lock" in str(raised.value)


def test_a_private_method_removed_by_an_upgrade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    with pytest.raises(PlatformError, match=r"MCPAggregator\._attach_server_locked"):
        platform.check()


def test_a_mismatch_stops_the_preparation_before_anything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_prepared", False)
    rely_on(monkeypatch, (Fits, "gone", ()))
    before = MCPAggregator.load_servers
    with pytest.raises(PlatformError):
        platform.prepare()
    assert MCPAggregator.load_servers is before


def test_settings_are_read_while_calls_go_on_finding_the_process_wide_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that looks while a module is imported in another thread must find settings."""
    platform.prepare()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastagent.config.yaml").write_text("default_model: passthrough")
    present = fast_agent.config.Settings()
    monkeypatch.setattr(fast_agent.config, "_settings", present)
    seen: list[object] = []
    original = fast_agent.config._load_settings_sources

    def look(*arguments: Any, **options: Any) -> Any:
        seen.append(fast_agent.config._settings)
        return original(*arguments, **options)

    monkeypatch.setattr(fast_agent.config, "_load_settings_sources", look)
    assert platform.read_settings(None).default_model == "passthrough"
    assert platform.read_settings(tmp_path / "fastagent.config.yaml").default_model == "passthrough"
    assert FastAgent("one", parse_cli_args=False)._settings.default_model == "passthrough"
    assert seen == [present] * 3
