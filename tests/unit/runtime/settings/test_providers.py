"""Which LLM providers a project has set up: read as fast-agent reads them, default model, keys and addresses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fast_agent import config as fast_agent_config
from fast_agent.llm.provider.openai import llm_azure
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.protocols import LlmProvider
from pallas_gateway.runtime.runtime import FastAgentRuntime
from pallas_gateway.runtime.settings import provider_addresses

KEY = "sk-hunter2"
OPENAI, GROQ = "https://api.openai.com/v1", "https://api.groq.com/openai/v1"
GOOGLE, OLLAMA = "https://generativelanguage.googleapis.com", "http://localhost:11434/v1"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and an environment that knows no provider."""
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    for provider in Provider:
        monkeypatch.delenv(ProviderKeyManager.get_env_key_name(provider.config_name) or "", raising=False)
    for variable in provider_addresses.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)


def found(config: Mapping[str, Any] | None = None, *, secrets: Mapping[str, Any] | None = None) -> list[LlmProvider]:
    if config is not None:
        Path("fastagent.config.yaml").write_text(yaml.safe_dump(dict(config)))
    if secrets is not None:
        Path("fastagent.secrets.yaml").write_text(yaml.safe_dump(dict(secrets)))
    return list(FastAgentRuntime(config_file=None).llm_providers())


def brief(providers: list[LlmProvider]) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(one.name, one.url, one.key.reveal() if one.key else None, one.model) for one in providers]


def test_a_project_without_keys_has_none() -> None:
    assert found() == []
    assert found({"default_model": "passthrough"}) == []


def test_keys_come_from_the_environment_and_from_the_secrets_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert brief(found({"default_model": "anthropic.claude-x"}, secrets={"anthropic": {"api_key": KEY}})) == [
        ("anthropic", "https://api.anthropic.com", KEY, "claude-x"),
        ("openai", "https://api.openai.com/v1", "sk-openai", None),
    ]


def test_a_key_is_in_no_repr() -> None:
    assert KEY not in repr(found({"default_model": "openai.gpt-4o", "openai": {"api_key": KEY}}))


def test_a_placeholder_of_an_unset_variable_is_no_key_and_no_address() -> None:
    block = {"api_key": "${NO_SUCH_VARIABLE}", "base_url": "${NO_SUCH_VARIABLE}"}
    assert brief(found({"default_model": "openai.gpt-4o", "openai": block})) == [("openai", OPENAI, None, "gpt-4o")]


@pytest.mark.parametrize(
    ("configured", "variable", "url"),
    [
        (None, None, "https://api.openai.com/v1"),
        (None, "", "https://api.openai.com/v1"),
        (None, "http://local:8080/v1", "http://local:8080/v1"),
        ("", "", "https://api.openai.com/v1"),
        ("${OPENAI_BASE_URL}", "", "https://api.openai.com/v1"),
        ("${OPENAI_BASE_URL}", None, "https://api.openai.com/v1"),
        ("${OPENAI_BASE_URL}", "http://local:8080/v1", "http://local:8080/v1"),
        ("http://other/v1/", "http://local:8080/v1", "http://other/v1/"),
    ],
)
def test_the_address_is_the_one_that_fast_agents_client_takes(
    configured: str | None, variable: str | None, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", variable)
    block = {"api_key": KEY} if configured is None else {"api_key": KEY, "base_url": configured}
    assert brief(found({"default_model": "openai.gpt-4o", "openai": block})) == [("openai", url, KEY, "gpt-4o")]


@pytest.mark.parametrize(
    ("config", "provider"),
    [
        (
            {"default_model": "generic.local-x", "generic": {"api_key": KEY, "base_url": "http://local/v1"}},
            ("generic", "http://local/v1", KEY, "local-x"),
        ),
        ({"default_model": "generic.local-x"}, ("generic", OLLAMA, "ollama", "local-x")),
        ({"default_model": "generic.local-x", "generic": {"api_key": KEY}}, ("generic", OLLAMA, KEY, "local-x")),
        ({"default_model": "groq.llama-x", "groq": {"api_key": KEY}}, ("groq", GROQ, KEY, "llama-x")),
        ({"default_model": "groq.llama-x"}, ("groq", GROQ, None, "llama-x")),
        ({"default_model": "openai.gpt-4o?reasoning=high"}, ("openai", OPENAI, None, "gpt-4o")),
        ({"default_model": "google.gemini-x"}, ("google", GOOGLE, None, "gemini-x")),
        (
            {"default_model": "azure.gpt-x", "azure": {"api_key": KEY, "resource_name": "mine"}},
            ("azure", "https://mine.openai.azure.com", KEY, "gpt-x"),
        ),
        ({"default_model": "bedrock.x"}, ("bedrock", None, None, "x")),
        # The Responses API takes what `openai` says where it has no section of its own
        (
            {"default_model": "responses.gpt-x", "openai": {"api_key": KEY, "base_url": "http://local/v1"}},
            ("responses", "http://local/v1", KEY, "gpt-x"),
        ),
        (
            {"default_model": "$system.fast", "model_references": {"system": {"fast": "openai.gpt-4o"}}},
            ("openai", "https://api.openai.com/v1", None, "gpt-4o"),
        ),
    ],
)
def test_the_default_models_provider_is_the_active_one_also_without_a_key(
    config: Mapping[str, Any], provider: tuple[Any, ...]
) -> None:
    assert brief(found(config)) == [provider]


@pytest.mark.parametrize(
    ("config", "api"),
    [
        ({"default_model": "google.gemini-x"}, "google"),
        ({"default_model": "google.gemini-x", "google": {"vertex_ai": {"enabled": True}}}, None),
        ({"default_model": "azure.gpt-x"}, "azure"),
        ({"default_model": "azure.gpt-x", "azure": {"use_default_azure_credential": True}}, None),
        ({"default_model": "bedrock.x"}, None),
        ({"default_model": "codexresponses.gpt-x"}, None),
    ],
)
def test_a_provider_nobody_can_ask_has_no_api(config: Mapping[str, Any], api: str | None) -> None:
    assert [one.api for one in found(config)] == [api]


def test_every_other_provider_with_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    keys = {name: {"api_key": KEY} for name in ("xai", "google", "groq", "responses", "generic")}
    assert brief(found({"default_model": "passthrough", **keys})) == [
        ("google", "https://generativelanguage.googleapis.com", KEY, None),
        ("groq", "https://api.groq.com/openai/v1", KEY, None),
        ("xai", "https://api.x.ai/v1", KEY, None),
        ("hf", "https://router.huggingface.co/v1", "hf_token", None),
    ]


@pytest.mark.parametrize(
    ("config", "key_url"),
    [
        ({"openrouter": {"api_key": KEY}}, "https://openrouter.ai/api/v1/key"),
        ({"openrouter": {"api_key": KEY, "base_url": "http://proxy/v1"}}, None),
        ({"hf": {"api_key": KEY}}, "https://huggingface.co/api/whoami-v2"),
        ({"xai": {"api_key": KEY}}, None),
    ],
)
def test_a_provider_that_shows_its_models_to_anyone_is_asked_of_its_key(
    config: Mapping[str, Any], key_url: str | None
) -> None:
    assert [one.key_url for one in found(config)] == [key_url]


def test_azure_is_asked_in_the_version_that_calls_use() -> None:
    config = {"default_model": "azure.gpt-x", "azure": {"api_key": KEY, "resource_name": "mine"}}
    assert [one.api_version for one in found(config)] == [llm_azure.DEFAULT_AZURE_API_VERSION]
    config["azure"] = {"api_key": KEY, "resource_name": "mine", "api_version": "2025-01-01"}
    assert [one.api_version for one in found(config)] == ["2025-01-01"]


def test_the_model_may_come_from_the_environment_as_in_fast_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_AGENT_MODEL", "openai.gpt-4o")
    assert [one.model for one in found({})] == ["gpt-4o"]


def test_a_named_file_is_read_instead(tmp_path: Path) -> None:
    other = tmp_path / "other" / "fastagent.config.yaml"
    other.parent.mkdir()
    other.write_text(yaml.safe_dump({"default_model": "openai.gpt-4o"}))
    assert [one.model for one in FastAgentRuntime(config_file=other).llm_providers()] == ["gpt-4o"]


@pytest.mark.parametrize(
    "content", ["default_model: nobody-knows-this", "logger: [", "openai: {api_key: [sk-hunter2]}"]
)
def test_settings_that_cannot_be_read_are_a_warning_without_the_values(
    content: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path("fastagent.config.yaml").write_text(content)
    assert found() == []
    assert [record.message for record in caplog.records] == ["LLM providers not checked"]
    assert KEY not in repr(vars(caplog.records[0]))


def test_reading_leaves_fast_agents_own_settings_alone() -> None:
    before = fast_agent_config._settings
    found({"default_model": "openai.gpt-4o"})
    assert fast_agent_config._settings is before


@pytest.mark.parametrize(
    ("model", "base_url", "is_elsewhere"),
    [
        ("openai.gpt-x", None, False),
        ("openai.gpt-x", "https://api.openai.com/v1/", False),
        ("openai.gpt-x", "http://127.0.0.1:8080/v1", True),
        ("anthropic.claude-x", "https://api.anthropic.com/v1", False),
        ("anthropic.claude-x", "http://models.example:8080", True),
        ("google.gemini-x", "http://models.example:8080", True),
    ],
)
def test_a_model_server_at_another_host_is_not_the_providers_own(
    model: str, base_url: str | None, is_elsewhere: bool
) -> None:
    section = {"api_key": KEY, **({"base_url": base_url} if base_url else {})}
    [active] = found({"default_model": model, model.partition(".")[0]: section})
    assert active.is_elsewhere is is_elsewhere
