"""Reading settings takes away those of the process."""

from pathlib import Path
from typing import Any

import fast_agent.config
import pytest
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.runtime import fast_agent_api, preparation


def test_settings_are_read_while_calls_go_on_finding_the_process_wide_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that looks while a module is imported in another thread must find settings."""
    preparation.prepare()
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
    assert fast_agent_api.read_settings(None).default_model == "passthrough"
    assert fast_agent_api.read_settings(tmp_path / "fastagent.config.yaml").default_model == "passthrough"
    assert FastAgent("one", parse_cli_args=False)._settings.default_model == "passthrough"
    assert seen == [present] * 3
