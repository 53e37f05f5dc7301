"""A gateway whose one agent uses a provider of models that speaks its own wire format, on loopback."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.watching import calling
from tests.support.clients import MODERN_VERSION
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.providers.anthropic import Anthropic
from tests.support.providers.bedrock import Bedrock
from tests.support.providers.gemini import Gemini
from tests.support.providers.provider import scripted_provider
from tests.support.providers.responses import Responses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from tests.support.clients import RawCall
    from tests.support.downstreams import StatelessDownstream
    from tests.support.gateway import Running
    from tests.support.providers.provider import Dialect, ScriptedProvider
    from tests.support.scripted_llm import Script, Turn

KEY = "key-of-this-provider-4711"
DELTAS = {"progressToken": "token-1", "pallas/stream": "delta", "io.modelcontextprotocol/logLevel": "info"}


@dataclass(frozen=True)
class Provider:
    """One entry of fast-agent's providers. `config` and `environ` may hold `{url}`."""

    name: str
    model: str
    dialect: Dialect | None  # None: chat completions
    config: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the test by it."""
        return self.name


GEMINI = Provider("google", "google.gemini-2.5-flash", Gemini(), {"api_key": KEY, "base_url": "{url}"})
ANTHROPIC = Provider("anthropic", "anthropic.claude-haiku-4-5", Anthropic(), {"api_key": KEY, "base_url": "{url}"})
BEDROCK = Provider(
    "bedrock",
    "bedrock.amazon.nova-lite-v1:0",
    Bedrock(),
    {"region": "eu-west-1"},
    {
        "AWS_ACCESS_KEY_ID": "AKIAOFTHETESTS000000",
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{url}",
        "AWS_CONFIG_FILE": "none",
        "AWS_SHARED_CREDENTIALS_FILE": "none",
        "AWS_EC2_METADATA_DISABLED": "true",
    },
)
GENERIC = Provider("generic", "generic.test-model", None, {"api_key": KEY, "base_url": "{url}/v1"})
OPENAI = Provider("openai", "openai.gpt-4.1", None, {"api_key": KEY, "base_url": "{url}/v1"})
AZURE = Provider(
    "azure", "azure.deployment", None, {"api_key": KEY, "base_url": "{url}", "azure_deployment": "deployment"}
)
OPENROUTER = Provider("openrouter", "openrouter.vendor/unheard-of", None, {"api_key": KEY, "base_url": "{url}/v1"})
RESPONSES = Provider("responses", "responses.gpt-4.1", Responses(), {"api_key": KEY, "base_url": "{url}/v1"})
EVERY = (GENERIC, OPENAI, RESPONSES, ANTHROPIC, GEMINI, BEDROCK)
each_provider = pytest.mark.parametrize("provider", EVERY, ids=str)


@dataclass(frozen=True)
class Served:
    """A running gateway with the agent `solo`, its provider, and its downstream `tools`."""

    gateway: Running
    llm: ScriptedProvider
    tools: StatelessDownstream

    @property
    def url(self) -> str:
        """The agent's MCP endpoint."""
        return self.gateway.url("solo")

    @asynccontextmanager
    async def in_flight(self, message: str = "hi") -> AsyncGenerator[RawCall]:
        """A call that asks for live text and progress."""
        async with calling(self.url, message, version=MODERN_VERSION, meta=DELTAS) as (_, call):
            yield call


@asynccontextmanager
async def serving(
    path: Path,
    provider: Provider,
    script: Script | Sequence[Turn],
    *,
    params: str = "",
    port: int = 0,
    **settings: Any,
) -> AsyncGenerator[Served]:
    """Serve; `params` are request parameters of the agent, as in its decorator."""
    with pytest.MonkeyPatch.context() as patch:
        async with scripted_provider(provider.dialect, script, port=port) as llm, stateless_downstream() as tools:
            for name, value in provider.environ.items():
                patch.setenv(name, value.format(url=llm.base_url))
            decorator = f"request_params=RequestParams({params})" if params else ""
            agent = Agent(servers=["tools"], model=provider.model, decorator=decorator, settings=settings)
            config = {name: value.format(url=llm.base_url) for name, value in provider.config.items()}
            servers = {"tools": {"transport": "http", "url": tools.url}}
            project = write_project(path, {"solo": agent}, servers=servers, fastagent={provider.name: config})
            async with running(project) as gateway:
                yield Served(gateway, llm, tools)
                await until_idle(gateway)


def deltas_of(call: RawCall) -> list[str]:
    """The live text that a call has brought so far."""
    sent = [one["params"] for one in call.notifications if one["method"] == "notifications/message"]
    return [one["data"]["text"] for one in sent if one["data"]["kind"] == "assistant_delta"]
