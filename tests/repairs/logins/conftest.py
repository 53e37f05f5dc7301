"""Credentials of other programs, which no login may use."""

import json
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest

from pallas_gateway.repairs.logins._file import FILE
from tests.support.provider_gateways import codex_token

VARIABLES = (FILE, "CODEX_API_KEY", "XAI_API_KEY", "COPILOT_GITHUB_TOKEN")


@pytest.fixture(autouse=True)
def others_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials in Codex's own file, and a keyring; neither may be used."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "auth.json").write_text(
        json.dumps({"tokens": {"access_token": codex_token("of-another-program")}})
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CODEX_HOME", str(home / ".codex"))
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(keyring, "get_password", lambda service, name: asked.append((service, name)))
    yield
    assert asked == []
