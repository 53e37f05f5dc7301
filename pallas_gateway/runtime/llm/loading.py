"""Loads and repairs fast-agent's provider classes, in a thread before an agent starts.

A provider's library takes up to half a second to import, and as long to make its schemas at the first answer. The calls
of other agents must not wait for that.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from fast_agent.llm import model_factory
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.calls import provider_failures
from pallas_gateway.changes.change import LOADED
from pallas_gateway.changes.registry import registry
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import AgentStartError, ProviderError
from pallas_gateway.runtime.llm import attempts, client_cache, endings, openrouter
from pallas_gateway.runtime.settings.model_names import default_model, is_bedrock_id, provider_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (ModelFactory, "_load_provider_class", ("provider",)),
    (ModelFactory, "_bedrock_pattern_matches", ("model_name",)),
    (model_factory, "import_module", ("name",)),
    (ProviderKeyManager, "_google_vertex_enabled", ("config",)),
)
_COPILOT = "fast_agent.llm.provider.copilot."
_loading = Lock()
_loaded: set[Provider] = set()


def prepare() -> None:
    """Make fast-agent load classes with their repairs."""
    factories: Any = model_factory
    import_module = factories.import_module

    def import_repaired(name: str) -> Any:
        module = import_module(name)
        if name.startswith(_COPILOT):  # that method does not load its classes
            for each in [one for one in vars(module).values() if getattr(one, "__module__", None) == name]:
                _repaired(each)
            registry().install(LOADED)
        return module

    factories.import_module = import_repaired
    ModelFactory._bedrock_pattern_matches = staticmethod(is_bedrock_id)  # type: ignore[method-assign]


def load_with_changes(provider: Provider, load: Callable[[Provider], Any]) -> Any:
    """Return a provider's class by `load`; make the changes of its library when it has been imported."""
    if provider in _loaded:  # without the lock, which a thread may hold that imports another library
        return load(provider)
    with _loading:
        llm_class = _repaired(load(provider))
        registry().install(LOADED)
        _loaded.add(provider)
    return llm_class


async def load_providers(fast: FastAgent, settings: Settings, others: Iterable[str]) -> None:
    """Load the providers of all models that agents of the module use, and of `others`.

    If a provider cannot be loaded, the start of its agent fails with the reason.

    Raises:
        AgentStartError: `start_failed`; a provider requires a login of its cloud, and there is none.
    """
    named = {data["config"].model or default_model(settings) for data in fast.agents.values()}
    providers = {provider_of(model) for model in {*named, *others} if model}
    await begin(partial(_load, providers, settings), name="pallas-load-providers")


def _load(providers: Iterable[Provider | None], settings: Settings) -> None:
    from pallas_gateway.runtime.llm import warm_up  # noqa: PLC0415  needed with the first model only

    for provider in filter(None, providers):
        with suppress(Exception):
            ProviderKeyManager.serve_oauth_requires_request_token(provider.config_name)  # imports a server for some
            warm_up.warm_up(cast("type", ModelFactory._load_provider_class(provider)))
        uses_vertex = ProviderKeyManager._google_vertex_enabled(settings)
        if provider is Provider.ANTHROPIC_VERTEX or (provider is Provider.GOOGLE and uses_vertex):
            _log_in_to_google(provider)


def _log_in_to_google(provider: Provider) -> None:
    from pallas_gateway.runtime.llm.identities import google_identity  # noqa: PLC0415

    try:
        google_identity()
    except ProviderError as error:
        raise AgentStartError(f"models of {provider.display_name} cannot be used: {error}") from error


def _repaired(llm_class: Any) -> Any:
    from pallas_gateway.runtime.llm import (  # noqa: PLC0415  needed with the first model only
        anthropic_vertex,
        google,
        keys,
        logins,
        reasoning,
        responses,
        schemas,
    )

    for each in inspect.getmro(cast("type", llm_class)):
        module = sys.modules[each.__module__]
        if hasattr(module, "AsyncOpenAI"):
            endings.note_ends()
        client_cache.keep_clients_of(module)
        provider_failures.explain_failures_of(module)
        attempts.log_repeats_of_libraries()
        endings.require_ends(each)
        endings.keep_equal_texts(each)
        for repairs in (keys, schemas, google, openrouter, reasoning, responses, logins):
            repairs.prepare(each)
        anthropic_vertex.prepare(each)
    return llm_class
