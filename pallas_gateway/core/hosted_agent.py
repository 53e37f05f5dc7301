"""One hosted agent.

`HostedAgent.answer` is the path of every call: admission, a new instance, the model's answer, and the disposal of the
instance.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, override

from pallas_gateway.calls.asking.approvals import Approvals
from pallas_gateway.calls.asking.asking import CANNOT_ASK, QuestionEvents, Questions
from pallas_gateway.calls.call import Credentials
from pallas_gateway.calls.conversation import attachment_kind, first_foreign_image, without_foreign_images
from pallas_gateway.calls.events.events import Admitted
from pallas_gateway.calls.parameters import clamped, resolved
from pallas_gateway.core.agent_state import AgentState, AgentVersion, State, Status
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.tasks import UseCount
from pallas_gateway.telemetry.redaction import LONGEST_QUOTE, shortened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pallas_gateway.calls.call import Call, Image, Reply
    from pallas_gateway.core.calls import Calls
    from pallas_gateway.runtime.protocols import AgentRuntime, Instance, ModelFacts

_log = logging.getLogger("pallas.agents")
_WITHOUT_THINKING = ("temperature", "top_p", "top_k", "tool_choice")
"""Parameters for which a model may have to stop thinking."""


class HostedAgent(AgentState):
    """One agent of the project. It exists in every state; a call of an agent that is not ready is refused."""

    async def answer(self, running: RunningCall) -> Reply:
        """Answer one call on a new instance: a message, or a tool to run.

        A failure of the model or the runtime is a `Reply`, too.

        Raises:
            CallRefusedError: `busy`, `images_unsupported`, `nesting_too_deep`, `limited`, `audit_unavailable`; for a
                tool `no_tool`, `approval_required`.
            AgentUnavailableError: the agent is not ready; the message has the reason.
        """
        call, shared = running.call, self.shared
        with shared.calls.living(running):
            self._refuse_too_deep(call)
            version = await self.version_for_call()
            sent = fitted(call, version)
            for gate in shared.calls.gates:
                await gate.admit(running)
            running.is_admitted = True
            call.spending.admit(self.name, version.settings, shared.prices, running.permit, shared.tasks)
            running.questions = questions = self._questions(version, running)
            with version.uses.one_more():
                async with (
                    version.admission.slot(call.caller.account, nested=call.is_nested) as slots,
                    self._instance(version, sent, running, questions) as instance,
                ):
                    with questions.pauses.including(slots):
                        work = instance.generate if sent.tool is None else instance.run_tool
                        seconds = running.timeout_seconds or version.settings.call_timeout_seconds
                        reply = await work(sent, timeout_seconds=seconds)
                running.reply = told_of_changes(reply, call, sent)
                return running.reply

    @property
    def calls(self) -> Calls:
        """The calls of this process."""
        return self.shared.calls

    def count_heartbeat(self) -> None:
        self.shared.metrics.heartbeats.labels(self.name).inc()

    def refuse(self, call: Call, refusal: CallRefusedError) -> None:
        """Count and log a call whose arguments were refused."""
        with suppress(GatewayError), self.shared.calls.living(RunningCall(self, call)):
            raise refusal

    @asynccontextmanager
    async def _instance(
        self, version: AgentVersion, sent: Call, running: RunningCall, questions: Questions
    ) -> AsyncIterator[Instance]:
        """Open an instance for an admitted call."""
        running.sink.put(Admitted())
        bearer, in_flight = sent.caller.bearer, self.shared.metrics.calls_in_flight
        with self.shared.calls.one_more(), in_flight.labels(sent.counted_as).track_inprogress():
            credentials = Credentials(bearer, bearer if self.shared.llm_pass_through else None)
            async with version.runtime.open(sent, credentials, running.sink, running.options, questions) as instance:
                with running.using(instance):
                    yield instance

    def _questions(self, version: AgentVersion, running: RunningCall) -> Questions:
        asker = running.asker if version.settings.ask_caller else CANNOT_ASK
        call, trail = running.call, self.shared.trail
        watch = QuestionEvents(call, running.sink, self.shared.metrics, self.open_questions, trail)
        caller = call.caller
        rules = self.shared.ask_rules
        rules = replace(rules, seconds=running.ask_seconds or rules.seconds)
        if caller.authenticated:
            rules = replace(rules, caller=caller.owner or caller.name)
        questions = Questions(self.name, asker, rules, watch, given=call.given)
        allow = version.settings.approve_unasked == "allow"
        patterns, is_for_tool = version.settings.approve, call.tool is not None
        questions.approvals = Approvals(patterns, allow_unasked=allow, refuse_request=is_for_tool)
        return questions

    def _refuse_too_deep(self, call: Call) -> None:
        if call.nesting > self.shared.max_nesting:
            message = (
                f"Agent '{self.name}' was called {call.nesting} calls deep; the limit is {self.shared.max_nesting}. "
                "Agents may be calling each other in a circle. Answer without calling another agent."
            )
            raise CallRefusedError(message, reason="nesting_too_deep")


class TriedAgent(HostedAgent):
    """An agent that is started to be tried: it is in no list, and has no state and no metrics of its own."""

    @override
    def reset(self) -> None:
        self.status, self._tried = Status(State.PENDING), asyncio.Event()

    def answer_on(self, runtime: AgentRuntime) -> None:
        """Answer calls from now on."""
        uses = self._uses.setdefault(runtime, UseCount())
        self._version = AgentVersion(self.settings, self._admission, runtime, uses)

    @override
    def leave(self, why: str) -> None:
        self._version = None


def fitted(call: Call, version: AgentVersion) -> Call:
    """Return the call with the parameters that are sent to the model, without images that it does not take.

    Raises:
        CallRefusedError: see `fit_to_model`.
    """
    chosen = call.parameters.model  # of the models that callers may choose
    model = version.runtime.model if chosen is None else version.runtime.model_named(chosen)
    parameters = clamped(resolved(call.parameters, version.settings.default_params), model.max_output_tokens)
    return replace(fit_to_model(call, model), parameters=parameters)


def _taken(model: ModelFacts, refused: Image) -> str:
    """Return what the model takes, for the sentence that refuses an attachment."""
    types = ", ".join(sorted(model.attachment_types))
    if not types:
        return f"no {attachment_kind(refused)}s; send text only"
    return types if model.vision or attachment_kind(refused) == "document" else f"no images, but {types}"


def fit_to_model(call: Call, model: ModelFacts) -> Call:
    """Return the call without the images and documents of its history that the model does not take.

    Raises:
        CallRefusedError: `images_unsupported`, for one of the current turn that the model does not take.
    """
    if not any(turn.images for turn in (*call.history, call.message)):
        return call
    if (foreign := first_foreign_image(call.message, model.attachment_types)) is not None:
        number, image = foreign
        refused = f"{attachment_kind(image)} {number}"
        message = (
            f"Agent '{call.agent}' uses the model '{model.name}', which does not take {refused} "
            f"({shortened(image.mime_type, LONGEST_QUOTE)}). It takes {_taken(model, image)}."
        )
        raise CallRefusedError(message, reason="images_unsupported")
    history, dropped = without_foreign_images(call.history, model.attachment_types)
    if dropped:
        extra = {"images": dropped, "model": model.name}
        _log.warning("images in history dropped, the model does not take them", extra=extra)
    return replace(call, history=history) if dropped else call


def told_of_changes(reply: Reply, asked: Call, sent: Call) -> Reply:
    """Return the reply with its nested turns, and the notes on parameters of the caller only.

    The caller did not ask for the agent's defaults.
    """
    ignored = tuple(name for name in reply.ignored if name in asked.parameters.given())
    wished = asked.parameters.max_tokens
    used = reply.changed.get("max_tokens", sent.parameters.max_tokens)
    changed = {}
    if wished is not None and used is not None and used != wished and "max_tokens" not in ignored:
        changed["max_tokens"] = used
    if "thinking" in reply.changed and asked.parameters.given().keys() & _WITHOUT_THINKING:
        changed["thinking"] = reply.changed["thinking"]
    return replace(reply, ignored=ignored, changed=changed, nested=asked.spending.nested)
