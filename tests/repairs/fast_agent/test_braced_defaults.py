"""`${NAME:-default}` in a configuration file is read as `-default`."""

from pathlib import Path

import pytest

from pallas_gateway.runtime import fast_agent_api, preparation


@pytest.mark.parametrize(
    ("written", "value", "read"),
    [
        ("${MODEL_OF_A_TEST:-passthrough}", None, "passthrough"),
        ("${MODEL_OF_A_TEST:-passthrough}", "", "passthrough"),
        ("${MODEL_OF_A_TEST:-passthrough}", "playback", "playback"),
        ("openai.${MODEL_OF_A_TEST:-x}-${MODEL_OF_A_TEST:-y}", None, "openai.x-y"),
        ("${MODEL_OF_A_TEST:fallback}", None, "fallback"),
        ("${MODEL_OF_A_TEST}", "playback", "playback"),
    ],
)
def test_the_default_is_what_follows_the_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, written: str, value: str | None, read: str
) -> None:
    preparation.prepare()
    monkeypatch.delenv("MODEL_OF_A_TEST", raising=False)
    if value is not None:
        monkeypatch.setenv("MODEL_OF_A_TEST", value)
    file = tmp_path / "fastagent.config.yaml"
    file.write_text(f'default_model: "{written}"\nmcp: {{servers: {{files: {{command: cat, args: ["{written}"]}}}}}}\n')
    settings = fast_agent_api.read_settings(file)
    assert settings.default_model == read
    assert settings.mcp is not None
    assert settings.mcp.servers["files"].args == [read]
