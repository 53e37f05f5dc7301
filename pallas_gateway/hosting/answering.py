"""The one way in for calls: every API decodes a request, passes it to `serve_call`, and encodes the result.

`serve_call` gives a call its ids, its trace and the fields of its log records, and makes errors of refusals and of
unexpected exceptions.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Call, Message, new_call_id
from pallas_gateway.calls.spending import Spending
from pallas_gateway.errors import CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.events.answer_text import text_of
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.telemetry import redaction, traces
from pallas_gateway.telemetry.current_call import working_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from pallas_gateway.calls.call import Api, Reply
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.protocols import Parent

_log = logging.getLogger("pallas.calls")


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A request for an agent. Its body has not been checked.

    Attributes:
        agent: the requested agent.
        caller: the caller.
        headers: of the HTTP request; for a nested call the headers that continue the trace.
        conversation_id: as the client gave it, if it is valid.
        call_id: an id that the API has given; None for a new id.
        mcp_method: None for an API that is not MCP.
        api: the API of the request.
        parent: the call that makes this one, None for a client's own call.
        nesting: the calls above this one that the client states; see `nesting.stated`.
    """

    agent: HostedAgent
    caller: Caller
    headers: Mapping[str, str]
    conversation_id: str | None = None
    call_id: str | None = None
    mcp_method: str | None = None
    api: Api = "mcp"
    parent: Parent | None = None
    nesting: int = 0

    def call(self) -> Call:
        """Return the call with its ids and without its message."""
        parent = self.parent.call if self.parent else None
        return Call(
            self.agent.name,
            Message("user", ""),
            conversation_id=self.conversation_id,
            caller=self.caller,
            nesting=max(self.nesting, parent.nesting + 1 if parent else 0),
            parent_call_id=parent.call_id if parent else None,
            trace_id=traces.trace_id(),
            api=self.api,
            call_id=self.call_id or new_call_id(),
            spending=Spending(parent.spending if parent else None),
        )


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call that has ended, with its reply or its error.

    If the reply is a failure, `outcome` is a `CallFailedError`; `reply` is the agent's reply in both cases.
    """

    call: Call
    outcome: Reply | GatewayError
    reply: Reply | None = None
    seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        """True if there is no answer."""
        return isinstance(self.outcome, GatewayError)

    def facts(self) -> dict[str, Any]:
        """Return `_meta["pallas/call"]`: ids, stop reason, iterations, tokens by kind, duration in seconds.

        `stopped` is there if the answer is partial, `cost` if its models have prices, `history_skipped` if entries of
        the history were left out.
        """
        outcome, spent = self.outcome, self.reply or self.call.spent
        return {
            "agent": self.call.agent,
            "conversation_id": self.call.conversation_id,
            "call_id": self.call.call_id,
            "stop_reason": outcome.reason if isinstance(outcome, GatewayError) else outcome.stop_reason,
            "iterations": spent.iterations,
            "usage": spent.usage.as_dict(),
            **({"cost": spent.cost} if spent.cost is not None else {}),
            "duration_seconds": round(self.seconds, 3),
            **({"stopped": self.reply.stopped} if self.reply and self.reply.stopped else {}),
            **({"history_skipped": skipped} if (skipped := self.call.history_skipped) else {}),
        }


async def serve_call[T](
    incoming: IncomingCall,
    parse: Callable[[Call], Awaitable[Call]],
    answer: Callable[[Call], Awaitable[Reply]],
    deliver: Callable[[AnsweredCall], Awaitable[T]],
) -> T:
    """Answer a request; return the result of `deliver`.

    Args:
        incoming: the request.
        parse: adds the message, history and parameters to the call. A `GatewayError` refuses the call.
        answer: runs the call, by `HostedAgent.begin`.
        deliver: encodes the result for the client.
    """
    agent, bearer = incoming.agent, bearer_of(incoming.headers.get("authorization"))
    with traces.call(agent.name, incoming.headers, mcp_method=incoming.mcp_method) as span:
        asked = incoming.call()
        with records_of(asked, bearer):
            try:
                # Checked again: `web/access.py` parses the body separately, and nested calls do not pass it.
                if decide(incoming.caller, agent.name, Action.RUN, exists=True) is not Decision.ALLOWED:
                    raise CallRefusedError(f"You may not call agent '{agent.name}'.", reason="insufficient_scope")
                call = await parse(asked)
            except GatewayError as refusal:
                if isinstance(refusal, CallRefusedError):
                    agent.refuse(asked, refusal)
                answered = AnsweredCall(asked, refusal.with_traceback(None))  # see `_answered`
            else:
                is_renamed = call.conversation_id != asked.conversation_id
                with records_of(call, bearer) if is_renamed else nullcontext():
                    answered = await _answered(call, answer)
            traces.record_result(span, answered.facts(), failed=answered.has_failed)
            return await deliver(answered)


async def _answered(call: Call, answer: Callable[[Call], Awaitable[Reply]]) -> AnsweredCall:
    outcome: Reply | GatewayError
    reply: Reply | None = None
    try:
        outcome = reply = await answer(call)
        if reply.failure is not None:
            sentence = text_of(reply).encode("utf-8", "replace").decode()  # models may say half a surrogate pair
            outcome = CallFailedError(sentence, reason=reply.failure)
    except GatewayError as error:
        outcome = error.with_traceback(None)  # its traceback has this frame: a reference cycle of the whole call
    except Exception:  # noqa: BLE001  the log gets the traceback, the client a sentence
        # A mistake of the gateway's own, over any API.
        _log.exception("call failed")
        sentence = f"The gateway failed to answer; its log has the reason under {call.call_id}."
        outcome = CallFailedError(sentence, reason="internal_error")
    return AnsweredCall(call, outcome, reply, monotonic() - call.began)


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
