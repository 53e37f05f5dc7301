"""A project written to a folder and its gateway, served in this process on real listeners.

`write_project` writes `agents.yaml`, one module per agent and `fastagent.config.yaml`; `running` serves it.
"""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import pytest
import yaml

from pallas_gateway.calls.call import Call, Reply
from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.core.feature import Feature
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from pallas_gateway.doors.openai.api import OpenAiApi
from pallas_gateway.limits import (
    ConnectionLimits,
    DatabaseLimits,
    GatewayLimits,
    HealthLimits,
    ListingLimits,
    LlmLimits,
    ProgramLimits,
    RuntimeLimits,
)
from pallas_gateway.process.reload import Reloads
from pallas_gateway.process.server import serve
from pallas_gateway.runtime.runtime import FastAgentRuntime
from tests.support.api_types import checked_openai
from tests.support.configuration import load_deployment
from tests.support.patient_gateway import PATIENCE_SECONDS
from tests.support.protocol_messages import checked_answers
from tests.support.scripted_llm import Script, ScriptedLlm, Turn, echo, scripted_llm
from tests.support.waiting import WAIT_SECONDS, eventually

_packages = itertools.count()
McpEndpoint.handle = checked_answers(McpEndpoint.handle)  # type: ignore[method-assign,assignment]
OpenAiApi.__call__ = checked_openai(OpenAiApi.__call__)  # type: ignore[method-assign,assignment]


@dataclass
class Limits:
    """Those of the gateways that a test serves; it may change them while one runs.

    Their stops do not wait for late requests: thousands of gateways stop, few of them with clients. They soon repeat
    requests to models. They wait long for what answers: a machine that stands still for seconds, with the gateway and
    all it asks, is no failure. A test of such a deadline sets it.
    """

    gateway: GatewayLimits = field(
        default_factory=lambda: GatewayLimits(
            connections=ConnectionLimits(last_answers_seconds=0, last_requests_seconds=0),
            database=DatabaseLimits(
                count_seconds=dict.fromkeys(("postgresql", "sqlite"), PATIENCE_SECONDS), use_seconds=PATIENCE_SECONDS
            ),
            health=HealthLimits(probe_seconds=PATIENCE_SECONDS, preflight_seconds=PATIENCE_SECONDS),
        )
    )
    runtime: RuntimeLimits = field(
        default_factory=lambda: RuntimeLimits(
            attach_seconds=PATIENCE_SECONDS,
            listings=ListingLimits(ask_seconds=PATIENCE_SECONDS),
            llm=LlmLimits(first_wait_seconds=0.01),
            programs=ProgramLimits(
                start_seconds=PATIENCE_SECONDS, rehearse_seconds=PATIENCE_SECONDS, list_seconds=PATIENCE_SECONDS
            ),
        )
    )


_limits = [Limits()]


@contextmanager
def limited() -> Iterator[Limits]:
    """Limits for every gateway that is served in the block."""
    _limits.append(limits := Limits())
    try:
        yield limits
    finally:
        _limits.remove(limits)


@dataclass(frozen=True)
class Agent:
    """One agent of a test project.

    `servers` are names in the project's `servers`; `source` replaces the generated module; `decorator` is written into
    `@fast.agent(…)`; `settings` goes into `agents.yaml`.
    """

    servers: Sequence[str] = ()
    model: str | None = None
    source: str | None = None
    decorator: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Project:
    path: Path
    package: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(yaml.safe_load((self.path / "agents.yaml").read_text()))

    def edit(self, change: Callable[[dict[str, Any]], object], file: str = "agents.yaml") -> None:
        document = yaml.safe_load((self.path / file).read_text())
        change(document)
        (self.path / file).write_text(yaml.safe_dump(document, sort_keys=False))

    def write_module(self, name: str, source: str) -> None:
        """Write (or mend) one agent's module."""
        (self.path / self.package / f"{name}.py").write_text(source)


def write_project(
    path: Path,
    agents: Mapping[str, Agent],
    *,
    llm_url: str | None = None,
    servers: Mapping[str, Mapping[str, Any]] | None = None,
    fastagent: Mapping[str, Any] | None = None,
    gateway: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
) -> Project:
    """Write a project to `path`; its modules live in a package of their own, so no two projects share one.

    Args:
        path: an empty folder.
        agents: by name. Without a `model` they use `generic.test-model` if `llm_url` is given, else `passthrough`.
        llm_url: base URL of an OpenAI-compatible server.
        servers: `mcp.servers` of fastagent.config.yaml.
        fastagent: more keys of fastagent.config.yaml.
        gateway: the `gateway` section of agents.yaml; its port is 0 and it has no rounds of health unless given.
        deployment: more top-level keys of agents.yaml.
    """
    package = f"test_project_{os.getpid()}_{next(_packages)}"
    project = Project(path, package)
    (path / package).mkdir(parents=True)
    (path / package / "__init__.py").write_text("")
    for name, agent in agents.items():
        project.write_module(name, agent.source if agent.source is not None else module_source(name, agent))
    config: dict[str, Any] = {"default_model": "generic.test-model" if llm_url else "passthrough"}
    if llm_url:
        config["generic"] = {"api_key": "not-a-key", "base_url": llm_url}
    if servers:
        config["mcp"] = {"servers": {name: dict(server) for name, server in servers.items()}}
    (path / "fastagent.config.yaml").write_text(yaml.safe_dump({**config, **(fastagent or {})}))
    document = {
        "name": "test",
        "namespace": "com.example.test",
        **(deployment or {}),
        "agents": {name: {"module": f"{package}.{name}", **agent.settings} for name, agent in agents.items()},
        "gateway": {"port": 0, "health_seconds": 0, **(gateway or {})},
    }
    (path / "agents.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return project


def declare_project(path: Path, agents: Mapping[str, Mapping[str, Any]], **project: Any) -> Project:
    """Write a project without a Python file: `agents` stand in agents.yaml, `project` is as for `write_project`."""
    written = write_project(path, {}, **project)
    rmtree(path / written.package)
    written.edit(lambda document: document.update(agents={name: dict(agent) for name, agent in agents.items()}))
    return written


def module_source(name: str, agent: Agent) -> str:
    """A plain fast-agent module with one default agent."""
    model = f", model={agent.model!r}" if agent.model else ""
    decorator = f", {agent.decorator}" if agent.decorator else ""
    return f"""
from fast_agent import FastAgent
from fast_agent.types import RequestParams

fast = FastAgent("{name}", parse_cli_args=False)


@fast.agent(
    name="{name}", instruction="You are {name}.", servers={list(agent.servers)!r}, default=True{model}{decorator}
)
async def agent() -> None: ...
"""


def with_code(code: str, agent: Agent, name: str = "user") -> Agent:
    """The agent, whose module begins with this code."""
    return replace(agent, source=f"{code}\n{module_source(name, agent)}")


def module_of(*decorators: str) -> str:
    """A fast-agent module of several agents, each with a decorator that has its name (`agent(name="one")`)."""
    agents = (f"@fast.{one}\nasync def agent{number}() -> None: ...\n" for number, one in enumerate(decorators))
    imports = "from fast_agent import FastAgent\nfrom fast_agent.types import RequestParams\n"
    return "\n\n".join([f'{imports}\nfast = FastAgent("team", parse_cli_args=False)\n', *agents])


@dataclass(frozen=True)
class Running:
    gateway: Gateway
    project: Project
    stop: asyncio.Event
    reloads: Reloads

    async def reload(self, timeout_seconds: float = 60) -> None:
        """Have the project read again; returns when that has come out, either way."""
        before = self._reloads_done
        self.reloads.asked.set()
        await eventually(lambda: self._reloads_done > before, timeout_seconds, what="a reload")

    @property
    def _reloads_done(self) -> float:
        return sum(self.metric("pallas_config_reloads_total", outcome=outcome) for outcome in ("ok", "error"))

    @property
    def base_url(self) -> str:
        """Where the gateway's port is reached, without a trailing slash."""
        return f"http://127.0.0.1:{self.gateway.addresses.registry_port}"

    def url(self, agent: str) -> str:
        return f"{self.base_url}/agents/{agent}/mcp"

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask on a connection of its own."""
        async with httpx.AsyncClient(base_url=self.base_url, trust_env=False, timeout=60) as http:
            return await http.request(method, path, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The present value of one metric sample, 0 if it has none yet."""
        families = self.gateway.metrics.registry.restricted_registry([name]).collect()  # a poll asks for this often
        samples = (sample for family in families for sample in family.samples)
        return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)


@asynccontextmanager
async def running(
    project: Project,
    *,
    overrides: Overrides | None = None,
    environ: Mapping[str, str] | None = None,
    watch: bool = False,
    features: Sequence[type[Feature]] = FEATURES,
) -> AsyncIterator[Running]:
    """Serve `project` until the block ends; the block begins once every agent was tried.

    With `watch` it reloads when a file changes, otherwise when it is told to.
    """
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    with _inside(project):
        environment = os.environ if environ is None else environ
        read = partial(load_deployment, Path("agents.yaml"), environ=environment, overrides=overrides or Overrides())
        reloads = Reloads(read, watch=watch)
        serving = asyncio.create_task(_serve(reloads, stop, ready, features))
        try:
            await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            if serving.done():
                serving.result()
            yield Running(ready.result(), project, stop, reloads)
        finally:
            stop.set()
            await asyncio.wait_for(serving, 60)


@asynccontextmanager
async def gateway_and_model(
    path: Path,
    agents: Mapping[str, Agent],
    script: Script | Sequence[Turn] = echo,
    *,
    overrides: Overrides | None = None,
    watch: bool = False,
    **project: Any,
) -> AsyncIterator[tuple[Running, ScriptedLlm]]:
    """Serve `agents`, which ask a model that follows `script`; `project` is as for `write_project`."""
    async with scripted_llm(script) as llm:
        written = write_project(path, agents, llm_url=llm.base_url, **project)
        async with running(written, overrides=overrides, watch=watch) as served:
            yield served, llm


async def _serve(
    reloads: Reloads, stop: asyncio.Event, ready: asyncio.Future[Gateway], features: Sequence[type[Feature]]
) -> None:
    limits = _limits[-1]
    async with FastAgentRuntime(config_file=None, limits=limits.runtime) as runtime:
        serving = partial(serve, reloads.read(), runtime, reloads=reloads, limits=limits.gateway)
        await serving(stop=stop, on_ready=ready.set_result, features=features)


@contextmanager
def _inside(project: Project) -> Iterator[None]:
    """Working directory and import path as the command line has them; the project's modules are forgotten after."""
    before = Path.cwd()
    os.chdir(project.path)
    sys.path.insert(0, str(project.path))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(project.path))
        for name in [name for name in [*sys.modules] if name.partition(".")[0] == project.package]:
            sys.modules.pop(name, None)  # a module that fails is removed by the thread that imports it


async def until_idle(served: Running, timeout_seconds: float = WAIT_SECONDS) -> None:
    """Wait until no call and no instance is left."""
    agents = served.gateway.agents
    await eventually(
        lambda: not any(served.metric("pallas_instances_live", agent=name) for name in agents),
        timeout_seconds,
        what="instances gone",
    )


def starts(served: Running, agent: str) -> float:
    states = ("pending", "starting", "ready", "failed")
    return sum(served.metric("pallas_agent_state_changes_total", agent=agent, state=state) for state in states)


def record_calls(served: Running, agent: str, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    hosted, calls = served.gateway.agents[agent], []
    answer = hosted.answer

    async def noting(running: RunningCall) -> Reply:
        calls.append(running.call)
        return await answer(running)

    monkeypatch.setattr(hosted, "answer", noting)
    return calls
