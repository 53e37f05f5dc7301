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
from tests.support.providers.provider import scripted_provider

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
    """One of fast-agent's providers, with a model. `config` and `environ` may hold `{url}`."""

    name: str
    model: str
    dialect: Dialect | None  # None: chat completions
    config: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    section: str = ""  # of fastagent.config.yaml, where it is not the name

    def __str__(self) -> str:
        """Name the test by it."""
        return self.name


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
            project = write_project(
                path, {"solo": agent}, servers=servers, fastagent={provider.section or provider.name: config}
            )
            async with running(project) as gateway:
                yield Served(gateway, llm, tools)
                await until_idle(gateway)


def deltas_of(call: RawCall) -> list[str]:
    """The live text that a call has brought so far."""
    sent = [one["params"] for one in call.notifications if one["method"] == "notifications/message"]
    return [one["data"]["text"] for one in sent if one["data"]["kind"] == "assistant_delta"]
