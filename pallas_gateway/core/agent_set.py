"""The hosted agents with their health checkers, and how a reload changes them.

A reload has two steps. New versions are started while the present ones answer calls; then everything is replaced
without an `await`, so that each request sees either the earlier or the new state.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pallas_gateway.calls.asking.asking import AskRules
from pallas_gateway.calls.spending import Prices
from pallas_gateway.core import agent_specs
from pallas_gateway.core.admission import Admission, Limit
from pallas_gateway.core.agent_state import AgentState, SharedServices, State
from pallas_gateway.core.health.checker import HealthChecker, HealthRounds
from pallas_gateway.core.health.verdict import Life, judge
from pallas_gateway.core.hosted_agent import HostedAgent, TriedAgent
from pallas_gateway.core.supervisor import Supervisor
from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.caller import ANONYMOUS_NAME
from pallas_gateway.tasks import give_way
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping

    import httpx

    from pallas_gateway.calls.trail import Trail
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.core.calls import Calls
    from pallas_gateway.core.health.preflight import Preflight
    from pallas_gateway.core.health.verdict import Verdict
    from pallas_gateway.core.supervisor import StandbyRuntime
    from pallas_gateway.limits import GatewayLimits
    from pallas_gateway.runtime.protocols import AgentRuntime, AgentSpec, Peers, Runtime
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics
    from pallas_gateway.urls import Addresses


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """Services that all agents of the gateway share. `tasks` owns the tasks of calls, `background` all other tasks."""

    runtime: Runtime
    metrics: Metrics
    calls: Calls
    trail: Trail
    tasks: TaskOwner
    background: TaskOwner
    http: httpx.AsyncClient
    preflight: Preflight
    limits: GatewayLimits


class AgentServers(Protocol):
    """Servers by which clients, and other agents, reach the hosted agents. The gateway opens and closes them."""

    @property
    def peers(self) -> Peers:
        """The agents as downstreams of each other."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> None: ...

    def serve(self, agents: Mapping[str, HostedAgent]) -> None:
        """Serve these agents by their settings and those of the gateway, from the next request on."""

    def remove(self, name: str) -> Coroutine[Any, Any, None]:
        """Accept no more requests for an agent; return what ends after the last one."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The agents that a reload has changed; `kept_back` has the reason for each agent that was not replaced."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept_back: Mapping[str, AgentStartError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration, the started versions of its agents, and the reasons why other versions could not start.

    `only`: the agents that it may change; None for all.
    """

    configuration: Configuration
    addresses: Addresses
    only: Collection[str] | None
    standbys: dict[str, StandbyRuntime] = field(default_factory=dict)
    failures: dict[str, AgentStartError] = field(default_factory=dict)

    def may_change(self, name: str) -> bool:
        return self.only is None or name in self.only

    def drop(self) -> None:
        """Stop the started versions."""
        for standby in self.standbys.values():
            standby.drop()


class AgentSet:
    """Every hosted agent by name."""

    servers: AgentServers
    """Set before the first agent is started."""

    def __init__(self, configuration: Configuration, addresses: Addresses, shared: GatewayServices) -> None:
        self._configuration = configuration
        self._addresses = addresses
        self._shared = shared
        self.supervisor: Supervisor | None = None
        """Starts the agents; None until `hosting`."""
        self._limits: dict[str | None, Limit] = {}
        """The present limit of each agent, and that of the gateway under None."""
        self._retiring: dict[str, HostedAgent] = {}
        """Agents that are no longer hosted and still answer earlier requests.

        One that is configured again meanwhile is the same agent: its calls, limits and metrics continue.
        """
        self._coming_up: set[str] = set()
        self._rounds = HealthRounds(self._refresh_health, lambda: self.agents, self._health_seconds)
        self.on_outdated: Callable[[], None] = lambda: None
        """Called when an agent has started from files that changed before the latest reload."""
        self.agents: Mapping[str, HostedAgent] = {name: self._new_agent(name) for name in configuration.hosted_agents}
        self._health = {name: self._new_checker(name) for name in self.agents}
        self._fail_refused(self.agents)

    @asynccontextmanager
    async def hosting(self, *, after: asyncio.Task[None], with_rounds: bool) -> AsyncIterator[None]:
        """Start the agents after the task `after`, and stop them at the end of the block.

        `with_rounds`: check their health regularly; one of several processes does.
        """
        rounds = self._shared.background.spawn(self._rounds.run(), name="health rounds", report=True)
        if not with_rounds:
            rounds.cancel()
        try:
            async with Supervisor(
                self.agents, self._shared.runtime, self._present_spec, after=after, limits=self._shared.limits.lives
            ) as supervisor:
                self.supervisor = supervisor
                yield
        finally:
            rounds.cancel()

    async def check_health(self, agent: HostedAgent) -> Verdict:
        """Return the verdict of an agent for `get_health`."""
        if self.agents.get(agent.name) is not agent:  # removed by a reload after the request had arrived
            return judge(life_of(agent), (), None)
        downstreams = agent.runtime.downstreams if agent.runtime else None
        asking = self._shared.preflight.result(agent.provider)
        return await self._health[agent.name].check(downstreams, life_of(agent), asking)

    def only_reads(self, name: str) -> bool:
        """Return True if all tools of an agent and of the peers that it can reach declare that they change nothing."""
        reached, left = {name}, [name]
        while left:
            agent = self.agents.get(left.pop())
            if agent is None or agent.runtime is None or not agent.runtime.only_reads:
                return False
            peers = {one.peer for one in agent.runtime.downstreams if one.peer is not None}
            new = (self.agents.keys() if ALL_AGENTS in peers else peers) - reached
            reached |= new
            left += new
        return True

    async def _refresh_health(self, name: str) -> None:
        agent = self.agents[name]
        downstreams = agent.runtime.downstreams if agent.runtime else None
        await self._health[name].refresh(downstreams, life_of(agent), self._shared.preflight.known(agent.provider))

    def _health_seconds(self) -> float:
        return self._configuration.deployment.gateway.health_seconds

    def _report_downstream(self, name: str, server: str, error: str | None, *, refused: bool = False) -> None:
        agent = self.agents.get(name)
        if agent is None or agent.runtime is None or server not in {one.name for one in agent.runtime.downstreams}:
            return
        self._health[name].report(server, error, refused=refused)
        self._health[name].note(life_of(agent), self._shared.preflight.known(agent.provider))

    async def prepare(
        self, configuration: Configuration, addresses: Addresses, only: Collection[str] | None = None
    ) -> Prepared:
        """Start new versions of agents whose configuration or files changed, while the present ones serve.

        `only`: the agents that may have changed; None for all.
        """
        prepared = Prepared(configuration, addresses, only)
        try:
            # Asked again: another agent may have started from its earlier spec meanwhile.
            while outdated := await self._outdated(prepared):
                await asyncio.gather(*(self._start_beside(spec, prepared) for spec in outdated))
        except BaseException:
            prepared.drop()
            raise
        return prepared

    def apply(self, prepared: Prepared) -> Changes:
        """Replace the configuration and the agents, without an `await`."""
        before = dict(self.agents)
        hosted = prepared.configuration.hosted_agents
        kept = [name for name in hosted if name in before and prepared.may_change(name)]
        specs_before = {name: self._present_spec(name) for name in kept if before[name].runtime is None}
        settings_before = {name: before[name].settings for name in kept}
        self._configuration, self._addresses = prepared.configuration, prepared.addresses
        removed = [name for name in before if name not in hosted]
        added = [name for name in hosted if name not in before]
        for name in removed:
            self._remove(name)
        self.agents = {name: before.get(name) or self._new_agent(name) for name in hosted}
        self._health = {name: self._health.get(name) or self._new_checker(name) for name in hosted}
        for name in added:
            self._begin(name)
        for name in kept:
            self._go_on(name, specs_before.get(name), prepared)
        self._fail_refused([*added, *kept])
        self.servers.serve(self.agents)
        self._rounds.wake()
        coming_up = {name for name in kept if self.agents[name].runtime is None}
        self._coming_up = coming_up | {name for name in self._coming_up if not prepared.may_change(name)}
        changed = [n for n in kept if n in prepared.standbys or self.agents[n].settings != settings_before[n]]
        return Changes(tuple(added), tuple(changed), tuple(removed), prepared.failures)

    def _go_on(self, name: str, spec_before: AgentSpec | None, prepared: Prepared) -> None:
        """Update an agent that is hosted before and after the reload.

        It uses its new version if there is one, keeps its version, or is started again if it is not ready.
        `spec_before`: of an agent that is not ready.
        """
        agent = self.agents[name]
        agent.rebind(self._shared_services())
        wanted, identity = self._configuration.hosted_agents[name], self._configuration.stored.get(name)
        is_replaced = agent.id != (identity.id if identity is not None else "") and name in prepared.failures
        if is_replaced:  # another agent has its name now, for which this one must not answer
            del prepared.failures[name]
            agent.leave("another agent has its name")
            agent.reset()
        is_kept_back = name in prepared.failures
        settings = agent.settings if is_kept_back else wanted  # a version that stays keeps its settings
        agent.identity = agent.identity if is_kept_back else identity
        agent.kept_back = str(prepared.failures[name]) if is_kept_back else None
        standby = prepared.standbys.get(name)
        is_other = spec_before is not None and (agent.settings != settings or spec_before != self._present_spec(name))
        self._tell_port(name, wanted)
        if standby is not None:
            self._health[name].forget([one.name for one in standby.runtime.downstreams])
        agent.update(settings, self._admission(name, settings), standby.runtime if standby else None)
        if standby is not None:
            standby.adopt()
        elif is_replaced or agent.status.state is State.FAILED or (agent.runtime is None and is_other):
            self._begin(name)

    def _fail_refused(self, names: Iterable[str]) -> None:
        """Fail those of these agents that may not run. New calls are refused, running ones end on their version."""
        for name in names:
            agent = self.agents[name]
            if agent.identity is not None and agent.identity.refused is not None:
                if self.supervisor is not None:
                    self.supervisor.end(name)
                agent.set_state(State.FAILED, reason=agent.identity.refused)

    def _remove(self, name: str) -> None:
        agent = self.agents[name]
        agent.leave("it is not configured any more")
        leaving = self.supervisor.end(name) if self.supervisor is not None else None
        self._retiring[name] = agent
        retiring = self._retire(agent, self.servers.remove(name), leaving)
        self._shared.background.spawn(retiring, name=f"last requests of {name}", report=True)
        self._health[name].end()
        self._shared.metrics.forget_agent(name)

    async def _retire(
        self, agent: HostedAgent, last_requests: Coroutine[Any, Any, None], leaving: asyncio.Task[None] | None
    ) -> None:
        """Remove the metrics of an agent after its last request; `leaving` ends when its runtime was left."""
        await last_requests
        if leaving is not None:
            await asyncio.wait({leaving})
        if self._retiring.get(agent.name) is agent:  # it has not come back
            del self._retiring[agent.name]
            self._shared.metrics.forget_calls(agent.name)
            if agent.identity is not None:  # people make and delete these at will
                self._shared.metrics.forget_counts(agent.name)

    def _begin(self, name: str) -> None:
        if self.supervisor is not None and not self.agents[name].is_refused:  # without it, `hosting` starts the agent
            self.supervisor.begin(self.agents[name])

    @asynccontextmanager
    async def trying(self, configuration: Configuration, name: str) -> AsyncIterator[HostedAgent]:
        """Start an agent of `configuration` beside those that are hosted, for the calls of the block.

        Raises:
            AgentStartError: it cannot be started.
        """
        if self.supervisor is None:
            raise AgentStartError("the gateway is not up")
        settings, gateway = configuration.deployment.agents[name], configuration.deployment.gateway
        slots = self._limit(None, gateway.max_in_flight)
        admission = Admission(own=Limit(settings.max_in_flight), gateway=slots, queue_seconds=gateway.queue_seconds)
        agent = TriedAgent(name, settings, admission, self._shared_services())
        spec = agent_specs.agent_spec(configuration, replace(self._addresses, configuration=configuration), name)
        standby = await self.supervisor.start_beside(agent, replace(spec, peer_calls=self.servers.peers))
        try:
            agent.answer_on(standby.runtime)
            yield agent
        finally:
            standby.drop()

    async def _outdated(self, prepared: Prepared) -> list[AgentSpec]:
        """Return the new specs of running agents that are outdated, without those that were tried already.

        The event loop does other work between two agents, so an agent that has started meanwhile is compared again.
        """
        wanted = prepared.configuration.hosted_agents.keys() & self.agents.keys() - prepared.configuration.refused
        known = prepared.standbys.keys() | prepared.failures.keys()
        unknown = sorted(name for name in wanted - known if prepared.may_change(name))
        seen: dict[str, AgentRuntime | None] = dict.fromkeys(unknown)
        outdated: dict[str, AgentSpec] = {}
        while unseen := [name for name in unknown if self.agents[name].runtime is not seen[name]]:
            for name in unseen:
                began = perf_counter()
                seen[name] = runtime = self.agents[name].runtime
                spec = self._spec(prepared.configuration, prepared.addresses, name)
                outdated.pop(name, None)
                if runtime is not None and not runtime.is_current(spec):
                    outdated[name] = spec
                await give_way(began)
        return list(outdated.values())

    async def _start_beside(self, spec: AgentSpec, prepared: Prepared) -> None:
        try:
            if self.supervisor is None:
                raise AgentStartError("the gateway is not up")
            prepared.standbys[spec.name] = await self.supervisor.start_beside(self.agents[spec.name], spec)
        except AgentStartError as error:
            prepared.failures[spec.name] = error

    def _present_spec(self, name: str) -> AgentSpec:
        return self._spec(self._configuration, self._addresses, name)

    def _spec(self, configuration: Configuration, addresses: Addresses, name: str) -> AgentSpec:
        count = partial(self._shared.metrics.count_operation, name)
        return replace(
            agent_specs.agent_spec(configuration, addresses, name),
            on_operation=count,
            peer_calls=self.servers.peers,
            on_downstream=partial(self._report_downstream, name),
        )

    def _admission(self, name: str, settings: AgentSettings) -> Admission:
        gateway = self._configuration.deployment.gateway
        own, shared = self._limit(name, settings.max_in_flight), self._limit(None, gateway.max_in_flight)
        return Admission(own=own, gateway=shared, queue_seconds=gateway.queue_seconds)

    def _limit(self, holder: str | None, at_once: int | None) -> Limit:
        """Return the holder's limit; a new one, which calls of the earlier one do not count for, if it has changed."""
        if (known := self._limits.get(holder)) is None or known.at_once != at_once:
            known = self._limits[holder] = Limit(at_once)
        return known

    def _shared_services(self) -> SharedServices:
        settings, shared = self._configuration.deployment.gateway, self._shared
        return SharedServices(
            shared.calls,
            shared.tasks,
            shared.metrics,
            shared.trail,
            settings.max_nesting,
            settings.heartbeat_seconds,
            settings.max_history_entries,
            llm_pass_through=settings.auth is None or settings.auth.llm_pass_through,
            ask_rules=AskRules(
                settings.ask_seconds,
                settings.max_open_questions,
                shared.calls.waiting,
                shared.limits.questions,
                # Without `auth` all callers are anonymous: a limit of them together would protect none of them.
                caller=ANONYMOUS_NAME if settings.auth is not None else None,
            ),
            on_state=self._note_state,
            trace_url=settings.trace_url,
            prices=Prices(settings.prices),
        )

    def _note_state(self, agent: AgentState) -> None:
        if agent.status.state not in (State.READY, State.FAILED) or self.agents.get(agent.name) is not agent:
            return
        self._health[agent.name].note(life_of(agent), self._shared.preflight.known(agent.provider))
        self._rounds.soon(agent.name)
        if agent.name in self._coming_up and agent.runtime is not None:
            self._coming_up.discard(agent.name)
            if not agent.runtime.is_current(self._present_spec(agent.name)):  # its files were read before the reload
                self.on_outdated()

    def _new_agent(self, name: str) -> HostedAgent:
        settings = self._configuration.hosted_agents[name]
        self._tell_port(name, settings)
        admission = self._admission(name, settings)
        if (agent := self._retiring.pop(name, None)) is None:
            agent = HostedAgent(name, settings, admission, self._shared_services())
        else:
            agent.rebind(self._shared_services())
            agent.update(settings, admission)
            agent.reset()
        agent.identity = self._configuration.stored.get(name)
        return agent

    def _tell_port(self, name: str, settings: AgentSettings) -> None:
        self._shared.metrics.set_agent(name, settings.port or self._addresses.registry_port)

    def _new_checker(self, name: str) -> HealthChecker:
        return HealthChecker(
            name,
            client=self._shared.http,
            tasks=self._shared.background,
            metrics=self._shared.metrics,
            peer_problem=self._peer_problem,
            limits=self._shared.limits.health,
        )

    def _peer_problem(self, peer: str) -> str | None:
        if peer == ALL_AGENTS:
            return None
        agent = self.agents.get(peer)
        return agent.why_not_ready if agent else "it is not hosted here any more"


def life_of(agent: HostedAgent) -> Life:
    """Return an agent's state for `get_health`."""
    problems = agent.runtime.problems if agent.runtime else ()
    model = agent.model.name if agent.model else None
    questions = len(agent.open_questions)
    return Life(agent.status.state.value, agent.status.since, agent.why_not_ready, problems, questions, model)
