"""The LLM providers that a project has configured, and the active one, which its default model uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fast_agent.core.model_resolution import resolve_model_spec
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.identity.secret import Secret
from pallas_gateway.runtime.protocols import LlmProvider
from pallas_gateway.runtime.settings.provider_addresses import address_of, own_address, section_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fast_agent.config import Settings

    from pallas_gateway.runtime.protocols import Api

_APIS: Mapping[str, Api] = {
    "anthropic": "anthropic",
    "google": "google",
    "azure": "azure",
    **dict.fromkeys(
        (
            *("openai", "responses", "generic", "openrouter", "groq", "deepseek", "moonshot", "zai", "aliyun"),
            *("xai", "metaai", "openresponses", "googleoai", "hf"),
        ),
        "openai",
    ),
}
_ONLY_ACTIVE = {"responses", "googleoai", "generic"}
"""Asked only if active: two reach OpenAI and Google by another API, the third requires no key."""
_NO_KEY_NEEDED = "ollama"
"""The key that fast-agent sends to a `generic` server if none is configured."""
_AZURE_API_VERSION = "2024-10-21"
"""fast-agent's, where none is configured."""
_OF_ITS_KEY = {"openrouter": "https://openrouter.ai/api/v1/key", "hf": "https://huggingface.co/api/whoami-v2"}
"""Addresses that check the key, for providers whose list of models requires none."""


def llm_providers(settings: Settings) -> tuple[LlmProvider, ...]:
    """The active provider, and all others that have a key."""
    active = _active(settings)
    names = (name for name in _APIS if name not in _ONLY_ACTIVE and (active is None or name != active.name))
    asked = {(active.url, active.key)} if active else set()  # `openai` and `responses` may be the same server
    others = [one for one in (_provider(name, settings) for name in names) if (one.url, one.key) not in asked]
    return (*((active,) if active else ()), *(other for other in others if other.key is not None))


def providers_of(models: Iterable[tuple[str, str]], settings: Settings) -> tuple[LlmProvider, ...]:
    """The providers of models that agents use, each model as (provider, name at the provider)."""
    asked = sorted({one for one in models if one[0] != Provider.FAST_AGENT.config_name})
    return tuple(_provider(name, settings, model=model) for name, model in asked)


def _active(settings: Settings) -> LlmProvider | None:
    """The provider of the default model; None without one, and for fast-agent's own test models.

    Raises:
        ModelConfigError: fast-agent does not know the model.
    """
    found = resolve_model_spec(None, default_model=settings.default_model, model_references=settings.model_references)
    if found.model is None:
        return None
    resolved = ModelFactory.resolve_model_spec(found.model)
    if resolved.provider is Provider.FAST_AGENT:
        return None
    return _provider(resolved.provider.config_name, settings, model=resolved.wire_model_name)


def _provider(name: str, settings: Settings, *, model: str | None = None) -> LlmProvider:
    section = section_of(name, settings)
    api = None if _logs_in(section) else _APIS.get(name)
    key = _key(name, settings) if api is not None else None
    url = _azure_address(section) if name == "azure" else address_of(name, settings)
    return LlmProvider(
        name,
        api,
        url,
        Secret(key) if key else None,
        model,
        dict(getattr(section, "default_headers", None) or {}),
        key_url=_OF_ITS_KEY.get(name) if url == own_address(name) else None,
        api_version=getattr(section, "api_version", None) or _AZURE_API_VERSION if name == "azure" else None,
        is_elsewhere=_is_elsewhere(name, url),
    )


def _is_elsewhere(name: str, url: str | None) -> bool:
    own = own_address(name)
    return own is not None and url is not None and urlsplit(url).hostname != urlsplit(own).hostname


def _logs_in(section: Any) -> bool:
    """True for Google's Vertex AI and for Azure with an identity of its cloud, whose logins preflight does not make."""
    vertex = getattr(section, "vertex_ai", None) or {}
    is_vertex = vertex.get("enabled") if isinstance(vertex, dict) else getattr(vertex, "enabled", False)
    return bool(is_vertex or getattr(section, "use_default_azure_credential", False))


def _key(name: str, settings: Settings) -> str | None:
    # Not `get_optional_api_key`, which reads keyrings or logs in for some providers.
    configured = ProviderKeyManager.get_config_file_key(name, settings) or ProviderKeyManager.get_env_var(name)
    return configured or (_NO_KEY_NEEDED if name == "generic" else None)


def _azure_address(section: Any) -> str | None:
    resource = getattr(section, "resource_name", None)
    own = f"https://{resource}.openai.azure.com" if resource else None
    return getattr(section, "base_url", None) or own
