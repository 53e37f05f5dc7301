"""The life of one hosted agent: its state, the version that answers its calls, and their metrics."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking import AskRules
from pallas_gateway.config.model.values import TRACE_ID
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.tasks import UseCount
from pallas_gateway.telemetry.redaction import shortened, without_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.hosting.admission import Admission
    from pallas_gateway.hosting.question_watch import OpenQuestions
    from pallas_gateway.runtime.protocols import AgentRuntime, LlmProvider, ModelFacts
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

_log = logging.getLogger("pallas.agents")
LONGEST_REASON = 1_000
"""Characters of why an agent failed; servers and modules may say anything."""


class State(StrEnum):
    """Where an agent is in its life."""

    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A state, for a failed agent why, and since when."""

    state: State
    reason: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)


@dataclass(frozen=True, slots=True)
class SharedServices:
    """Settings and services that the agents of one gateway share.

    `llm_pass_through`: callers' tokens go to LLM providers that take them. `on_state` is called with an agent that has
    changed its state.
    """

    running: RunningCalls
    tasks: TaskOwner
    metrics: Metrics
    max_nesting: int
    heartbeat_seconds: float
    max_history_entries: int = 10_000
    llm_pass_through: bool = True
    ask_rules: AskRules = field(default_factory=AskRules)
    on_state: Callable[[AgentState], None] = lambda _: None
    trace_url: str | None = None


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """A started runtime and the settings that calls on it run by, from the beginning of a call to its end.

    A reload replaces it for later calls. `uses` goes with the runtime, whatever settings change.
    """

    settings: AgentSettings
    admission: Admission
    runtime: AgentRuntime
    uses: UseCount


class AgentState:
    """The life of an agent between its calls: pending, starting, ready on a version, or failed; see `HostedAgent`."""

    def __init__(self, name: str, settings: AgentSettings, admission: Admission, shared: SharedServices) -> None:
        self.name = name
        self.settings = settings
        self.open_questions: OpenQuestions = {}
        self._admission = admission
        self._shared = shared
        self._version: AgentVersion | None = None
        self._uses: dict[AgentRuntime, UseCount] = {}
        self.reset()

    def reset(self) -> None:
        """It is hosted from here on; again maybe, while calls from before still run."""
        self.status = Status(State.PENDING)
        self._tried = asyncio.Event()
        self._shared.metrics.expect_agent(self.name, self._instances_live)
        self._count_state()

    @property
    def runtime(self) -> AgentRuntime | None:
        """The started runtime, None unless ready."""
        return self._version.runtime if self._version else None

    @property
    def why_not_ready(self) -> str | None:
        """Why the agent cannot take calls, None if it can."""
        return None if self._version else (self.status.reason or f"the agent is {self.status.state.value}")

    @property
    def max_history_entries(self) -> int:
        """Most entries of history, and most images, that one call may have."""
        return self._shared.max_history_entries

    @property
    def model(self) -> ModelFacts | None:
        """The model the agent uses, known once it has been ready."""
        return self._version.runtime.model if self._version else None

    @property
    def provider(self) -> LlmProvider | None:
        """The provider of that model; None for fast-agent's test models."""
        return self._version.runtime.provider if self._version else None

    def trace_url(self, call: Call) -> str | None:
        """Return the page of a call's trace; None if the call has none, or `gateway.trace_url` is not set."""
        template = self._shared.trace_url
        return template.replace(TRACE_ID, call.trace_id) if template and call.trace_id else None

    def set_state(self, state: State, *, reason: str | None = None, runtime: AgentRuntime | None = None) -> None:
        """Move to `state`; logged and counted when it is another one.

        A failed agent that fails again has its newest reason. That one is logged as well, if it is another one by more
        than the numbers in it: an address or a time is new at every try.
        """
        reason = shortened(reason, LONGEST_REASON) if reason else None
        before, self._version = self.status, self._version_on(runtime)
        if state in {State.READY, State.FAILED}:
            self._tried.set()
        is_change = state is not before.state
        self.status = Status(state, reason) if is_change else replace(before, reason=reason)
        self._count_state()
        self._shared.on_state(self)
        if is_change:
            self._shared.metrics.agent_state_changes.labels(self.name, state.value).inc()
        if is_change or without_numbers(reason) != without_numbers(before.reason):
            level = logging.ERROR if state is State.FAILED else logging.INFO
            extra = {"agent": self.name, **({"reason": reason} if reason else {})}
            _log.log(level, "agent %s", state.value, extra=extra)

    def update(self, settings: AgentSettings, admission: Admission, runtime: AgentRuntime | None = None) -> None:
        """From the next call on, run by these settings, and on this runtime if there is a new one.

        What runs goes on as it began. The agent's state stays what it is: it was up all the time.
        """
        self.settings, self._admission = settings, admission
        if runtime is not None:
            self._version = self._version_on(runtime)
            self._shared.on_state(self)
        elif self._version is not None:
            self._version = replace(self._version, settings=settings, admission=admission)

    def rebind(self, shared: SharedServices) -> None:
        """Share something else with the other agents from the next call on."""
        self._shared = shared

    async def wait_until_unused(self, runtime: AgentRuntime) -> None:
        """Return once no call runs on a runtime that takes no more of them."""
        if (uses := self._uses.get(runtime)) is not None:
            await uses.wait_for_none()

    def release(self, runtime: AgentRuntime) -> None:
        """The runtime was left."""
        self._uses.pop(runtime, None)

    def _version_on(self, runtime: AgentRuntime | None) -> AgentVersion | None:
        if runtime is None:
            return None
        self._expect_use(runtime)
        uses = self._uses.setdefault(runtime, UseCount())
        return AgentVersion(self.settings, self._admission, runtime, uses)

    def _expect_use(self, runtime: AgentRuntime) -> None:
        """Begin the series of the agent's model and downstreams at 0: what the first call adds is an increase then."""
        self._shared.metrics.expect_model(self.name, runtime.model.name)
        for downstream in runtime.downstreams:
            self._shared.metrics.expect_downstream(self.name, downstream.name)

    def leave(self, why: str) -> None:
        """The runtime is about to end; calls are refused from here on."""
        _log.info("agent stopping", extra={"agent": self.name})
        self.status, self._version = Status(State.PENDING, why), None
        self._tried.set()
        self._count_state()

    async def version_for_call(self) -> AgentVersion:
        """Return what a call runs on; wait for an agent's first start as for a free place.

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
            self._shared.metrics.agent_state.labels(self.name, state.value).set(state is self.status.state)

    def _instances_live(self) -> float:
        runtimes = [*self._uses]  # copied at once: a scrape asks in its thread
        return float(sum(runtime.instances_live for runtime in runtimes))
