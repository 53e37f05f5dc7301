"""The gateway: the hosted agents of one project, their MCP servers, and what they share. Opened and closed here only.

Knows nothing of listeners and HTTP; `web` puts it behind routes and `server` behind sockets.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Self

import httpx
from mcp_types import Icon

from pallas_gateway.agent_server.server import AgentServer, Face
from pallas_gateway.agents.admission import Admission, Limit
from pallas_gateway.agents.hosted_agent import HostedAgent, State, Surroundings
from pallas_gateway.agents.supervisor import Supervisor
from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.nesting import RunningCalls
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.health.checker import HealthChecker
from pallas_gateway.health.preflight import Preflight
from pallas_gateway.health.verdict import Life
from pallas_gateway.identity.authenticator import Authenticator
from pallas_gateway.runtime.ports import AgentPlan
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics
from pallas_gateway.telemetry.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from pallas_gateway.addresses import Addresses
    from pallas_gateway.config.configuration import Configuration
    from pallas_gateway.health.verdict import Verdict
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.ports import Runtime


_IDLE_CONNECTIONS = 20
"""How many are kept for a next request."""


class Gateway:
    """Every hosted agent and its MCP server; an async context manager around everything they share."""

    def __init__(self, configuration: Configuration, addresses: Addresses, runtime: Runtime) -> None:
        self.configuration = configuration
        self.addresses = addresses
        self.loaded_at = datetime.now(UTC)
        self.metrics = Metrics()
        self.refusals = Refusals(self.metrics)
        self.running = RunningCalls()
        self._runtime = runtime
        self._calls = TaskOwner()
        self._background = TaskOwner(close_seconds=3.5)
        self._http = http_client()
        self._preflight = Preflight(client=self._http, tasks=self._background, metrics=self.metrics)
        self._open = AsyncExitStack()
        auth = configuration.deployment.gateway.auth
        self.authenticator = Authenticator(auth, client=self._http, tasks=self._background) if auth else None
        self.agents: Mapping[str, HostedAgent] = self._hosted_agents()
        self.servers: Mapping[str, AgentServer] = {name: self._server(agent) for name, agent in self.agents.items()}
        self._health = {name: self._checker(name) for name in self.agents}
        self._supervisor: Supervisor | None = None

    async def __aenter__(self) -> Self:
        """Be able to take requests; no agent is started yet."""
        await self._open.enter_async_context(self._http)
        for server in self.servers.values():
            await self._open.enter_async_context(server.manager.run())
        await self._open.enter_async_context(self._background)
        await self._open.enter_async_context(self._calls)
        if self.authenticator is not None:
            self.authenticator.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End what still runs and release everything."""
        await self._calls.cancel_all()
        await self._open.aclose()

    @asynccontextmanager
    async def hosting(self) -> AsyncIterator[None]:
        """The agents are started when the block begins and left when it ends. The listener should be open by then."""

        def plan_for(name: str) -> AgentPlan:
            count = partial(self.metrics.count_operation, name)
            return replace(agent_plan(self.configuration, self.addresses, name), on_operation=count)

        preflight = self._background.spawn(self._check_providers(), name="preflight", report=True)
        try:
            async with Supervisor(self.agents, self._runtime, plan_for, after=preflight) as supervisor:
                self._supervisor = supervisor
                yield
        finally:
            preflight.cancel()  # a provider that does not answer must not hold up the stop

    @property
    def draining(self) -> bool:
        """Whether no new calls are taken, because the gateway is stopping."""
        return self.running.draining

    @property
    def summary(self) -> str:
        """How it is, in one line."""
        if self.draining:
            return f"stopping, calls still running: {len(self.running)}"
        down = [name for name, agent in self.agents.items() if agent.status.state is not State.READY]
        ready = f"{len(self.agents) - len(down)} of {len(self.agents)} agents ready"
        return f"{ready}, not up: {', '.join(down)}" if down else ready

    @property
    def all_tried(self) -> bool:
        """Whether every agent has been ready or failed once."""
        return self._supervisor is not None and self._supervisor.all_tried

    async def wait_until_tried(self) -> None:
        """Return once every agent has been ready or failed once; only inside `hosting()`."""
        if self._supervisor is not None:
            await self._supervisor.wait_until_tried()

    async def drain(self, seconds: float) -> int:
        """Take no new calls and let running ones end; returns how many were still running after `seconds`."""
        self.running.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._calls.wait_until_idle()
        except TimeoutError:
            return len(self.running)
        return 0

    async def end_calls(self) -> None:
        """Cancel what still runs; each client gets a clean error while the listeners are still open."""
        await self._calls.cancel_all()

    def refuse_call(self, agent: str, caller: Caller) -> None:
        """Count and log a call of somebody who may only view the agent."""
        refusal = CallRefusedError(f"You may not call agent '{agent}'.", reason="insufficient_scope")
        self.agents[agent].refuse(Call(agent, Message("user", ""), caller=caller), refusal)
        self.metrics.auth_refused.labels(refusal.reason).inc()

    async def check_health(self, agent: HostedAgent) -> Verdict:
        """What `get_health` of one agent says."""
        downstreams = agent.runtime.downstreams if agent.runtime else None
        return await self._health[agent.name].check(downstreams, life_of(agent), self._preflight.latest())

    async def _check_providers(self) -> None:
        await self._preflight.run(self._runtime.llm_providers())

    def _note_state(self, agent: HostedAgent) -> None:
        if agent.status.state in (State.READY, State.FAILED):
            self._health[agent.name].note(life_of(agent), self._preflight.known)

    def _hosted_agents(self) -> dict[str, HostedAgent]:
        settings = self.configuration.deployment.gateway
        around = Surroundings(
            self.running,
            self._calls,
            self.metrics,
            settings.max_nesting,
            settings.heartbeat_seconds,
            llm_pass_through=settings.auth is None or settings.auth.llm_pass_through,
            on_state=self._note_state,
        )
        shared = Limit(settings.max_in_flight)
        agents = {}
        for name, agent in self.configuration.deployment.agents.items():
            if self.configuration.only_agent not in (None, name):
                continue
            admission = Admission(own=Limit(agent.max_in_flight), gateway=shared, queue_seconds=settings.queue_seconds)
            agents[name] = HostedAgent(name, agent, admission, around)
            port = agent.port or self.addresses.registry_port
            self.metrics.agent_info.labels(name, str(port)).set(1)
        return agents

    def _server(self, agent: HostedAgent) -> AgentServer:
        deployment = self.configuration.deployment
        icons = tuple(
            Icon(src=self.addresses.absolute(icon.src), sizes=list(icon.sizes) or None)
            for icon in agent.settings.shown_icons()
        )
        return AgentServer(
            agent,
            face=Face(deployment.version, icons, deployment.gateway.tool_names),
            running=self.running,
            check_health=self.check_health,
            max_body_bytes=deployment.gateway.max_body_bytes,
        )

    def _checker(self, name: str) -> HealthChecker:
        return HealthChecker(
            name,
            client=self._http,
            tasks=self._background,
            metrics=self.metrics,
            peer_problem=lambda peer: self.agents[peer].why_not_ready,
        )


def http_client() -> httpx.AsyncClient:
    """The client of everything the gateway itself asks: downstreams, providers, an issuer's keys.

    Without a limit of connections, so that those who do not answer are not in the way of those who do; without
    cookies, which one would get from the other; without a timeout, as each request has its own deadline.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(timeout=None, limits=limits, cookies=no_cookies)  # noqa: S113  see above


def life_of(agent: HostedAgent) -> Life:
    """An agent's state as `get_health` tells it."""
    return Life(agent.status.state.value, agent.status.since, agent.why_not_ready)


def agent_plan(configuration: Configuration, addresses: Addresses, name: str) -> AgentPlan:
    """What a runtime is told about one agent."""
    agent = configuration.deployment.agents[name]
    hosted = [configuration.only_agent] if configuration.only_agent else list(configuration.deployment.agents)
    return AgentPlan(
        name=name,
        module=agent.module,
        max_iterations=agent.max_iterations,
        loop_repeat_threshold=agent.loop_repeat_threshold,
        max_relay_depth=configuration.deployment.gateway.max_relay_depth,
        model_capabilities=configuration.capabilities_of(name),
        peers=addresses.peers(hosted),
    )
