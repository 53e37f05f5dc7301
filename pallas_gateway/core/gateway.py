"""The gateway: the hosted agents of one project, and the services that they share, which are opened and closed here.

It knows nothing of listeners and protocols: `mcp_server` serves the agents over MCP, `web` adds HTTP routes, `serving`
the sockets.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Self, cast

import httpx

from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.trail import RefusedRequests, Trail
from pallas_gateway.config.loading.configuration import stored_changes
from pallas_gateway.core.agent_set import AgentSet, GatewayServices
from pallas_gateway.core.agent_state import State
from pallas_gateway.core.call_books import books
from pallas_gateway.core.health.preflight import Preflight
from pallas_gateway.core.offers import AgentSource
from pallas_gateway.core.parts import ProcessParts
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.file_stamps import stamp
from pallas_gateway.http_answers import limited
from pallas_gateway.identity.authenticator import Authenticator
from pallas_gateway.identity.caller import ANONYMOUS, ANONYMOUS_NAME, Caller, address_of
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import GatewayLimits
from pallas_gateway.runtime.protocols import Declared
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics
from pallas_gateway.telemetry.rate_limit import RefusalLog
from pallas_gateway.telemetry.redaction import cleaned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pallas_gateway.calls.asking.elsewhere import Elsewhere
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.agent_set import AgentServers, Changes
    from pallas_gateway.core.feature import Feature, Trouble
    from pallas_gateway.core.health.verdict import Verdict
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.stored_services import StoredServices
    from pallas_gateway.file_stamps import Files
    from pallas_gateway.runtime.protocols import LlmProvider, Runtime
    from pallas_gateway.urls import Addresses


_IDLE_CONNECTIONS = 20
"""Idle connections that stay open."""


class Gateway:
    """Every hosted agent; an async context manager around the services that they share."""

    def __init__(  # noqa: PLR0913, PLR0917  the parts of a process
        self,
        configuration: Configuration,
        addresses: Addresses,
        runtime: Runtime,
        parts: ProcessParts | None = None,
        limits: GatewayLimits | None = None,
        features: Sequence[type[Feature]] = (),
    ) -> None:
        """`features` are those of `composition/`, in their order."""
        self.limits = limits = limits or GatewayLimits()
        self.configuration = configuration
        self.addresses = addresses
        self.loaded_at = datetime.now(UTC)
        self._file_stamp = stamp(configuration.path)  # of agents.yaml, when it was read
        self.reload_problems: tuple[str, ...] = ()
        """Reasons why the last reload was not applied completely."""
        self.metrics = Metrics()
        self.refusals = RefusalLog(self.metrics)
        self.parts = parts = parts or ProcessParts()
        self.calls, self.sessions = parts.calls, parts.sessions
        self._runtime = runtime
        self._providers: tuple[LlmProvider, ...] = ()
        self._tasks_of_calls = TaskOwner()
        self.turns_and_nested = TaskOwner()  # closed after the calls, whose ends they store and pass on
        self._background = TaskOwner(close_seconds=3.5)
        self._http = http_client()
        self._preflight = Preflight(
            client=self._http, tasks=self._background, metrics=self.metrics, limits=limits.health
        )
        self._open = AsyncExitStack()
        self.authenticator = self._authenticator()
        self.stored = _stored(self, self.elsewhere.process)
        self.trail = Trail()
        """Takes the decisions of this process; the audit log writes them down."""
        self.refused_requests = RefusedRequests(self.trail)
        self.calls.when_draining(self.sessions.waiting_calls.end)
        self.feature_types, self.features = features, tuple(self._made(features))
        self.agent_source = self.find(AgentSource)
        """Agents beside those of files; None if there are none."""
        self.metrics.measure = lambda: self._background.spawn(self._measure(), name="metrics", report=True)
        tasks = (self._tasks_of_calls, self._background)
        self._apply_settings()
        books_and_calls = (self.metrics, self.calls, self.trail)
        shared = GatewayServices(runtime, *books_and_calls, *tasks, self._http, self._preflight, limits)
        self._agent_set = AgentSet(configuration, addresses, shared)
        self.note_problems(())

    @property
    def elsewhere(self) -> Elsewhere:
        """The other processes of the gateway, and the name and number of this one."""
        return self.sessions.elsewhere

    def _made(self, features: Iterable[type[Feature]]) -> Iterator[Feature]:
        return (feature(self) for feature in features if self.stored is not None or not feature.needs_database)

    def required_stored(self) -> StoredServices:
        """Return what is stored, for features that are only there with a database.

        Raises:
            LookupError: there is none.
        """
        if self.stored is None:
            raise LookupError("this gateway has no database")
        return self.stored

    def find[T](self, kind: Callable[..., T]) -> T | None:
        """Return what a feature offers of a kind, mostly an interface of `core/offers.py`; None without the feature."""
        interface = cast("type[T]", kind)  # a `type[T]` cannot be abstract
        offered = (one for feature in self.features for one in (feature, *feature.offers))
        return next((one for one in offered if isinstance(one, interface)), None)

    @property
    def lacks_stored_agents(self) -> bool:
        """True while the agents of the database are not loaded, so that it is not known which names are agents."""
        return self.agent_source is not None and not self.agent_source.is_loaded

    def serve_by(self, servers: AgentServers) -> None:
        """Have `servers` serve the agents. Required before the gateway is opened."""
        self._agent_set.servers = servers

    async def __aenter__(self) -> Self:
        """Start taking requests; no agent is started yet.

        Raises:
            DatabaseSchemaError: a newer gateway has changed the database of `gateway.database`.
        """
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self._http)
            if self.stored is not None:  # closed last, because the answers of ended calls are written
                await opening.enter_async_context(self.stored)
            for feature in self.features:
                await opening.enter_async_context(feature.opened())
            await opening.enter_async_context(self.turns_and_nested)
            await opening.enter_async_context(self._agent_set.servers)
            await opening.enter_async_context(self._background)
            await opening.enter_async_context(self._tasks_of_calls)
            self._open = opening.pop_all()  # after a failure, the stack closes what it has opened
        if self.authenticator is not None:
            self.authenticator.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel running calls and release everything."""
        try:
            await self._tasks_of_calls.cancel_all()
        finally:
            await self._open.aclose()

    @asynccontextmanager
    async def hosting(self, *, with_rounds: bool = True) -> AsyncIterator[None]:
        """Start the agents, and stop them at the end of the block. The listener should be open before.

        `with_rounds`: check their health regularly; of several processes one does.
        """
        preflight = self._ask_providers()
        if self.stored is not None:
            self.stored.long_calls.look_for_tasks()
        try:
            async with self._agent_set.hosting(after=preflight, with_rounds=with_rounds):
                yield
        finally:
            preflight.cancel()  # a provider without an answer must not delay the stop

    async def reload(self, configuration: Configuration) -> Changes:
        """Apply another configuration, and the present files of the agents, while calls run.

        Unchanged agents are not restarted. A new version of a changed agent is started while the present version takes
        calls; the earlier version ends with its last call. If the new version cannot be started, the present one stays.

        Args:
            configuration: for the same listeners; its `bound_port` is set.
        """
        addresses = replace(self.addresses, configuration=configuration)
        prepared = await self._agent_set.prepare(configuration, addresses)
        # No `await` from here on, so that no request sees a part of the change.
        same_auth = configuration.deployment.gateway.auth == self.configuration.deployment.gateway.auth
        self.configuration, self.addresses, self.loaded_at = configuration, addresses, datetime.now(UTC)
        self._file_stamp = stamp(configuration.path)
        if not same_auth:
            self.authenticator = self._authenticator()
            if self.authenticator is not None:
                self.authenticator.begin()
        if self._runtime.llm_providers() != self._providers:
            self._ask_providers()
        self._apply_settings()
        changes = self._agent_set.apply(prepared)
        self._note_changes(changes)
        return changes

    async def apply(self, configuration: Configuration, again: Collection[str] = ()) -> Changes:
        """Apply another configuration whose agents of files, and whose settings, are the present ones.

        As `reload`, but only for agents of the database that differ; neither files nor other agents are looked at.

        Args:
            configuration: the present one with other agents of the database.
            again: agents to start although they are the same, because they were kept back.
        """
        only = {*stored_changes(self.configuration, configuration), *again}
        addresses = replace(self.addresses, configuration=configuration)
        prepared = await self._agent_set.prepare(configuration, addresses, only)
        # No `await` from here on, as above.
        self.configuration, self.addresses = configuration, addresses
        return self._agent_set.apply(prepared)

    def trying(self, configuration: Configuration, name: str) -> AbstractAsyncContextManager[HostedAgent]:
        """Start an agent that is not hosted for the calls of the block; see `AgentSet.trying`."""
        return self._agent_set.trying(configuration, name)

    def times_of(self, agent: HostedAgent) -> tuple[datetime, datetime]:
        """Return when an agent was created and last updated.

        An agent of files was created at the start of the gateway, and updated then or, if that is later, when one of
        its files was last changed. Replicas start at different times.
        """
        started_at = self.elsewhere.started_at
        if agent.identity is not None:
            return agent.identity.created_at or started_at, agent.identity.updated_at or started_at
        files = [self._file_stamp, *(agent.runtime.files.values() if agent.runtime is not None else ())]
        edits = (datetime.fromtimestamp(stamp[0] / 1e9, UTC) for stamp in files if stamp is not None)
        return started_at, max(started_at, *edits)

    def model_of(self, agent: HostedAgent) -> str | None:
        """Return the agent's model without its provider; before the first start, the configured one."""
        if agent.model is not None:
            return agent.model.name
        configured = agent.settings.model or self.configuration.fastagent.default_model or ""
        return configured.partition(".")[2] or configured or None

    async def until_applied(self, name: str, seconds: float) -> bool:
        """Return True when this process has applied, or refused, all changes of agents of the database made before.

        An agent of that `name` that is new here was also started once. Returns False after `seconds`, if the database
        is away, and if there are no such agents here.
        """
        if self.agent_source is None:
            return False
        try:
            async with asyncio.timeout(seconds):
                is_applied = await self.agent_source.until_applied()
                if (agent := self.agents.get(name)) is not None:
                    await agent.wait_until_tried()
        except TimeoutError:
            return False
        return is_applied

    def _apply_settings(self) -> None:
        gateway = self.configuration.deployment.gateway
        for feature in self.features:
            feature.apply(self.configuration)
        self.calls.gates = tuple(gate for feature in self.features for gate in feature.gates)
        self.calls.listeners = books(self.metrics, (one for feature in self.features for one in feature.listeners))
        keys = gateway.auth.tokens if gateway.auth is not None else ()
        self.metrics.set_keys({key.name: key.not_after.timestamp() for key in keys if key.not_after is not None})
        states = self.stored.states if self.stored is not None else None
        self.sessions.waiting_calls.seal_with(gateway.state_keys, gateway.ask_seconds, states)

    async def _measure(self) -> None:
        for feature in self.features:
            await feature.measure()

    def note_reload(self, problems: Sequence[str] = ()) -> None:
        """Count a reload; it was successful if it had no problems."""
        self.metrics.config_reloads.labels("error" if problems else "ok").inc()
        facts = {"problems": len(problems), "worker": self.elsewhere.worker}
        self.trail.record("reload", "error" if problems else "ok", facts)
        self.note_problems(problems)

    def _note_changes(self, changes: Changes) -> None:
        """Note the agents that a reload has changed in the audit log."""
        kept = {name: error.reason for name, error in changes.kept_back.items()}
        by_outcome = {"added": changes.added, "changed": changes.changed, "removed": changes.removed, "kept": kept}
        for outcome, names in by_outcome.items():
            for name in names:
                facts = {"agent": name, "reason": kept.get(name), "worker": self.elsewhere.worker}
                self.trail.record("agent", outcome, facts)

    def note_problems(self, problems: Sequence[str]) -> None:
        """Show why the last reload, of this or another process, was not applied completely."""
        self.reload_problems = tuple(cleaned(problem) for problem in problems)
        self.metrics.config_reload_successful.set(not problems)
        if not problems:
            self.metrics.config_reload_time.set(self.loaded_at.timestamp())

    def when_outdated(self, ask: Callable[[], None]) -> None:
        """Set a function to call when an agent has started from files that changed before the latest reload."""
        self._agent_set.on_outdated = ask

    def files_behind_agents(self) -> Files:
        """Return the files of all started agents with their stamps at the time of reading."""
        up = (agent.runtime for agent in self.agents.values())
        return {path: stamp for runtime in up if runtime is not None for path, stamp in runtime.files.items()}

    @property
    def agents(self) -> Mapping[str, HostedAgent]:
        """The hosted agents by name."""
        return self._agent_set.agents

    async def check_health(self, agent: HostedAgent) -> Verdict:
        """Return the verdict of an agent for `get_health`."""
        return await self._agent_set.check_health(agent)

    async def problems_of_sources(self, model: str | None, servers: tuple[str, ...]) -> Sequence[tuple[str, str]]:
        """Return the problems of the model and the servers of an agent that could be made: `(path, what is wrong)`."""
        return await self._runtime.problems_of(Declared(instruction="-", model=model, servers=servers, tools=()))

    def only_reads(self, name: str) -> bool:
        """Return True if all tools of an agent and of the peers that it can reach declare that they change nothing."""
        return self._agent_set.only_reads(name)

    def troubles(self) -> list[Trouble]:
        """Return what works only in part now."""
        return [trouble for feature in self.features for trouble in feature.troubles()]

    @property
    def summary(self) -> str:
        """The state of the gateway in one line."""
        if self.calls.draining:
            return f"stopping, calls still running: {self.calls.started}"
        down = [name for name, agent in self.agents.items() if agent.status.state is not State.READY]
        ready = f"{len(self.agents) - len(down)} of {len(self.agents)} agents ready"
        troubles = [one.summary for one in self.troubles()]
        reload = "last reload failed" if self.reload_problems else ""
        parts = [ready, f"not up: {', '.join(down)}" if down else "", *troubles, reload]
        return ", ".join(one for one in parts if one)

    @property
    def not_ready(self) -> Sequence[str]:
        """The names of the agents that cannot take calls now."""
        return [name for name, agent in self.agents.items() if agent.runtime is None]

    @property
    def all_tried(self) -> bool:
        """True if every agent has been ready or failed once."""
        return self._agent_set.supervisor is not None and self._agent_set.supervisor.all_tried

    async def wait_until_tried(self) -> None:
        """Return once every agent has been ready or failed once; only inside `hosting()`."""
        if self._agent_set.supervisor is not None:
            await self._agent_set.supervisor.wait_until_tried()

    async def drain(self, seconds: float) -> int:
        """Refuse new calls and wait for running ones; return how many still run after `seconds`.

        Calls that wait for an answer of their clients end at once.
        """
        self.calls.drain()
        try:
            async with asyncio.timeout(seconds):
                await self._tasks_of_calls.wait_until_idle()
        except TimeoutError:
            return self.calls.started
        return 0

    async def end_calls(self) -> None:
        """Cancel running calls; their clients get an error while the listeners are open."""
        await self._tasks_of_calls.cancel_all()

    def caller_named(self, principal: str, account: str) -> Caller | None:
        """Return a caller as it is known now, without a token; None if its key is gone or has expired.

        `account` is that of the caller, which counts its limits: of an anonymous one, its address.
        """
        authenticator = self.authenticator
        if principal == ANONYMOUS_NAME:
            anonymous = ANONYMOUS if authenticator is None else authenticator.anonymous
            caller: Caller | None = replace(anonymous, address=address_of(account))
        else:
            caller = authenticator.key_named(principal.removeprefix("key:")) if authenticator is not None else None
        return caller.among(self.configuration.stored_owners) if caller is not None else None

    def refuse_call(self, agent: str, caller: Caller) -> None:
        """Count and log a call of a caller that may only view the agent."""
        refusal = CallRefusedError(f"You may not call agent '{agent}'.", reason="insufficient_scope")
        if (asked := self.agents.get(agent)) is None:  # removed by a reload meanwhile
            return
        asked.refuse(Call(agent, Message("user", ""), caller=caller), refusal)
        self.metrics.auth_refused.labels(refusal.reason).inc()

    def _authenticator(self) -> Authenticator | None:
        auth = self.configuration.deployment.gateway.auth
        return Authenticator(auth, client=self._http, tasks=self._background) if auth else None

    def _ask_providers(self) -> asyncio.Task[None]:
        self._providers = self._runtime.llm_providers()
        return self._background.spawn(self._preflight.run(self._providers), name="preflight", report=True)


def _stored(gateway: Gateway, process: str) -> StoredServices | None:
    configuration = gateway.configuration
    settings = configuration.deployment.gateway
    if settings.database is None:
        return None
    from pallas_gateway.core.stored_services import StoredServices  # noqa: PLC0415  an extra of two hundred modules
    from pallas_gateway.shared.database.connections import LeaseTerms  # noqa: PLC0415  as the last one
    from pallas_gateway.shared.database.service import GatewayDatabase  # noqa: PLC0415  as the next line

    url, folder = Secret(settings.database), configuration.path.resolve().parent
    leases = LeaseTerms(settings.threads_lease_seconds, process)
    up, limits = gateway.metrics.threads_database_up, gateway.limits
    database = GatewayDatabase(url, folder, limits=limits.database, up=up, upgrades=settings.upgrade_database)
    stored = StoredServices(database, leases, limits)
    database.connections.metrics, gateway.metrics.has_tasks = gateway.metrics, True
    return stored


def http_client() -> httpx.AsyncClient:
    """Return the client for the gateway's own requests: to downstreams, providers, and for an issuer's keys.

    It has no limit of connections, so that servers that hang do not delay others; no cookies, which servers would
    share; and no timeout, because each request has a deadline.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return limited(httpx.AsyncClient(timeout=None, limits=limits, cookies=no_cookies))  # noqa: S113  see above
