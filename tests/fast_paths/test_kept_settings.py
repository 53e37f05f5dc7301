"""Settings are read once, and again when something that they are made of has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fast_agent.config import GenericSettings, Settings

from pallas_gateway.fast_paths.kept_settings import MOST_KEPT, changed
from pallas_gateway.runtime import preparation
from tests.support.gateway import Agent, running, write_project

if TYPE_CHECKING:
    from pathlib import Path

FILE: dict[str, Any] = {
    "default_model": "passthrough",
    "logger": {"path": "a.log"},
    "generic": {"api_key": "of the file"},
    "mcp": {"servers": {"tools": {"url": "http://localhost/mcp", "x-extra": 1}}},
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[type[Settings]]:
    """Each time that settings were read and validated; nothing is kept from before."""
    preparation.prepare()
    found: list[type[Settings]] = []
    sources = Settings.settings_customise_sources

    def noting(cls: type[Settings], *arguments: Any, **options: Any) -> Any:
        found.append(cls)
        return sources(*arguments, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "settings_customise_sources", classmethod(noting))
    monkeypatch.setattr(Settings, "__init__", changed(Settings.__init__.__wrapped__, Settings))  # type: ignore[attr-defined]
    return found


async def test_a_start_reads_the_settings_once_and_a_reload_reads_changed_ones(
    reads: list[type[Settings]], tmp_path: Path
) -> None:
    project = write_project(tmp_path / "project", {"one": Agent(), "two": Agent()}, fastagent=FILE)
    async with running(project) as served:
        assert len(reads) == 2  # those of the file, and those without one
        await served.reload()
        assert len(reads) == 2
        (project.path / "fastagent.config.yaml").write_text("default_model: playback\n")
        await served.reload()
        assert len(reads) == 3


def test_kept_settings_are_those_that_are_read_and_belong_to_the_caller(reads: list[type[Settings]]) -> None:
    first, second = Settings(**FILE), Settings(**FILE)
    assert len(reads) == 1
    assert first == second
    assert first.model_dump() == second.model_dump()
    assert first.model_fields_set == second.model_fields_set
    assert second._logger_path_explicit
    assert second.mcp is not None
    second.mcp.servers.clear()
    second.default_model = second._config_file = "changed"
    third = Settings(**FILE)
    assert (third, third._config_file, len(reads)) == (first, None, 1)


@pytest.mark.parametrize("what", ["file", "kind of a value", "environment", ".env"])
def test_settings_are_read_again_when_what_they_are_made_of_has_changed(
    what: str, reads: list[type[Settings]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, values = Settings(**FILE), FILE
    if what == "file":
        values = {**FILE, "generic": {"api_key": "new"}}
    elif what == "kind of a value":
        values = {**FILE, "mcp": {"servers": {"tools": {"url": "http://localhost/mcp", "x-extra": True}}}}
    elif what == "environment":
        monkeypatch.setenv("LOGGER__TYPE", "console")
    else:
        (tmp_path / ".env").write_text("LOGGER__TYPE=console\n")
    after = Settings(**values)
    assert len(reads) == 2
    assert (after == before) == (what == "kind of a value")
    assert (after.logger.type == "console") == (what in ("environment", ".env"))


def test_values_that_are_no_file_s_are_not_kept_and_wrong_ones_fail_each_time(reads: list[type[Settings]]) -> None:
    one, other = (Settings(generic=GenericSettings(api_key=key)) for key in ("one", "other"))
    assert one.generic is not None
    assert other.generic is not None
    assert (one.generic.api_key, other.generic.api_key, len(reads)) == ("one", "other", 2)
    for number in (3, 4):
        with pytest.raises(ValueError, match="llm_retries"):
            Settings(llm_retries="many")
        assert len(reads) == number


def test_only_the_last_settings_are_kept(reads: list[type[Settings]]) -> None:
    for number in range(MOST_KEPT + 1):
        Settings(llm_retries=number)
    assert Settings(llm_retries=MOST_KEPT).llm_retries == MOST_KEPT
    assert len(reads) == MOST_KEPT + 1
    assert Settings(llm_retries=0).llm_retries == 0
    assert len(reads) == MOST_KEPT + 2
