"""Checks the models that a project names: whether fast-agent can use one, and which known name is nearest."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from fast_agent.core.exceptions import FastAgentError, ModelConfigError
from fast_agent.core.model_resolution import resolve_model_reference, resolve_model_spec
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.config.problems import did_you_mean, nearest
from pallas_gateway.runtime.failures import start_reason

if TYPE_CHECKING:
    from fast_agent.config import Settings

DEFAULT = "default_model"
_VARIABLE = "FAST_AGENT_MODEL"
_UNKNOWN = "Unknown model or provider"
"""The beginning of fast-agent's message about such a model."""
_MOST_SUGGESTIONS = 3
_ALIKE = 0.8


def why_unusable(spec: str, settings: Settings) -> str | None:
    """Return the reason why fast-agent cannot use a model that an agent names, None if it can."""
    try:
        if spec.startswith("$"):
            resolve_model_reference(spec, settings.model_references)  # an unknown one would mean the default
        found = resolve_model_spec(None, model=spec, model_references=settings.model_references)
    except FastAgentError as error:
        return f"model '{spec}' cannot be used: {start_reason(error)}"
    return _why_unresolved(found.model or spec, f"model '{spec}'")


def default_model(settings: Settings) -> str | None:
    """The default model as the project writes it; None if there is none."""
    return _default(settings)[0]


def provider_of(model: str) -> Provider | None:
    """The provider that serves a model, None if fast-agent cannot use the model."""
    try:
        return ModelFactory.resolve_model_spec(model).provider
    except (FastAgentError, ValueError):
        return None


def why_default_unusable(settings: Settings) -> str | None:
    """Return the reason why the default model cannot be used, None if it can be or there is none."""
    model, source = _default(settings)
    if model is None:
        return None
    return _why_unresolved(model, f"{_VARIABLE if source and _VARIABLE in source else 'model'} '{model}'")


def in_settings(place: tuple[str, str]) -> str:
    """Return a problem at a key of fast-agent's files as a clause."""
    # Not `key: clause`, which for a key like `client_secret` would look like the secret itself.
    return f"in {place[0]} of fastagent.config.yaml, {place[1]}"


def near_model(name: str) -> str | None:
    """A model that fast-agent knows with almost the same name."""
    return _nearest_model(name, tuple(ModelDatabase.list_models()))


@lru_cache(maxsize=64)  # the agents of a project use few models
def _nearest_model(name: str, known: tuple[str, ...]) -> str | None:
    return nearest(name, known, likeness=_ALIKE)


def _default(settings: Settings) -> tuple[str | None, str | None]:
    found = resolve_model_spec(None, default_model=settings.default_model, model_references=settings.model_references)
    return found.model, found.source


def _why_unresolved(model: str, what: str) -> str | None:
    try:
        ModelFactory.resolve_model_spec(model)
    except ModelConfigError as error:
        if not error.message.startswith(_UNKNOWN):
            return f"{what} cannot be used: {start_reason(error)}"
        return f"{what} cannot be used: {_why_unknown(model)}"
    except (FastAgentError, ValueError) as error:
        return f"{what} cannot be used: {start_reason(error)}"
    return None


def _why_unknown(model: str) -> str:
    """Name the unknown part of a model, with the nearest known names."""
    provider, separator, _ = model.partition(".")
    providers = [one.config_name for one in Provider]
    suggestions = get_close_matches(model.partition("?")[0], _known_names(), n=_MOST_SUGGESTIONS)
    if separator and nearest(provider, providers, likeness=_ALIKE) is not None:
        such_as = f"; models are named such as {', '.join(suggestions)}" if suggestions else ""
        return f"fast-agent knows no provider '{provider}'{did_you_mean(provider, providers)}{such_as}"
    either = f" (did you mean {' or '.join(map(repr, suggestions))}?)" if suggestions else ""
    return f"fast-agent knows no such model or provider{either}; write provider.model, such as openai.gpt-4o"


def _known_names() -> set[str]:
    """Models with and without their provider, and fast-agent's short names."""
    names = {*ModelFactory.get_runtime_presets()}
    for model in ModelDatabase.list_models():
        names.add(model)
        if (provider := ModelDatabase.get_default_provider(model)) is not None:
            names.add(f"{provider.config_name}.{model}")
    return names
