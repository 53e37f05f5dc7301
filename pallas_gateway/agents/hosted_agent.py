"""One hosted agent: its state, and how it answers a call.

`answer` is the path of every call: admission, a fresh instance, the model's answer, and the instance's disposal.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.agents.call_log import Spent, log_refused, log_reply, log_unanswered
from pallas_gateway.agents.images import fit_to_model
from pallas_gateway.agents.parameters import model_for, told_of_changes, with_defaults
from pallas_gateway.agents.version import Uses, Version
from pallas_gateway.calls.channel import Channel
from pallas_gateway.calls.credentials import Credentials
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError
from pallas_gateway.telemetry.redaction import shortened, without_numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from pallas_gateway.agents.admission import Admission
    from pallas_gateway.calls.call import Call, Reply, TurnUsage
    from pallas_gateway.calls.channel import Hearer, Outlet, Wishes
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.config.schema import AgentSettings
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.ports import AgentRuntime, Instance, ModelFacts
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
class Surroundings:
    """What the agents of one gateway share.

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
    on_state: Callable[[HostedAgent], None] = lambda _: None


class HostedAgent:
    """One agent of the project; it exists in every state, and answers in every state."""

    def __init__(self, name: str, settings: AgentSettings, admission: Admission, around: Surroundings) -> None:
        self.name = name
        self.settings = settings
        self._admission = admission
        self._around = around
        self._version: Version | None = None
        self._uses: dict[AgentRuntime, Uses] = {}
        self.host()

    def host(self) -> None:
        """It is hosted from here on; again maybe, while calls from before still run."""
        self.status = Status(State.PENDING)
        self._tried = asyncio.Event()
        self._around.metrics.expect_agent(self.name, self._instances_live)
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
        return self._around.max_history_entries

    @property
    def model(self) -> ModelFacts | None:
        """The model the agent uses, known once it has been ready."""
        return self._version.runtime.model if self._version else None

    def enter(self, state: State, *, reason: str | None = None, runtime: AgentRuntime | None = None) -> None:
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
        self._around.on_state(self)
        if is_change:
            self._around.metrics.agent_state_changes.labels(self.name, state.value).inc()
        if is_change or without_numbers(reason) != without_numbers(before.reason):
            level = logging.ERROR if state is State.FAILED else logging.INFO
            extra = {"agent": self.name, **({"reason": reason} if reason else {})}
            _log.log(level, "agent %s", state.value, extra=extra)

    def take_over(self, settings: AgentSettings, admission: Admission, runtime: AgentRuntime | None = None) -> None:
        """From the next call on, run by these settings, and on this runtime if there is a new one.

        What runs goes on as it began. The agent's state stays what it is: it was up all the time.
        """
        self.settings, self._admission = settings, admission
        if runtime is not None:
            self._version = self._version_on(runtime)
            self._around.on_state(self)
        elif self._version is not None:
            self._version = replace(self._version, settings=settings, admission=admission)

    def move_to(self, around: Surroundings) -> None:
        """Share something else with the other agents from the next call on."""
        self._around = around

    async def wait_until_unused(self, runtime: AgentRuntime) -> None:
        """Return once no call runs on a runtime that takes no more of them."""
        if (uses := self._uses.get(runtime)) is not None:
            await uses.wait_for_none()

    def forget(self, runtime: AgentRuntime) -> None:
        """The runtime was left."""
        self._uses.pop(runtime, None)

    def _version_on(self, runtime: AgentRuntime | None) -> Version | None:
        if runtime is None:
            return None
        self._expect_use(runtime)
        uses = self._uses.setdefault(runtime, Uses())
        return Version(self.settings, self._admission, runtime, uses)

    def _expect_use(self, runtime: AgentRuntime) -> None:
        """Begin the series of the agent's model and downstreams at 0: what the first call adds is an increase then."""
        self._around.metrics.expect_model(self.name, runtime.model.name)
        for downstream in runtime.downstreams:
            self._around.metrics.expect_downstream(self.name, downstream.name)

    def leave(self, why: str) -> None:
        """The runtime is about to end; calls are refused from here on."""
        _log.info("agent stopping", extra={"agent": self.name})
        self.status, self._version = Status(State.PENDING, why), None
        self._tried.set()
        self._count_state()

    @asynccontextmanager
    async def channel(self, outlet: Outlet, wishes: Wishes) -> AsyncIterator[Channel]:
        """The way notifications of one call take to its client; open for the block."""
        channel = Channel(
            self.name,
            outlet,
            wishes,
            heartbeat_seconds=self._around.heartbeat_seconds,
            on_heartbeat=self._around.metrics.heartbeats.labels(self.name).inc,
        )
        async with channel.open(self._around.tasks):
            yield channel

    def begin(self, call: Call, channel: Hearer) -> asyncio.Task[Reply]:
        """Start answering in a task of its own.

        A vanished client's own task is cancelled again at every await; this one exactly once, by whoever waits for it,
        so its clean-up can still await.
        """
        return self._around.tasks.spawn(self.answer(call, channel), name=f"call {call.call_id}")

    async def answer(self, call: Call, channel: Hearer) -> Reply:
        """Answer one call on a fresh instance; a failure of the model or the runtime is a `Reply` as well.

        Args:
            call: what was asked.
            channel: told what happens meanwhile.

        Raises:
            CallRefusedError: `busy`, `images_unsupported`, `nesting_too_deep`.
            AgentUnavailableError: the agent is not ready; says why.
        """
        metrics = self._around.metrics
        started, outcome, spent = monotonic(), "error", Spent()
        try:
            reply = await self._run(call, channel, spent)
            outcome = "ok" if reply.failure is None else "error"
            log_reply(call, reply, seconds=monotonic() - started)
            return reply
        except (CallRefusedError, AgentUnavailableError) as refusal:
            metrics.calls_refused.labels(self.name, refusal.reason).inc()
            log_refused(call, refusal, seconds=monotonic() - started)
            raise
        except BaseException as error:
            log_unanswered(call, self._why_unanswered(error), spent, seconds=monotonic() - started)
            raise
        finally:
            metrics.send_message.labels(self.name, outcome).inc()
            metrics.send_message_seconds.labels(self.name).observe(monotonic() - started)

    def _why_unanswered(self, error: BaseException) -> str:
        if not isinstance(error, asyncio.CancelledError):
            return "internal_error"
        return "stopped" if self._around.running.draining else "cancelled"

    def refuse(self, call: Call, refusal: GatewayError) -> None:
        """Count a call whose arguments were refused, and log it: it is the caller's to mend."""
        log_refused(call, refusal, seconds=0.0)
        self._around.metrics.calls_refused.labels(self.name, refusal.reason).inc()
        self._around.metrics.send_message.labels(self.name, "error").inc()
        self._around.metrics.send_message_seconds.labels(self.name).observe(0)  # the time it took to look at it

    async def _run(self, call: Call, channel: Hearer, spent: Spent) -> Reply:
        self._refuse_too_deep(call)
        version = await self._first_version()
        asked, call = call, with_defaults(fit_to_model(call, model_for(call, version)), version)
        with version.uses.one_more():
            reply = told_of_changes(await self._run_on(version, call, channel, spent), asked, call)
        for reason in reply.halted:
            self._around.metrics.loops_aborted.labels(self.name, reason).inc()
        return reply

    async def _run_on(self, version: Version, call: Call, channel: Hearer, spent: Spent) -> Reply:
        async with version.admission.slot(nested=call.is_nested):
            channel.admitted()
            with (
                self._around.running.token_for(call) as token,
                self._around.metrics.calls_in_flight.labels(self.name).track_inprogress(),
            ):
                async with version.runtime.open(call, self._credentials(call, token), channel) as instance:
                    return await self._generate(instance, call, version.settings.call_timeout_seconds, spent)

    def _credentials(self, call: Call, nested_call_token: Secret) -> Credentials:
        bearer = call.caller.bearer
        return Credentials(bearer, nested_call_token, llm_bearer=bearer if self._around.llm_pass_through else None)

    async def _generate(self, instance: Instance, call: Call, seconds: float, spent: Spent) -> Reply:
        """The instance's answer; what the call cost is counted in any case, a cancelled one was paid for as well."""
        try:
            return await instance.generate(call, timeout_seconds=seconds)
        finally:
            spent.tell(instance)
            self._count_turns(spent.turns)

    async def _first_version(self) -> Version:
        """What to run on. An agent's first start is waited for like a free place: callers need not notice a restart."""
        if self._version is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), self._admission.queue_seconds)
        if self._version is not None:
            return self._version
        hint = "" if self.status.state is State.FAILED else "; try again in a moment"
        raise AgentUnavailableError(f"Agent '{self.name}' cannot take calls: {self.why_not_ready}{hint}")

    def _refuse_too_deep(self, call: Call) -> None:
        if call.nesting > self._around.max_nesting:
            message = (
                f"Agent '{self.name}' was called {call.nesting} calls deep; the limit is {self._around.max_nesting}. "
                "Agents may be calling each other in a circle. Answer without calling another agent."
            )
            raise CallRefusedError(message, reason="nesting_too_deep")

    def _count_turns(self, turns: Iterable[TurnUsage]) -> None:
        for turn in turns:
            self._around.metrics.llm_turns.labels(self.name, turn.model).inc()
            for kind, tokens in turn.by_kind().items():
                self._around.metrics.llm_tokens.labels(self.name, turn.model, kind).inc(tokens)

    def _count_state(self) -> None:
        for state in State:
            self._around.metrics.agent_state.labels(self.name, state.value).set(state is self.status.state)

    def _instances_live(self) -> float:
        return float(sum(runtime.instances_live for runtime in self._uses))
