"""The `AgentRuntime` on fast-agent: one started agent, and a new session of its harness for each call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakMethod

from pallas_gateway.calls.asking.asking import NO_QUESTIONS
from pallas_gateway.calls.call import NESTING_META_KEY
from pallas_gateway.calls.current import AgentCall, calling
from pallas_gateway.calls.questions import MODES
from pallas_gateway.changes.registry import registry
from pallas_gateway.config.loading.tool_policies import policies
from pallas_gateway.runtime import fast_agent_api
from pallas_gateway.runtime.call.observer import Observer
from pallas_gateway.runtime.call.peers import PeerServers
from pallas_gateway.runtime.call.tool_approval import refuse_unenforceable
from pallas_gateway.runtime.call.turn_meter import TurnMeter
from pallas_gateway.runtime.downstreams.downstream_log import DownstreamLog
from pallas_gateway.runtime.downstreams.listings.catalog import ToolCatalog
from pallas_gateway.runtime.downstreams.listings.known_tools import KnownTools, local_tools_only_read, tool_names
from pallas_gateway.runtime.downstreams.programs.program_listings import ProgramListings
from pallas_gateway.runtime.downstreams.tool_filters import FilterReport
from pallas_gateway.runtime.instance import NO_PEERS, Connections, FastAgentInstance, has_journal
from pallas_gateway.runtime.loading.agent_choice import served_agent
from pallas_gateway.runtime.protocols import ModelFacts, ParentCall, ServerTools
from pallas_gateway.runtime.scope import CallScope, Operations, Presented, connect_nothing, entered
from pallas_gateway.runtime.seams import log_events
from pallas_gateway.runtime.seams.questions import pause_child_timeouts
from pallas_gateway.runtime.settings.declared_models import (
    facts_of,
    model_facts,
    model_served,
    models_used,
    provider_and_model,
)
from pallas_gateway.runtime.settings.hosting import settings_of
from pallas_gateway.runtime.settings.providers import providers_of
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from fast_agent.core.fastagent import FastAgent
    from fast_agent.core.harness import AgentHarness, HarnessSession
    from fast_agent.llm.model_database import ModelParameters

    from pallas_gateway.calls.asking.asking import Questions
    from pallas_gateway.calls.call import Call, Credentials
    from pallas_gateway.calls.events.events import EventSink
    from pallas_gateway.calls.events.queue import StreamOptions
    from pallas_gateway.file_stamps import Files
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.token_exchange import TokenExchanger
    from pallas_gateway.limits import RuntimeLimits
    from pallas_gateway.runtime.downstreams.listings.listing_cache import ListingCache
    from pallas_gateway.runtime.downstreams.programs.program_pool import Programs
    from pallas_gateway.runtime.loading.fingerprint import AgentFingerprint
    from pallas_gateway.runtime.protocols import AgentSpec, Downstream, LlmProvider


class StartedAgent:
    """The `AgentRuntime` of one hosted agent."""

    def __init__(  # noqa: PLR0913  the parts of a started agent
        self,
        fingerprint: AgentFingerprint,
        harness: AgentHarness,
        fast: FastAgent,
        downstreams: Mapping[str, Downstream],
        exchanger: TokenExchanger,
        *,
        cache: ListingCache,
        programs: Programs,
        limits: RuntimeLimits,
        models: Mapping[str, ModelParameters],
    ) -> None:
        self._fingerprint = fingerprint
        self._spec = spec = fingerprint.spec
        self._harness = harness
        self._exchanger = exchanger
        self._served = served_agent(fast, spec)
        used = server_names(fast)
        configured = {name: downstream for name, downstream in downstreams.items() if name in used}
        mcp = settings_of(fast).mcp
        self._servers = servers = mcp.servers if mcp else {}
        self._configs = [data["config"] for data in fast.agents.values()]
        entries = policies(spec.approve, spec.tool_limits)
        self._filters = FilterReport(spec.name, self._configs, _varying(configured.values()), entries)
        self._log = DownstreamLog(
            spec.name, self._filters, outage_seconds=limits.outage_seconds, report=spec.on_downstream
        )
        self._offers = ToolCatalog(
            spec.name,
            servers,
            configured,
            fast.app.context,
            self._log,
            limits=limits.listings,
            cache=cache,
        )
        self._programs = ProgramListings(
            spec.name,
            configured.values(),
            servers=servers,
            context=fast.app.context,
            log=self._log,
            programs=programs,
            limits=limits.programs,
        )
        self._downstreams = {name: self._with_state(one) for name, one in configured.items()}
        self._known_tools = KnownTools(
            spec, self._configs, self._downstreams.values(), offers=self._offers, programs=self._programs
        )
        if spec.ask_caller:
            self._filters.look_further = self._known_tools.list_for_askable
        has_peers = spec.peer_calls is not None and any(one.peer is not None for one in configured.values())
        self._peers = PeerServers(spec, self._downstreams, self._log) if has_peers else None
        self._connections = Connections(self._offers, self._log, limits, programs=self._programs)
        self._operations = Operations(
            spec.on_operation,
            used,
            partial(_note_trouble, self._offers, self._programs),  # not the host: a socket may keep its call's scope
            self._offers.refused,
            refresh_seconds=limits.listings.ask_seconds,
        )
        self._tasks = TaskOwner()
        self._answers = TaskOwner()
        self._fast = fast
        self._outside_calls = CallScope(connect=connect_nothing, servers=tuple(self._downstreams), models=models)
        self._models_used: set[tuple[str, str]] = set()
        self._local_tools_only_read = False
        self.instances_live = 0
        # Until rehearse(), which runs before the first use
        self.model = ModelFacts("unknown")
        self.provider: LlmProvider | None = None
        self.keeps_journal = False

    def model_named(self, spec: str) -> ModelFacts:
        with entered(self._outside_calls), calling(AgentCall(self._spec.name)):
            return facts_of(spec)

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        return tuple(self._downstreams.values())

    @property
    def providers(self) -> tuple[LlmProvider, ...]:
        """The provider of each model that an agent of the module uses, with that model."""
        return providers_of(self._models_used, settings_of(self._fast))

    @property
    def model_names(self) -> frozenset[str]:
        used = {*self._models_used, *map(provider_and_model, self._spec.models)}
        return frozenset(name for provider, model in used for name in (f"{provider}.{model}", model))

    def providers_named(self, spec: str) -> tuple[LlmProvider, ...]:
        """The provider of a model that callers may choose, with that model."""
        return providers_of([provider_and_model(spec)], settings_of(self._fast))

    @property
    def tool_filters(self) -> Mapping[str, tuple[str, ...]]:
        """The patterns of the tools that the module's agents may use, by server."""
        found: dict[str, tuple[str, ...]] = {}
        for data in self._fast.agents.values():
            for server, patterns in data["config"].tools.items():
                found[server] = tuple(dict.fromkeys((*found.get(server, ()), *patterns)))
        return found

    async def tools_of(self, server: str) -> tuple[frozenset[str], tuple[str, ...]]:
        """List the tools that a downstream offers to a caller without a token, by a new request.

        With why others are left out. Includes those that it offers only to clients that declare elicitation, if the
        agent's callers are asked.

        Raises:
            ConnectionError: they could not be listed.
        """
        modes = MODES if self._spec.ask_caller else ()
        return await tool_names(server, self._spec.name, self._fast.app.context, modes)

    @property
    def instruction(self) -> str:
        return str(self._fast.agents[self._served]["config"].instruction)

    def server_tools(self, caller: Caller) -> tuple[ServerTools, ...]:
        return self._known_tools.of_servers(caller)

    @property
    def only_reads(self) -> bool:
        return self._local_tools_only_read and self._known_tools.only_read

    @property
    def files(self) -> Files:
        return self._fingerprint.files

    def is_current(self, spec: AgentSpec) -> bool:
        return self._fingerprint.is_still(spec)

    async def rehearse(self) -> None:
        """Make and dispose of one unconnected instance, so that faults of every call show at the start.

        Raises:
            AgentStartError: `bad_approval`.
        """
        log_events.warn_again(self._spec.name)
        session = await self._create("rehearsal")
        try:
            pause_child_timeouts()
            agents = session.agent_app.registered_agents().values()
            self.keeps_journal = has_journal(session.agent_app.registered_agents(), self._served)
            known = {*self._servers, *self._downstreams, *self._spec.file_agents}
            refuse_unenforceable(agents, self._spec, known)
            await registry().settled()
            with entered(self._outside_calls), calling(AgentCall(self._spec.name)):
                self.model = model_facts(session.agent_app, self._served, self._spec.model_capabilities)
            self._models_used = models_used(session.agent_app)
            self._local_tools_only_read = await local_tools_only_read(agents)
            self.provider = next(
                iter(providers_of(model_served(session.agent_app, self._served), settings_of(self._fast))), None
            )
        finally:
            await session.delete()

    def ask_downstreams(self) -> None:
        """Start listing what the downstreams offer; calls do not wait for it."""
        self._offers.ask()
        self._programs.ask()
        if self._peers is not None:
            self._peers.ask()

    @property
    def problems(self) -> tuple[str, ...]:
        return self._filters.problems

    async def close(self) -> None:
        """Cancel the running answers, which their callers see, and wait for the disposals, within a limit."""
        async with AsyncExitStack() as closing:  # one that fails to close does not keep the others open
            closing.push_async_callback(self._offers.close)
            closing.push_async_callback(self._programs.close)
            await closing.enter_async_context(self._tasks)
            await self._answers.cancel_all()

    @asynccontextmanager
    async def open(
        self,
        call: Call,
        credentials: Credentials,
        sink: EventSink,
        options: StreamOptions,
        questions: Questions = NO_QUESTIONS,
    ) -> AsyncIterator[FastAgentInstance]:
        creation = self._tasks.spawn(self._create(call.call_id), name=f"create {call.call_id}", is_eager=True)
        self.instances_live += 1
        try:
            # Shielded: if the creation were cancelled half-way, the harness would keep the instance for ever.
            session = await asyncio.shield(creation)
            meter = TurnMeter(call.spending, call.spent)
            observer = Observer(call, sink, options, self._spec, self._served)
            parent = ParentCall(call, sink, options, questions)
            peers = self._peers.of_call(parent) if self._peers is not None else NO_PEERS
            connect = partial(self._connections.connect, peers=peers)
            limits = self._connections.limits
            instance = FastAgentInstance(
                session, self._served, connect, observer, self._answers, meter=meter, limits=limits
            )
            meter.journal = instance.keep_journal(questions, call)
        except BaseException:
            self._tasks.spawn(self._dispose_unused(creation), name=f"dispose {call.call_id}", report=True)
            raise
        for_llm = credentials.llm_bearer.reveal() if credentials.llm_bearer else None
        # Not a copy of the current scope, which may belong to the parent of a nested call.
        scope = replace(
            self._outside_calls,
            connect=instance.connect_one,
            presented=Presented(credentials, self._downstreams, self._exchanger),
            operations=self._operations,
            questions=questions,
            served=self._served,
            turns=meter,
        )
        running = AgentCall(
            self._spec.name,
            llm_limits=limits.llm,
            on_llm_repeat=WeakMethod(observer.note_repeat),
            reading_pause=WeakMethod(observer.reading_pause),
        )
        meta = {NESTING_META_KEY: call.nesting + 1}
        with (
            entered(scope),
            calling(running),
            self._harness.request_context(bearer_token=for_llm),
            fast_agent_api.asking_for_logs(meta),
        ):
            try:
                yield instance
            finally:
                observer.end_spans()
                # Inside the block: the end of a downstream session requires the same credentials as its use.
                self._tasks.spawn(self._dispose(instance), name=f"dispose {call.call_id}", report=True)

    def _with_state(self, downstream: Downstream) -> Downstream:
        name = downstream.name
        if name in self._offers.asked_ahead:
            return replace(downstream, list_again=partial(self._offers.list_again, name))
        if downstream.program is None:
            return downstream
        list_again = partial(self._programs.request, name) if name in self._programs.names else None
        return replace(downstream, program_state=partial(self._programs.state, name), list_again=list_again)

    async def _create(self, session_id: str) -> HarnessSession:
        with entered(self._outside_calls), calling(AgentCall(self._spec.name)):
            return await self._harness.sessions.create(session_id)

    async def _dispose(self, instance: FastAgentInstance) -> None:
        await instance.dispose()
        self.instances_live -= 1  # only now: an instance that could not be released still exists

    async def _dispose_unused(self, creation: asyncio.Future[HarnessSession]) -> None:
        await asyncio.wait({creation})
        if creation.exception() is None:
            await creation.result().delete()
        self.instances_live -= 1


def _note_trouble(offers: ToolCatalog, programs: ProgramListings, server: str, *, is_outdated: bool) -> None:
    offers.invalidate(server, is_outdated=is_outdated)
    if is_outdated:
        programs.invalidate(server)


def _varying(downstreams: Iterable[Downstream]) -> set[str]:
    """Names of the downstreams whose listings may differ between callers."""
    by_caller = (one for one in downstreams if one.forwards_bearer or one.token_exchange)
    return {one.name for one in by_caller if one.peer is None}


def server_names(fast: FastAgent) -> frozenset[str]:
    """The names of all servers that the module's agents are configured with."""
    return frozenset(server for data in fast.agents.values() for server in data["config"].servers)
