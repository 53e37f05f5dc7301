"""The `Runtime` on fast-agent: one harness per hosted agent, one fresh session per call."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.token_exchanger import TokenExchanger
from pallas_gateway.runtime import connections, platform
from pallas_gateway.runtime.credentials import presenting
from pallas_gateway.runtime.failures import told
from pallas_gateway.runtime.instances import Connections, FastAgentInstance, defer_connections
from pallas_gateway.runtime.llm_connections import while_waiting
from pallas_gateway.runtime.making import Making
from pallas_gateway.runtime.models import facts_of, model_facts, register_unknown_models
from pallas_gateway.runtime.observer import Observer
from pallas_gateway.runtime.offers import Offers, alike_for_all
from pallas_gateway.runtime.operations import Operations
from pallas_gateway.runtime.origin import Origin, SettingsDigests
from pallas_gateway.runtime.ports import ModelFacts
from pallas_gateway.runtime.providers import llm_providers
from pallas_gateway.runtime.settings import (
    declare_peers,
    forget_unset_placeholders,
    prepare_servers,
    settings_for_hosting,
)
from pallas_gateway.runtime.spares import Spare
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from fast_agent.config import Settings
    from fast_agent.core.fastagent import FastAgent
    from fast_agent.core.harness import AgentHarness, HarnessSession

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.channel import Hearer
    from pallas_gateway.calls.credentials import Credentials
    from pallas_gateway.runtime.ports import AgentPlan, Downstream, LlmProvider
    from pallas_gateway.runtime.sources import Files

_log = logging.getLogger("pallas.runtime")
START_SECONDS = 60.0
"""How long an agent may take to start after its import."""


class FastAgentRuntime:
    """Starts fast-agent agents; an async context manager, left after the last of them."""

    def __init__(self, *, config_file: Path | None) -> None:
        self._config_file = config_file
        self._making = Making(config_file)
        self._settings = SettingsDigests()
        self._exchanger = TokenExchanger()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Check and prepare fast-agent.

        Raises:
            PlatformError: the installed fast-agent does not fit.
        """
        platform.prepare()
        await self._open.enter_async_context(self._exchanger)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget every exchanged token and end fast-agent's process-wide parts."""
        self._making.give_up()
        await self._open.aclose()
        await platform.shut_down()

    def llm_providers(self) -> tuple[LlmProvider, ...]:
        """The providers preflight asks; none if fast-agent's settings cannot be read, which is logged."""
        try:
            settings = platform.read_settings(self._config_file)
            forget_unset_placeholders(settings)
            return llm_providers(settings)
        except Exception as error:  # noqa: BLE001  only a warning: agents that need it fail with their own reason
            _log.warning("LLM providers are not checked", extra={"why": told(error)})
            return ()

    @asynccontextmanager
    async def start(self, plan: AgentPlan, *, anew: bool = False) -> AsyncIterator[FastAgentAgentRuntime]:
        """Make and start one agent; see `Runtime.start`."""
        fast = await self._making.make(plan, anew=anew)
        entered = _Entered(fast)
        try:
            try:
                async with asyncio.timeout(START_SECONDS):
                    runtime = await self._enter(fast, plan, entered)
            except (Exception, SystemExit) as error:
                failure = AgentStartError(_start_failure(plan, error))
                self._making.start_failed(plan, failure, error)
                raise failure from error
            _say_which_are_peers(plan.name, runtime.downstreams)
            yield runtime
            await runtime.close()
        finally:
            await entered.leave()

    async def _enter(self, fast: FastAgent, plan: AgentPlan, entered: _Entered) -> FastAgentAgentRuntime:
        settings = settings_for_hosting(fast, config_file=self._config_file)
        declare_peers(settings, plan.peer_servers)
        origin = self._origin(fast, plan, settings)
        downstreams = prepare_servers(settings, plan.peers)
        register_unknown_models(fast, settings, plan.model_capabilities, plan.models)
        fast.args.no_home = True
        fast.args.quiet = True
        platform.keep_globals_when_leaving(fast)
        harness = await entered.enter()
        runtime = FastAgentAgentRuntime(origin, harness, fast, downstreams, self._exchanger)
        await runtime.rehearse()
        runtime.ask_downstreams()
        return runtime

    def _origin(self, fast: FastAgent, plan: AgentPlan, settings: Settings) -> Origin:
        config_file = Path(fast.config_path) if fast.config_path else self._config_file
        servers = _server_names(fast)
        configured = settings.mcp.servers if settings.mcp else {}
        addresses = frozenset((configured[name].url or "").rstrip("/") for name in servers & configured.keys())
        return Origin(
            plan,
            self._making.files_behind(fast),
            config_file,
            servers,
            addresses,
            self._settings.of(config_file, servers),
            self._settings,
        )


class _Entered:
    """A harness that is left by the task that entered it, and only if it was entered."""

    def __init__(self, fast: FastAgent) -> None:
        self._fast = fast
        self._harness: AgentHarness | None = None

    async def enter(self) -> AgentHarness:
        harness = self._fast.harness()
        await harness.__aenter__()
        self._harness = harness
        return harness

    async def leave(self) -> None:
        if self._harness is not None:
            await self._harness.__aexit__(None, None, None)


class FastAgentAgentRuntime:
    """The `AgentRuntime` of one hosted agent."""

    def __init__(
        self,
        origin: Origin,
        harness: AgentHarness,
        fast: FastAgent,
        downstreams: Mapping[str, Downstream],
        exchanger: TokenExchanger,
    ) -> None:
        self._origin = origin
        self._plan = plan = origin.plan
        self._harness = harness
        self._exchanger = exchanger
        self._served = served_agent(fast, plan.module or plan.name)
        self._downstreams = _used_by(fast, downstreams)
        servers = fast._settings.mcp.servers if fast._settings.mcp else {}
        alike = alike_for_all(servers, self._downstreams.values(), peers_answer_everybody=plan.peers_answer_everybody)
        peers = {name for name, one in self._downstreams.items() if one.peer is not None}
        self._offers = Offers(plan.name, alike, fast.app.context, peers)
        self._connections = Connections(plan.name, self._offers)
        self._operations = Operations(plan.on_operation, _server_names(fast), self._offers.doubt)
        self._tasks = TaskOwner()
        self._answers = TaskOwner()
        self._spare = Spare(self._create, self._tasks)
        self._model = ModelFacts("unknown")  # until rehearse(), which runs before anybody asks
        self._live = 0

    @property
    def model(self) -> ModelFacts:
        """The model the served agent uses."""
        return self._model

    def model_named(self, spec: str) -> ModelFacts:
        """One of the models that callers may choose."""
        return facts_of(spec)

    @property
    def downstreams(self) -> tuple[Downstream, ...]:
        """Every MCP server the module's agents use."""
        return tuple(self._downstreams.values())

    @property
    def instances_live(self) -> int:
        """Instances not yet disposed of."""
        return self._live

    @property
    def files(self) -> Files:
        """The project's files that it was made of."""
        return self._origin.files

    def is_current(self, plan: AgentPlan) -> bool:
        """Whether a start by `plan` would make the same agent."""
        return self._origin.is_still(plan)

    async def rehearse(self) -> None:
        """Make and dispose of one unconnected instance: what would fail in every call fails at start."""
        session = await self._create("rehearsal")
        try:
            self._model = model_facts(session.agent_app, self._served, self._plan.model_capabilities)
            self._spare.only_if_alike(session.agent_app.registered_agents().values())
        finally:
            await session.delete()

    def ask_downstreams(self) -> None:
        """Begin to ask what the downstreams offer, beside the first calls."""
        self._offers.ask()

    async def close(self) -> None:
        """End the answers still under way, whose callers are told, and wait (bounded) for the disposals."""
        await self._answers.cancel_all()
        await self._spare.close()
        await self._tasks.__aexit__()
        await self._offers.close()

    @asynccontextmanager
    async def open(self, call: Call, credentials: Credentials, channel: Hearer) -> AsyncIterator[FastAgentInstance]:
        """A fresh instance for `call`; see `AgentRuntime.open`."""
        creation = self._tasks.spawn(self._obtain(call.call_id), name=f"create {call.call_id}")
        self._live += 1
        try:
            # Shielded: cancelled half-way, an instance would stay in the harness's books for ever.
            session = await asyncio.shield(creation)
            observer = Observer(call, channel, self._plan, self._served)
            instance = FastAgentInstance(session, self._served, self._connections, observer, self._answers)
        except BaseException:
            self._tasks.spawn(self._dispose_unused(creation), name=f"dispose {call.call_id}", report=True)
            raise
        for_llm = credentials.llm_bearer.reveal() if credentials.llm_bearer else None
        with (
            presenting(credentials, self._downstreams, self._exchanger),
            self._harness.request_context(bearer_token=for_llm),
            connections.connecting(instance.connect_one),
            platform.asking_for_logs(),
            while_waiting(self._spare.make),
            self._operations.told(),
        ):
            try:
                yield instance
            finally:
                observer.end_spans()
                # Inside the block: ending a downstream session takes the same credentials as using it did.
                self._tasks.spawn(self._dispose(instance), name=f"dispose {call.call_id}", report=True)

    async def _obtain(self, call_id: str) -> HarnessSession:
        return self._spare.take() or await self._create(call_id)

    async def _create(self, session_id: str) -> HarnessSession:
        with connections.connecting(defer_connections):
            return await self._harness.sessions.create(session_id)

    async def _dispose(self, instance: FastAgentInstance) -> None:
        await instance.dispose()
        self._live -= 1  # not before: what could not be released is still there

    async def _dispose_unused(self, creation: asyncio.Task[HarnessSession]) -> None:
        await asyncio.wait({creation})
        if creation.exception() is None:
            await creation.result().delete()
        self._live -= 1


def served_agent(fast: FastAgent, module: str) -> str:
    """The agent a module serves: its default one, else its only one.

    Raises:
        AgentStartError: `no_agent`; it has none, or several and no default.
    """
    configs = {name: data["config"] for name, data in fast.agents.items()}
    defaults = [name for name, config in configs.items() if config.default]
    candidates = defaults or [name for name, data in fast.agents.items() if not data.get("tool_only", False)]
    if len(candidates) == 1 or defaults:
        return candidates[0]
    if not candidates:
        raise AgentStartError(f"module '{module}' defines no agent", reason="no_agent")
    names = ", ".join(sorted(candidates))
    raise AgentStartError(
        f"module '{module}' defines several agents ({names}); mark the one to serve with default=True",
        reason="no_agent",
    )


def _used_by(fast: FastAgent, downstreams: Mapping[str, Downstream]) -> dict[str, Downstream]:
    used = _server_names(fast)
    return {name: downstream for name, downstream in downstreams.items() if name in used}


def _server_names(fast: FastAgent) -> frozenset[str]:
    """Every server that an agent of the module is configured with."""
    return frozenset(server for data in fast.agents.values() for server in data["config"].servers)


def _say_which_are_peers(agent: str, downstreams: Iterable[Downstream]) -> None:
    for downstream in downstreams:
        if downstream.peer is not None:
            extra = {"agent": agent, "server": downstream.name, "peer": downstream.peer, "url": downstream.url}
            _log.info("server is an agent of this gateway, reached at its own address", extra=extra)


def _start_failure(plan: AgentPlan, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"agent '{plan.name}' did not start within {START_SECONDS:.0f} s"
    if isinstance(error, AgentStartError):
        return str(error)
    return f"agent '{plan.name}' failed to start: {told(error)}"
