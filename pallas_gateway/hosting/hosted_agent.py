"""One hosted agent: how it answers a call.

`answer` is the path of every call: admission, a new instance, the model's answer, and the instance's disposal.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.approvals import Approvals
from pallas_gateway.calls.asking import CANNOT_ASK, Questions
from pallas_gateway.calls.call import Credentials
from pallas_gateway.calls.channel import Channel
from pallas_gateway.calls.events import EventChannel
from pallas_gateway.calls.open_calls import OpenCall
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.hosting.accounting import accounting
from pallas_gateway.hosting.agent_state import AgentState
from pallas_gateway.hosting.fitting import fitted, told_of_changes
from pallas_gateway.hosting.question_watch import QuestionEvents

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from pallas_gateway.calls.asking import Asker
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.channel import EventSink, NotificationSender, StreamOptions
    from pallas_gateway.hosting.accounting import Account
    from pallas_gateway.hosting.agent_state import AgentVersion
    from pallas_gateway.runtime.protocols import Instance


class HostedAgent(AgentState):
    """One agent of the project; it exists in every state, and answers in every state."""

    async def answer(self, call: Call, channel: EventSink) -> Reply:
        """Answer one call on a fresh instance; a failure of the model or the runtime is a `Reply` as well.

        Args:
            call: what was asked.
            channel: receives what happens meanwhile.

        Raises:
            CallRefusedError: `busy`, `images_unsupported`, `nesting_too_deep`.
            AgentUnavailableError: the agent is not ready; the message has the reason.
        """
        with accounting(call, self._shared.metrics, self._shared.running) as account:
            self._refuse_too_deep(call)
            version = await self.version_for_call()
            sent = fitted(call, version)
            questions = self._questions(version, channel, call)
            with version.uses.one_more():
                async with (
                    version.admission.slot(nested=call.is_nested) as slots,
                    self._instance(version, sent, channel, questions, account) as instance,
                ):
                    with questions.pauses.including(slots):
                        reply = await instance.generate(sent, timeout_seconds=version.settings.call_timeout_seconds)
                account.reply = told_of_changes(reply, call, sent)
                return account.reply

    def begin(self, call: Call, channel: EventSink) -> asyncio.Task[Reply]:
        """Start answering in a task of its own.

        A vanished client's own task is cancelled again at every await; this one exactly once, by its waiter, so its
        clean-up can still await.
        """
        return self._shared.tasks.spawn(self.answer(call, channel), name=f"call {call.call_id}")

    def channel(self, sender: NotificationSender, options: StreamOptions, asker: Asker = CANNOT_ASK) -> Channel:
        """Return the channel by which the notifications and questions of one call reach its client."""
        return Channel(
            self.name,
            sender,
            options,
            asker,
            heartbeat_seconds=self._shared.heartbeat_seconds,
            on_heartbeat=self._shared.metrics.heartbeats.labels(self.name).inc,
        )

    def refuse(self, call: Call, refusal: CallRefusedError) -> None:
        """Count and log a call whose arguments were refused."""
        with suppress(GatewayError), accounting(call, self._shared.metrics, self._shared.running):
            raise refusal

    @asynccontextmanager
    async def _instance(
        self, version: AgentVersion, call: Call, channel: EventSink, questions: Questions, account: Account
    ) -> AsyncIterator[Instance]:
        """Open an instance for an admitted call."""
        channel.admitted()
        bearer, in_flight = call.caller.bearer, self._shared.metrics.calls_in_flight
        with self._shared.running.one_more(), in_flight.labels(self.name).track_inprogress():
            llm_bearer = bearer if self._shared.llm_pass_through else None
            credentials = Credentials(bearer, llm_bearer)
            async with version.runtime.open(call, credentials, channel, questions) as instance:
                resumable = channel if isinstance(channel, (OpenCall, EventChannel)) else None
                if resumable is not None:
                    resumable.checkpoint = instance.checkpoint
                try:
                    with account.of(instance):
                        yield instance
                finally:
                    if resumable is not None:  # the instance refers to it: a reference cycle of the whole call
                        resumable.checkpoint = lambda _: None

    def _questions(self, version: AgentVersion, channel: EventSink, call: Call) -> Questions:
        asker = channel.asker if version.settings.ask_caller else CANNOT_ASK
        watch = QuestionEvents(self.name, channel, self._shared.metrics, self.open_questions)
        caller = call.caller
        rules = replace(self._shared.ask_rules, client_may_leave=isinstance(asker, OpenCall))
        if caller.authenticated:
            rules = replace(rules, caller=caller.owner or caller.name)
        questions = Questions(self.name, asker, rules, watch, given=call.given)
        allow = version.settings.approve_unasked == "allow"
        questions.approvals = Approvals(version.settings.approve, allow_unasked=allow)
        return questions

    def _refuse_too_deep(self, call: Call) -> None:
        if call.nesting > self._shared.max_nesting:
            message = (
                f"Agent '{self.name}' was called {call.nesting} calls deep; the limit is {self._shared.max_nesting}. "
                "Agents may be calling each other in a circle. Answer without calling another agent."
            )
            raise CallRefusedError(message, reason="nesting_too_deep")
