"""Providers of models, loaded as an agent's start loads them: with the changes of their libraries."""

import sys
from typing import Any, cast

from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.changes.change import LOADED
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.llm import warm_up


def load(provider: Provider) -> Any:
    preparation.prepare()
    llm_class = cast("type", ModelFactory._load_provider_class(provider))
    warm_up.warm_up(llm_class)
    registry().install(LOADED)
    return llm_class


def make_client(provider: Provider, **settings: Any) -> Any:
    """Make a client of a provider's library as fast-agent's class does."""
    for each in load(provider).__mro__:
        for name in ("AsyncAzureOpenAI", "AsyncAnthropic", "AsyncOpenAI"):
            if (make := getattr(sys.modules[each.__module__], name, None)) is not None:
                of_azure = {"azure_endpoint": "http://llm.invalid", "api_version": "1"} if "Azure" in name else {}
                return make(**{"api_key": "not-a-key", **of_azure, **settings})
    raise LookupError(provider)


def http_of(client: Any) -> Any:
    """The HTTP client of a client, which may be lent for one turn."""
    inner = client._client
    return getattr(inner, "_client", inner)
