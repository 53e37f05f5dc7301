"""Loads fast-agent's provider classes, in a thread before an agent starts.

A provider's library takes up to half a second to import, and as long to make its schemas at the first answer. The calls
of other agents must not wait for that.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.changes.change import LOADED, Fault
from pallas_gateway.changes.registry import registry
from pallas_gateway.cloud_logins import google_identity
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import AgentStartError, ProviderError
from pallas_gateway.runtime.settings.model_names import default_model, provider_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent

FAULTS = (
    Fault(
        title="Libraries of providers are imported on the event loop",
        text="""\
Symptom: the import takes 0.5 s when the first agent of a provider starts, and the schemas 0.3 s at the first answer.

Repair: a thread does both before the agent starts.
""",
        library="fast_agent",
        gone_when=(
            "fast-agent imports providers outside the event loop, and the libraries build their schemas when they are"
            " imported"
        ),
        test="tests/e2e/test_provider_lag.py",
    ),
)


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
            registry().install(LOADED, ())  # what the library imports for a request
        uses_vertex = ProviderKeyManager._google_vertex_enabled(settings)
        if provider is Provider.ANTHROPIC_VERTEX or (provider is Provider.GOOGLE and uses_vertex):
            _log_in_to_google(provider)


def _log_in_to_google(provider: Provider) -> None:
    try:
        google_identity()
    except ProviderError as error:
        raise AgentStartError(f"models of {provider.display_name} cannot be used: {error}") from error
