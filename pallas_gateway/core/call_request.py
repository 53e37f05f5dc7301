"""The one way in for calls: every API decodes a request within `requested`, runs the call, and encodes the outcome.

In the block of a request, log records have the ids of its call, and everything is part of its span.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Call, Message, cost_of, new_call_id, usage_of, with_nested
from pallas_gateway.calls.events.answer_text import text_of
from pallas_gateway.calls.spending import Spending
from pallas_gateway.errors import CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.telemetry import redaction, traces
from pallas_gateway.telemetry.current_call import renamed, working_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from pallas_gateway.calls.call import Api, Reply
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.protocols import ParentCall

_log = logging.getLogger("pallas.calls")


class CallRequest:
    """A request for a new call of an agent, or for one that runs, and its outcome.

    Attributes:
        agent: the requested agent.
        call: the call; without its message until it is `decoded`.
        reply: the agent's reply, also if it is a failure.
        seconds: the duration of the call until its outcome.
    """

    def __init__(self, agent: HostedAgent, call: Call) -> None:
        self.agent = agent
        self.call = call
        self.reply: Reply | None = None
        self.seconds = 0.0
        self._outcome: Reply | GatewayError | None = None

    @property
    def outcome(self) -> Reply | GatewayError:
        """The reply or the error; a reply that is a failure is a `CallFailedError`."""
        if self._outcome is None:
            raise RuntimeError("the request has no outcome yet")
        return self._outcome

    @property
    def has_outcome(self) -> bool:
        """False before the end, and for a request whose client has left."""
        return self._outcome is not None

    @property
    def has_failed(self) -> bool:
        """True if there is no answer."""
        return isinstance(self._outcome, GatewayError)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Use an exception of the block as the outcome of the request, also an unexpected one."""
        try:
            yield
        except GatewayError as error:
            self._outcome = error.with_traceback(None)  # its traceback has this frame: a reference cycle of the call
        except Exception:  # noqa: BLE001  the log gets the traceback, the client a sentence
            # A fault of the gateway.
            _log.exception("call failed")
            sentence = f"The gateway failed to answer; its log has the reason under {self.call.call_id}."
            self._outcome = CallFailedError(sentence, reason="internal_error")
        self.seconds = monotonic() - self.call.began

    async def decoded(self, decode: Callable[[Call], Awaitable[Call]]) -> Call:
        """Add what `decode` reads in the request to the call, and return it; a refused call is counted and logged.

        Raises:
            GatewayError: `decode` has refused the request, or the caller may not run the agent.
        """
        asked = self.call
        try:
            # Checked again: `doors/http/access.py` parses the body separately, and nested calls do not pass it.
            if decide(asked.caller, self.agent.name, Action.RUN, exists=True) is not Decision.ALLOWED:
                raise CallRefusedError(f"You may not call agent '{self.agent.name}'.", reason="insufficient_scope")
            self.call = await decode(asked)
        except CallRefusedError as refusal:
            self.agent.refuse(asked, refusal)
            raise
        if self.call.conversation_id != asked.conversation_id:
            renamed(call_id=self.call.call_id, conversation_id=self.call.conversation_id)
        return self.call

    def ended(self, reply: Reply) -> None:
        """Use the agent's reply as the outcome of the request."""
        self._outcome = self.reply = reply
        if reply.failure is not None:
            sentence = text_of(reply).encode("utf-8", "replace").decode()  # models may say half a surrogate pair
            self._outcome = CallFailedError(sentence, reason=reply.failure)

    def facts(self) -> dict[str, Any]:
        """Return `_meta["pallas/call"]`: ids, stop reason, iterations, tokens by kind, duration in seconds.

        `stopped` is there if the answer is partial, `cost` if its models have prices, `usage_with_nested` and
        `cost_with_nested` if it has called other agents, `history_skipped` if entries of the history were left out.
        """
        outcome, spent, nested = self.outcome, self.reply or self.call.spent, self.call.spending.nested
        cost = cost_of(spent.turns)
        return {
            "agent": self.call.agent,
            "conversation_id": self.call.conversation_id,
            "call_id": self.call.call_id,
            "stop_reason": outcome.reason if isinstance(outcome, GatewayError) else outcome.stop_reason,
            "iterations": spent.iterations,
            "usage": usage_of(spent.turns).as_dict(),
            **({"cost": cost} if cost is not None else {}),
            **(with_nested(spent.turns, nested) if nested else {}),
            "duration_seconds": round(self.seconds, 3),
            **({"stopped": self.reply.stopped} if self.reply and self.reply.stopped else {}),
            **({"history_skipped": skipped} if (skipped := self.call.history_skipped) else {}),
        }


@contextmanager
def requested(  # noqa: PLR0913  what a request says of its call
    agent: HostedAgent,
    caller: Caller,
    headers: Mapping[str, str],
    *,
    conversation_id: str | None = None,
    call_id: str | None = None,
    mcp_method: str | None = None,
    api: Api = "mcp",
    parent: ParentCall | None = None,
    nesting: int = 0,
) -> Iterator[CallRequest]:
    """Make the `CallRequest` of a request whose body has not been checked; it is valid within the block.

    Args:
        agent: the requested agent.
        caller: the caller.
        headers: of the HTTP request; for a nested call the headers that continue the trace.
        conversation_id: as the client gave it, if it is valid.
        call_id: an id that the API has given; None for a new id.
        mcp_method: None for an API that is not MCP.
        api: the API of the request.
        parent: the call that makes this one, None for a client's own call.
        nesting: the calls above this one that the client states; see `stated_nesting`.
    """
    bearer = bearer_of(headers.get("authorization"))
    above = parent.call if parent is not None else None
    with traces.call(agent.name, headers, mcp_method=mcp_method) as span:
        call = Call(
            agent.name,
            Message("user", ""),
            conversation_id=conversation_id,
            caller=caller,
            nesting=max(nesting, above.nesting + 1 if above is not None else 0),
            parent_call_id=above.call_id if above is not None else None,
            trace_id=traces.trace_id(),
            api=api,
            call_id=call_id or new_call_id(),
            spending=Spending(above.spending if above is not None else None),
        )
        with records_of(call, bearer):
            request = CallRequest(agent, call)
            try:
                yield request
            finally:
                if span.is_recording() and request.has_outcome:
                    traces.record_result(span, request.facts(), failed=request.has_failed)


@contextmanager
def records_of(call: Call, *tokens: Secret | None) -> Iterator[None]:
    """Add the call's ids to log records of the block and of its tasks, and hide the call's tokens in them."""
    revealed = [token.reveal() for token in (call.caller.bearer, *tokens) if token]
    with (
        working_on(
            agent=call.agent, call_id=call.call_id, conversation_id=call.conversation_id, trace_id=call.trace_id
        ),
        redaction.hiding(*revealed),
    ):
        yield
