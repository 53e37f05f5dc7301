"""One hosted agent: its state, and how it answers a call.

`answer` is the path of every call: admission, a fresh instance, the model's answer, and the instance's disposal.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.calls.conversation import without_images
from pallas_gateway.calls.credentials import Credentials
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError

if TYPE_CHECKING:
    from pallas_gateway.agents.admission import Admission
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.config.schema import AgentSettings
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.runtime.ports import AgentRuntime, ModelFacts
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

_log = logging.getLogger("pallas.agents")


class State(StrEnum):
    """Where an agent is in its life."""

    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A state and, for a failed agent, why."""

    state: State
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the agents of one gateway share."""

    running: RunningCalls
    tasks: TaskOwner
    metrics: Metrics
    max_nesting: int


class HostedAgent:
    """One agent of the project; it exists in every state, and answers in every state."""

    def __init__(self, name: str, settings: AgentSettings, admission: Admission, around: Surroundings) -> None:
        self.name = name
        self.settings = settings
        self.status = Status(State.PENDING)
        self._admission = admission
        self._around = around
        self._runtime: AgentRuntime | None = None
        around.metrics.calls_in_flight.labels(name).set(0)
        around.metrics.instances_live.labels(name).set_function(self._instances_live)
        self._count_state()

    @property
    def runtime(self) -> AgentRuntime | None:
        """The started runtime, None unless ready."""
        return self._runtime

    @property
    def model(self) -> ModelFacts | None:
        """The model the agent uses, known once it has been ready."""
        return self._runtime.model if self._runtime else None

    def enter(self, state: State, *, reason: str | None = None, runtime: AgentRuntime | None = None) -> None:
        """Move to `state`; logged when it is a change."""
        changed = (state, reason) != (self.status.state, self.status.reason)
        self.status, self._runtime = Status(state, reason), runtime
        self._count_state()
        if changed:
            level = logging.ERROR if state is State.FAILED else logging.INFO
            extra = {"agent": self.name, **({"reason": reason} if reason else {})}
            _log.log(level, "agent %s", state.value, extra=extra)

    def leave(self) -> None:
        """The runtime is about to end; calls are refused from here on."""
        self.status, self._runtime = Status(State.PENDING, "the gateway is stopping"), None
        self._count_state()

    async def answer(self, call: Call) -> Reply:
        """Answer one call on a fresh instance.

        Raises:
            CallRefusedError: `busy`, `images_unsupported`, `nesting_too_deep`.
            AgentUnavailableError: the agent is not ready; says why.
            CallFailedError: the model or the runtime failed.
        """
        metrics = self._around.metrics
        started = monotonic()
        outcome = "error"
        try:
            # In a task of its own: a vanished client cancels it exactly once, and its clean-up can still await.
            reply = await self._around.tasks.run(self._run(call), name=f"call {call.call_id}")
            outcome = "ok"
            return reply
        except (CallRefusedError, AgentUnavailableError) as refusal:
            metrics.calls_refused.labels(self.name, refusal.reason).inc()
            raise
        finally:
            metrics.send_message.labels(self.name, outcome).inc()
            metrics.send_message_seconds.labels(self.name).observe(monotonic() - started)

    def refuse(self, refusal: GatewayError) -> None:
        """Count a call that was refused before it became one."""
        self._around.metrics.calls_refused.labels(self.name, refusal.reason).inc()
        self._around.metrics.send_message.labels(self.name, "error").inc()

    async def _run(self, call: Call) -> Reply:
        runtime = self._require_runtime()
        self._refuse_too_deep(call)
        call = fit_to_model(call, runtime.model)
        async with self._admission.slot(nested=call.is_nested):
            with (
                self._around.running.token_for(call) as token,
                self._around.metrics.calls_in_flight.labels(self.name).track_inprogress(),
            ):
                async with runtime.open(call, Credentials(call.caller.bearer, token)) as instance:
                    reply = await instance.generate(call, timeout_seconds=self.settings.call_timeout_seconds)
        self._count_tokens(reply)
        return reply

    def _require_runtime(self) -> AgentRuntime:
        if self._runtime is not None:
            return self._runtime
        why = self.status.reason or f"it is {self.status.state.value}, try again in a moment"
        raise AgentUnavailableError(f"Agent '{self.name}' cannot take calls: {why}")

    def _refuse_too_deep(self, call: Call) -> None:
        if call.nesting > self._around.max_nesting:
            message = (
                f"Agent '{self.name}' was called {call.nesting} calls deep; the limit is {self._around.max_nesting}. "
                "Agents may be calling each other in a circle. Answer without calling another agent."
            )
            raise CallRefusedError(message, reason="nesting_too_deep")

    def _count_tokens(self, reply: Reply) -> None:
        for turn in reply.turns:
            self._around.metrics.llm_turns.labels(self.name, turn.model).inc()
            for kind, tokens in turn.usage.as_dict().items():
                if tokens:
                    self._around.metrics.llm_tokens.labels(self.name, turn.model, kind).inc(tokens)

    def _count_state(self) -> None:
        for state in State:
            self._around.metrics.agent_state.labels(self.name, state.value).set(state is self.status.state)

    def _instances_live(self) -> float:
        return float(self._runtime.instances_live if self._runtime else 0)


def fit_to_model(call: Call, model: ModelFacts) -> Call:
    """The call as its model can take it: images in history are dropped when the model has no vision.

    Raises:
        CallRefusedError: `images_unsupported`, for images of the current turn.
    """
    if model.vision:
        return call
    if call.message.images:
        message = f"Agent '{call.agent}' uses the model '{model.name}', which takes no images. Send text only."
        raise CallRefusedError(message, reason="images_unsupported")
    history, dropped = without_images(call.history)
    if dropped:
        extra = {"agent": call.agent, "call_id": call.call_id, "images": dropped, "model": model.name}
        _log.warning("images in history dropped, the model takes none", extra=extra)
    return replace(call, history=history)
