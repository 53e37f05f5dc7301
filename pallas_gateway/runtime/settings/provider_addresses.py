"""The address of each LLM provider, the same for calls and for preflight.

fast-agent's classes differ in when they read a provider's `*_BASE_URL` variable, and in how they use an address without
a path. Here the variable is read wherever the files have no address.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fast_agent.config import Settings

# The variable that the provider's client reads, and the provider's default address.
_ADDRESSES: Mapping[str, tuple[str | None, str]] = {
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "responses": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "generic": ("GENERIC_BASE_URL", "http://localhost:11434/v1"),
    "openrouter": ("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    "google": ("GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
    "googleoai": (None, "https://generativelanguage.googleapis.com/v1beta/openai"),
    "xai": ("XAI_BASE_URL", "https://api.x.ai/v1"),
    "metaai": ("META_AI_BASE_URL", "https://api.meta.ai/v1"),
    "openresponses": ("OPENRESPONSES_BASE_URL", "http://localhost:8080/v1"),
    "hf": (None, "https://router.huggingface.co/v1"),
    "groq": (None, "https://api.groq.com/openai/v1"),
    "deepseek": (None, "https://api.deepseek.com"),
    "moonshot": (None, "https://api.moonshot.ai/v1"),
    "zai": (None, "https://api.z.ai/api/paas/v4/"),
    "aliyun": (None, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
}
_SECTIONS = {"responses": ("responses", "openai"), "googleoai": ("google",)}
"""Sections of the settings by provider; the first that exists counts. Other providers: the section of their name."""
_VERSION = "/v1"
VARIABLES = tuple(dict.fromkeys(variable for variable, _ in _ADDRESSES.values() if variable is not None))


def section_of(name: str, settings: Settings) -> Any:
    """The provider's section of the settings, None if there is none."""
    sections = (getattr(settings, section, None) for section in _SECTIONS.get(name, (name,)))
    return next((section for section in sections if section is not None), None)


def own_address(name: str) -> str | None:
    """The provider's default address, None if it has none."""
    return _ADDRESSES.get(name, (None, None))[1]


def address_variable(name: str) -> str | None:
    """The variable that holds a provider's address, None if there is none."""
    return _ADDRESSES.get(name, (None, None))[0]


def address_of(name: str, settings: Settings) -> str | None:
    """Return the URL to which fast-agent's client of this provider sends requests; None if it is unknown."""
    configured: str | None = getattr(section_of(name, settings), "base_url", None)
    return configured or _of_environment(name) or own_address(name)


def settle(settings: Settings) -> None:
    """Write the addresses into the settings that fast-agent would take from elsewhere, or read wrongly."""
    for name in _ADDRESSES:
        section: Any = getattr(settings, name, None)
        if not hasattr(section, "model_fields_set"):  # no section, or one that fast-agent does not know
            continue
        if not section.base_url or "base_url" not in section.model_fields_set:  # xAI's section has a default
            # Without an address, the requests of a `generic` model and its key would go to OpenAI.
            section.base_url = _of_environment(name) or (own_address(name) if name == "generic" else section.base_url)
    _without_version(settings)


def _of_environment(name: str) -> str | None:
    variable = address_variable(name)
    return os.environ.get(variable) or None if variable is not None else None


def _without_version(settings: Settings) -> None:
    """Remove `/v1`, which Anthropic's client adds; fast-agent would also remove digits of the port before it."""
    variable = "ANTHROPIC_BASE_URL"
    if url := os.environ.get(variable):
        os.environ[variable] = _unversioned(url)
    if settings.anthropic is not None and settings.anthropic.base_url:
        settings.anthropic.base_url = _unversioned(settings.anthropic.base_url)


def _unversioned(url: str) -> str:
    return url.rstrip("/").removesuffix(_VERSION)
