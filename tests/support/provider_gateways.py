"""A gateway whose one agent uses a provider of models that speaks its own wire format, on loopback."""

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, override

import pytest

from tests.support.clients import MODERN_VERSION, RawCall
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.providers.google_login import TOKEN_PATH, write_service_account
from tests.support.providers.provider import ALL_KINDS, Dialect, ScriptedProvider, scripted_provider
from tests.support.scripted_llm import Script, Turn
from tests.support.watching import calling

type Sample = tuple[str, frozenset[tuple[str, str]]]  # of a metric: its name and its labels

KEY = "key-of-this-provider-4711"
AGENTS = ("solo", "brief", "bare", "seeing", "impatient")
SEEING = {"vision": True, "documents": True}
DELTAS = {"progressToken": "token-1", "pallas/stream": "delta", "io.modelcontextprotocol/logLevel": "info"}


def codex_token(name: str) -> str:
    """A token as Codex has them: fast-agent reads the account from its claims."""
    claims = {"https://api.openai.com/auth": {"chatgpt_account_id": "account-1"}, "name": name}
    return f"eyJhbGciOiJub25lIn0.{urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


@dataclass(frozen=True)
class Provider:
    """One of fast-agent's providers, with a model. `config` and `environ` may hold `{url}`."""

    name: str
    model: str
    dialect: Dialect | None  # None: chat completions
    config: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    section: str = ""  # of fastagent.config.yaml, where it is not the name
    seeing: str = ""  # a model that takes images, where `model` takes none
    key: str = KEY
    more: Mapping[str, Any] = field(default_factory=dict)  # config without `{url}`
    logs_in: bool = False  # to Google, with a service account
    in_threads: bool = False  # its library waits for answers in threads

    @override
    def __str__(self) -> str:
        """Name the test by it."""
        return self.name

    @property
    def wire_model(self) -> str:
        """The model as its server names it."""
        return self.model.partition(".")[2].partition("?")[0]

    @property
    def patience(self) -> float:
        """The seconds that `impatient` waits for the model; a clock that is hastened is not that of threads."""
        return 0.5 if self.in_threads else 5

    @property
    def kinds(self) -> frozenset[str]:
        """The parts of `Usage` that its wire format reports."""
        return self.dialect.kinds if self.dialect else ALL_KINDS


@dataclass(frozen=True)
class Served:
    """A running gateway with the agent `solo`, its provider, and its downstream `tools`."""

    provider: Provider
    gateway: Running
    llm: ScriptedProvider
    tools: StatelessDownstream
    before: Mapping[Sample, float] = field(default_factory=dict)  # the metrics when the test began

    @property
    def url(self) -> str:
        return self.gateway.url("solo")

    @property
    def outcomes(self) -> tuple[float, float]:
        """Calls of all agents that were answered, and that failed, as the metric counts them."""
        ok, error = (
            sum(self.counted("pallas_send_message_total", agent=agent, outcome=outcome) for agent in AGENTS)
            for outcome in ("ok", "error")
        )
        return ok, error

    def counted(self, name: str, **labels: str) -> float:
        return self.gateway.metric(name, **labels) - self.before.get((name, frozenset(labels.items())), 0.0)

    @asynccontextmanager
    async def in_flight(self, message: str = "hi", *, agent: str = "solo") -> AsyncGenerator[RawCall]:
        async with calling(self.gateway.url(agent), message, version=MODERN_VERSION, meta=DELTAS) as (_, call):
            yield call

    @asynccontextmanager
    async def playing(self, script: Script | Sequence[Turn]) -> AsyncGenerator["Served"]:
        """One test's use of a gateway that several share: its own script, requests and counts."""
        self.llm.restart(script)
        self.tools.recorder.clear()
        yield replace(self, before=_samples(self.gateway))
        await until_idle(self.gateway)
        assert self.llm.surprises == []


@asynccontextmanager
async def serving(
    path: Path,
    provider: Provider,
    script: Script | Sequence[Turn],
    *,
    params: str = "",
    servers: Sequence[str] = ("tools",),
    port: int = 0,
    **settings: Any,
) -> AsyncGenerator[Served]:
    """Serve; `params` are request parameters of the agent, as in its decorator."""
    agents = {"solo": _agent(provider.model, params, settings, servers=servers)}
    async with _serving(path, provider, agents, script, port=port) as served:
        yield served


@asynccontextmanager
async def serving_all(path: Path, provider: Provider) -> AsyncGenerator[Served]:
    """Serve for many tests (`Served.playing`): `solo`, `seeing` with a model for images, and `impatient`."""
    agents = {
        "solo": _agent(provider.model),
        "brief": _agent(provider.model, settings={"max_iterations": 1}),
        "bare": _agent(provider.model, servers=()),
        "seeing": _agent(provider.seeing or provider.model, settings={"model_capabilities": SEEING}, servers=()),
        "impatient": _agent(provider.model, f"streaming_timeout={provider.patience}", servers=()),
    }
    async with _serving(path, provider, agents, []) as served:
        yield served


def _agent(
    model: str, params: str = "", settings: Mapping[str, Any] | None = None, *, servers: Sequence[str] = ("tools",)
) -> Agent:
    decorator = f"request_params=RequestParams({params})" if params else ""
    return Agent(servers=servers, model=model, decorator=decorator, settings=settings or {})


@asynccontextmanager
async def _serving(
    path: Path, provider: Provider, agents: Mapping[str, Agent], script: Script | Sequence[Turn], *, port: int = 0
) -> AsyncGenerator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        async with scripted_provider(provider.dialect, script, port=port) as llm, stateless_downstream() as tools:
            for name, value in provider.environ.items():
                patch.setenv(name, value.format(url=llm.base_url))
            if provider.logs_in:
                llm.token = KEY
                account = write_service_account(path.parent / f"{path.name}.json", f"{llm.base_url}{TOKEN_PATH}")
                patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
            config = {name: value.format(url=llm.base_url) for name, value in provider.config.items()}
            config |= provider.more
            servers = {"tools": {"transport": "http", "url": tools.url}}
            project = write_project(
                path,
                agents,
                servers=servers,
                fastagent={provider.section or provider.name: config},
                gateway={"database": "sqlite:///threads.db"},
            )
            async with running(project) as gateway:
                yield Served(provider, gateway, llm, tools)
                await until_idle(gateway)


def _samples(gateway: Running) -> dict[Sample, float]:
    families = gateway.gateway.metrics.registry.collect()
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def deltas_of(call: RawCall) -> list[str]:
    """The live text that a call has brought so far."""
    sent = [one["params"] for one in call.notifications if one["method"] == "notifications/message"]
    return [one["data"]["text"] for one in sent if one["data"]["kind"] == "assistant_delta"]
