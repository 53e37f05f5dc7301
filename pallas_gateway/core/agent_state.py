"""The state of one hosted agent, and the version of it that answers its calls."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking.asking import AskRules
from pallas_gateway.calls.spending import NO_PRICES, Prices
from pallas_gateway.config.model.values import TRACE_ID
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.tasks import UseCount
from pallas_gateway.telemetry.redaction import shortened, without_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.asking.asking import OpenQuestions
    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.trail import Trail
    from pallas_gateway.config.loading.configuration import StoredIdentity
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.core.admission import Admission
    from pallas_gateway.core.calls import Calls
    from pallas_gateway.runtime.protocols import AgentRuntime, LlmProvider, ModelFacts
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

_log = logging.getLogger("pallas.agents")
LONGEST_REASON = 1_000
"""Characters of the reason why an agent failed; texts of servers and modules have any length."""


class State(StrEnum):
    """The state of an agent; `FAILED` agents are retried."""

    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A state, with the reason of a failure and the time of the change."""

    state: State
    reason: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)


@dataclass(frozen=True, slots=True)
class SharedServices:
    """Settings and services that the agents of one gateway share; a reload replaces them.

    Attributes:
        calls: of this process; `tasks` owns their tasks, which the gateway waits for before it stops.
        trail: takes the decisions of callers for the audit log.
        heartbeat_seconds: the longest silence of a call whose client asked for progress.
        max_history_entries: most entries of history, and most images, that one call may have.
        llm_pass_through: send the tokens of callers to LLM providers that accept them.
        on_state: called with an agent whose state has changed.
    """

    calls: Calls
    tasks: TaskOwner
    metrics: Metrics
    trail: Trail
    max_nesting: int
    heartbeat_seconds: float
    max_history_entries: int = 10_000
    llm_pass_through: bool = True
    ask_rules: AskRules = field(default_factory=AskRules)
    on_state: Callable[[AgentState], None] = lambda _: None
    trace_url: str | None = None
    prices: Prices = NO_PRICES


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """A started runtime, and the settings of its calls. A call keeps its version; a reload replaces it for later calls.

    `uses` counts the calls of the runtime, also across changes of settings.
    """

    settings: AgentSettings
    admission: Admission
    runtime: AgentRuntime
    uses: UseCount


class AgentState:
    """The part of `HostedAgent` that changes between calls: its state, settings and version."""

    def __init__(self, name: str, settings: AgentSettings, admission: Admission, shared: SharedServices) -> None:
        self.name = name
        self.identity: StoredIdentity | None = None
        """Of the definition that it uses, or is started with; None for agents of files."""
        self.kept_back: str | None = None
        """Why a later version of it is not in use."""
        self.settings = settings
        self.open_questions: OpenQuestions = {}
        self._admission = admission
        self.shared = shared
        self._version: AgentVersion | None = None
        self._uses: dict[AgentRuntime, UseCount] = {}
        self.reset()

    def reset(self) -> None:
        """Mark as hosted. A removed agent may return while its earlier calls run."""
        self.status = Status(State.PENDING)
        self._tried = asyncio.Event()
        self.shared.metrics.expect_agent(self.name, self._instances_live)
        self._count_state()

    @property
    def id(self) -> str:
        """The id of an agent of the database; empty for agents of files."""
        return self.identity.id if self.identity is not None else ""

    @property
    def runtime(self) -> AgentRuntime | None:
        """The started runtime, None unless ready."""
        return self._version.runtime if self._version else None

    @property
    def keeps_journal(self) -> bool:
        """True if another process can go on with its calls."""
        return self._version is not None and self._version.runtime.keeps_journal

    @property
    def is_refused(self) -> bool:
        """True for an agent of the database that may not run."""
        return self.identity is not None and self.identity.refused is not None

    @property
    def why_not_ready(self) -> str | None:
        """Why the agent cannot take calls, None if it can."""
        return None if self._version else (self.status.reason or f"the agent is {self.status.state.value}")

    @property
    def model(self) -> ModelFacts | None:
        """The model the agent uses, known once it has been ready."""
        return self._version.runtime.model if self._version else None

    def context_window(self, chosen: str | None) -> int | None:
        """Return the context window of the model that a caller has chosen, or of the agent's; None if unknown."""
        if self._version is None:
            return None
        runtime = self._version.runtime
        return (runtime.model if chosen is None else runtime.model_named(chosen)).context_window

    @property
    def provider(self) -> LlmProvider | None:
        """The provider of that model; None for fast-agent's test models."""
        return self._version.runtime.provider if self._version else None

    def trace_url(self, call: Call) -> str | None:
        """Return the page of a call's trace; None if the call has none, or `gateway.trace_url` is not set."""
        template = self.shared.trace_url
        return template.replace(TRACE_ID, call.trace_id) if template and call.trace_id else None

    def set_state(self, state: State, *, reason: str | None = None, runtime: AgentRuntime | None = None) -> None:
        """Set the state; a change is logged and counted.

        Another reason of a failed agent is logged, too, unless only its numbers differ: addresses and times are new
        each time.
        """
        reason = shortened(reason, LONGEST_REASON) if reason else None
        before, self._version = self.status, self._version_on(runtime)
        if state in {State.READY, State.FAILED}:
            self._tried.set()
        is_change = state is not before.state
        self.status = Status(state, reason) if is_change else replace(before, reason=reason)
        self._count_state()
        self.shared.on_state(self)
        if is_change:
            self.shared.metrics.agent_state_changes.labels(self.name, state.value).inc()
        if is_change or without_numbers(reason) != without_numbers(before.reason):
            level = logging.ERROR if state is State.FAILED else logging.INFO
            extra = {"agent": self.name, **({"reason": reason} if reason else {})}
            # `starting`, `ready` or, at ERROR, `failed`: again only for another `reason`.
            _log.log(level, "agent %s", state.value, extra=extra)

    def update(self, settings: AgentSettings, admission: Admission, runtime: AgentRuntime | None = None) -> None:
        """Use these settings, and `runtime` if given, from the next call on. The agent's state does not change."""
        self.settings, self._admission = settings, admission
        if runtime is not None:
            self._version = self._version_on(runtime)
            self.shared.on_state(self)
        elif self._version is not None:
            self._version = replace(self._version, settings=settings, admission=admission)

    def rebind(self, shared: SharedServices) -> None:
        """Use these services from the next call on."""
        self.shared = shared

    async def wait_until_unused(self, runtime: AgentRuntime) -> None:
        """Return when no call runs on an earlier runtime any more."""
        if (uses := self._uses.get(runtime)) is not None:
            await uses.wait_for_none()

    def release(self, runtime: AgentRuntime) -> None:
        """Forget the use of a runtime that was left."""
        self._uses.pop(runtime, None)

    def _version_on(self, runtime: AgentRuntime | None) -> AgentVersion | None:
        if runtime is None:
            return None
        # The series of the model and the downstreams begin at 0, so that the first call is an increase.
        provider = runtime.provider.name if runtime.provider is not None else None
        is_priced = self.shared.prices.of(provider, runtime.model.name) is not None
        self.shared.metrics.expect_model(self.name, runtime.model.name, is_priced=is_priced)
        for downstream in runtime.downstreams:
            self.shared.metrics.expect_downstream(self.name, downstream.name)
        uses = self._uses.setdefault(runtime, UseCount())
        return AgentVersion(self.settings, self._admission, runtime, uses)

    def leave(self, why: str) -> None:
        """Refuse calls from now on, because the runtime ends; `why` is the reason."""
        _log.info("agent stopping", extra={"agent": self.name})
        self.status, self._version = Status(State.PENDING, why), None
        self._tried.set()
        self._count_state()

    async def wait_until_tried(self) -> None:
        """Return once the agent has been ready or failed."""
        await self._tried.wait()

    async def version_for_call(self) -> AgentVersion:
        """Return the version for a new call; wait for the first start of the agent at most as long as for a slot.

        Raises:
            AgentUnavailableError: the agent is not ready; the message has the reason.
        """
        if self._version is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), self._admission.queue_seconds)
        if self._version is not None:
            return self._version
        hint = "" if self.status.state is State.FAILED else "; try again in a moment"
        raise AgentUnavailableError(f"Agent '{self.name}' cannot take calls: {self.why_not_ready}{hint}")

    def _count_state(self) -> None:
        for state in State:
            self.shared.metrics.agent_state.labels(self.name, state.value).set(state is self.status.state)

    def _instances_live(self) -> float:
        runtimes = [*self._uses]  # copied at once: a scrape asks in its thread
        return float(sum(runtime.instances_live for runtime in runtimes))
