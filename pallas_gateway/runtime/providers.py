"""Which LLM providers a project has set up, and which of them its default model makes the active one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from fast_agent.core.model_resolution import resolve_model_spec
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.identity.secret import Secret
from pallas_gateway.runtime.ports import LlmProvider

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fast_agent.config import Settings

# Where each provider is when no base_url is configured: a variable that its client reads, and its own address.
_ADDRESSES: Mapping[str, tuple[str, str]] = {
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "responses": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "generic": ("GENERIC_BASE_URL", "http://localhost:11434/v1"),
    "openrouter": ("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
}
_LIKE_OPENAI = {"openai", "responses", "generic", "openrouter", "groq", "deepseek", "moonshot", "zai", "aliyun"}
_ALWAYS_ASKED = ("anthropic", "openai")
_NO_KEY_NEEDED = "ollama"
"""What fast-agent sends to a `generic` server without a key."""


def llm_providers(settings: Settings) -> tuple[LlmProvider, ...]:
    """The active provider, and those of Anthropic and OpenAI that have a key."""
    active = _active(settings)
    others = [_provider(name, settings) for name in _ALWAYS_ASKED if active is None or name != active.name]
    return (*((active,) if active else ()), *(other for other in others if other.key is not None))


def _active(settings: Settings) -> LlmProvider | None:
    """The provider of the default model; None without one, and for fast-agent's own test models.

    Raises:
        ModelConfigError: nobody knows this model.
    """
    found = resolve_model_spec(None, default_model=settings.default_model, model_references=settings.model_references)
    if found.model is None:
        return None
    resolved = ModelFactory.resolve_model_spec(found.model)
    if resolved.provider is Provider.FAST_AGENT:
        return None
    return _provider(resolved.provider.config_name, settings, model=resolved.wire_model_name)


def _provider(name: str, settings: Settings, *, model: str | None = None) -> LlmProvider:
    block = getattr(settings, name, None)
    key = _key(name, settings) if _api(name) else None
    headers = getattr(block, "default_headers", None) or {}
    return LlmProvider(name, _api(name), _url(name, block), Secret(key) if key else None, model, dict(headers))


def _api(name: str) -> Literal["anthropic", "openai"] | None:
    if name == "anthropic":
        return "anthropic"
    return "openai" if name in _LIKE_OPENAI else None


def _key(name: str, settings: Settings) -> str | None:
    # Not `get_optional_api_key`: for some providers it looks into keyrings, or logs in.
    configured = ProviderKeyManager.get_config_file_key(name, settings) or ProviderKeyManager.get_env_var(name)
    return configured or (_NO_KEY_NEEDED if name == "generic" else None)


def _url(name: str, block: Any) -> str | None:
    """Where fast-agent's client of this provider sends its requests; None if that cannot be told."""
    configured: str | None = getattr(block, "base_url", None)
    if configured:
        return configured
    if name == "generic" and block is not None:
        return None
    variable, own = _ADDRESSES.get(name, ("", None))
    return os.environ.get(variable) or own
