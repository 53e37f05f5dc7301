"""What is looked up in short is what fast-agent finds."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import fast_agent.config
import fast_agent.paths
import pytest
from fast_agent.agents.agent_types import AgentConfig
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.config import GenericSettings, Settings
from fast_agent.core.exceptions import ConfigFileError
from fast_agent.core.instruction import InstructionBuilder
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.skills.registry import SkillRegistry
from mcp_types import TextContent
from pydantic_settings import EnvSettingsSource
from typing_extensions import get_protocol_members

from pallas_gateway.runtime import patches
from pallas_gateway.runtime.fast_paths import lookups

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("key", ["a-key", None])
def test_a_providers_key_is_found_in_the_settings(key: str | None) -> None:
    patches.prepare()

    found = ProviderKeyManager.get_config_file_key("generic", Settings(generic=GenericSettings(api_key=key)))

    assert found == key
    assert ProviderKeyManager.get_config_file_key("generic", {"generic": {"api_key": key}}) == key
    assert ProviderKeyManager.get_config_file_key("nowhere", Settings()) is None


def test_a_known_class_fulfils_its_protocol() -> None:
    patches.prepare()
    lookups.install()  # a second time
    instances = [McpAgent(AgentConfig("agent")), Settings(), TextContent(type="text", text="")]

    for module, name, known in lookups.IMPLEMENTATIONS:
        first, protocol = getattr(module, name)
        instance = next(one for one in instances if isinstance(one, known))
        assert first is known
        assert isinstance(instance, protocol), name
        assert all(hasattr(instance, member) for member in get_protocol_members(protocol)), name


def test_the_default_folders_of_skills_are_those_of_default_settings(tmp_path: Path) -> None:
    patches.prepare()
    original = inspect.unwrap(fast_agent.paths.default_skill_paths)

    found = fast_agent.paths.default_skill_paths(cwd=tmp_path)

    assert found == original(cwd=tmp_path) != []
    assert set(SkillRegistry(base_dir=tmp_path).directories) == {one for one in found if one.is_dir()}
    elsewhere = Settings(home=str(tmp_path / "elsewhere"))
    assert fast_agent.paths.default_skill_paths(elsewhere, cwd=tmp_path) == original(elsewhere, cwd=tmp_path) != found


def test_the_fields_are_searched_once_for_each_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    patches.prepare()
    searched = []
    search = EnvSettingsSource.explode_env_vars

    def noted(self: EnvSettingsSource, name: str, *rest: Any) -> dict[str, Any]:
        searched.append(name)
        return search(self, name, *rest)

    monkeypatch.setattr(EnvSettingsSource, "explode_env_vars", noted)
    for retries, fields in ((3, True), (3, False), (4, True)):
        searched.clear()
        monkeypatch.setenv("LLM_RETRIES", str(retries))
        monkeypatch.setenv("GENERIC__BASE_URL", "http://localhost/v1")

        settings = Settings()

        assert bool(searched) is fields
        assert settings.llm_retries == retries
        assert settings.generic is not None
        assert settings.generic.base_url == "http://localhost/v1"
        settings.generic.base_url = "changed"


def test_a_few_environments_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    patches.prepare()

    for retries in range(20):
        monkeypatch.setenv("LLM_RETRIES", str(retries))
        assert Settings().llm_retries == retries


SETTINGS_FILES = {
    "settings": "default_model: a.b\nmcp:\n  servers: {one: {url: '${URL:-http://localhost}'}}\nllm_retries: 0x3\n",
    "nothing": "",
    "a list": "- one\n",
    "text outside ASCII": "default_model: \u00fc\n",
}


@pytest.mark.parametrize("text", SETTINGS_FILES.values(), ids=SETTINGS_FILES)
def test_settings_files_are_read_as_by_fast_agent(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.prepare()
    monkeypatch.setenv("URL", "http://configured")
    original = inspect.unwrap(fast_agent.config.load_yaml_mapping)
    (path := tmp_path / "fast-agent.yaml").write_text(text, encoding="utf-8")

    assert fast_agent.config.load_yaml_mapping is not original
    assert fast_agent.config.load_yaml_mapping(path) == original(path)
    assert fast_agent.config.load_yaml_mapping(tmp_path / "missing.yaml") == original(None) == {}


@pytest.mark.parametrize("text", ["a: [", "a: !unknown 1", "\x07"])
def test_unreadable_settings_file_has_the_error_of_fast_agent(text: str, tmp_path: Path) -> None:
    patches.prepare()
    (path := tmp_path / "fast-agent.yaml").write_text(text)

    with pytest.raises(ConfigFileError) as raised:
        fast_agent.config.load_yaml_mapping(path)
    with pytest.raises(ConfigFileError) as expected:
        inspect.unwrap(fast_agent.config.load_yaml_mapping)(path)
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("text", ["You help.", "Reply {this}.", "It is {{where}}.", r"Write \{{name\}}.", r"End \}}."])
async def test_an_instruction_has_the_text_that_fast_agent_makes(text: str) -> None:
    patches.prepare()
    ours, theirs = (InstructionBuilder(text).set("where", "here") for _ in range(2))

    assert await ours.build() == await inspect.unwrap(InstructionBuilder.build)(theirs)


def test_shared_settings_are_read_when_a_file_or_a_variable_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches.prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fast_agent.config, "_settings", None)
    read, parse = [], fast_agent.config.load_yaml_mapping

    def noted(path: Path | None) -> dict[str, Any]:
        read.append(path)
        return parse(path)

    monkeypatch.setattr(fast_agent.config, "load_yaml_mapping", noted)
    config = tmp_path / "fastagent.config.yaml"

    def default_models() -> list[str | None]:
        """Of the starts of two agents, each with settings of its own before."""
        read.clear()
        found = []
        for _ in range(2):
            fast_agent.config.update_global_settings(Settings(default_model="another"))
            found.append(fast_agent.config.get_settings(no_home=True).default_model)
            assert fast_agent.config.get_settings(no_home=True) is fast_agent.config._settings
        return found

    config.write_text("default_model: one")
    assert default_models() == ["one", "one"]
    once = len(read)
    assert default_models() == ["one", "one"]
    assert read == []
    config.write_text("default_model: ${MODEL:three}")
    assert default_models() == ["three", "three"]
    assert len(read) == once
    monkeypatch.setenv("MODEL", "four")
    assert default_models() == ["four", "four"]


def test_present_settings_that_fit_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fast_agent.config, "_settings", None)
    (own := tmp_path / "own.yaml").write_text("default_model: own")

    present = fast_agent.config.get_settings(own, no_home=True)

    assert fast_agent.config.get_settings(no_home=True) is present
    assert fast_agent.config.get_settings(own, no_home=True) is not present
