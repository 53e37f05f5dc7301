"""The one way in: every API decodes a request for an agent, has `serve_call` answer it, and encodes what comes back.

Here are the call's ids, its trace, the log records' fields, refusals, and the sentence for an unexpected error.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import Call, Message, new_call_id
from pallas_gateway.calls.events import text_of
from pallas_gateway.errors import CallFailedError, CallRefusedError, GatewayError
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.telemetry import redaction, traces
from pallas_gateway.telemetry.current_call import working_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.nesting import Parent
    from pallas_gateway.hosting.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.secret import Secret

_log = logging.getLogger("pallas.calls")


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A request for an agent whose body has not been checked.

    Attributes:
        agent: answers it.
        caller: may run the agent.
        headers: of the HTTP request; of a nested call, those that continue the trace.
        conversation_id: as the client gave it, if it is valid.
        call_id: given by the API; None for a new one.
        mcp_method: None for an API that is not MCP.
        parent: the call that makes this one, None for a client's own call.
        nesting: the calls above this one that the client states; see `nesting.stated`.
    """

    agent: HostedAgent
    caller: Caller
    headers: Mapping[str, str]
    conversation_id: str | None = None
    call_id: str | None = None
    mcp_method: str | None = None
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
            call_id=self.call_id or new_call_id(),
        )


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call that has ended: the reply, or why there is none.

    A reply that is a failure is a `CallFailedError` in `outcome`; `reply` is the agent's reply in every case.
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

        `stopped` is there if the answer is partial.
        """
        outcome, spent = self.outcome, self.reply or self.call.spent
        return {
            "agent": self.call.agent,
            "conversation_id": self.call.conversation_id,
            "call_id": self.call.call_id,
            "stop_reason": outcome.reason if isinstance(outcome, GatewayError) else outcome.stop_reason,
            "iterations": spent.iterations,
            "usage": spent.usage.as_dict(),
            "duration_seconds": round(self.seconds, 3),
            **({"stopped": self.reply.stopped} if self.reply and self.reply.stopped else {}),
        }


async def serve_call[T](
    arrival: IncomingCall,
    parse: Callable[[Call], Awaitable[Call]],
    answer: Callable[[Call], Awaitable[Reply]],
    deliver: Callable[[AnsweredCall], Awaitable[T]],
) -> T:
    """Answer a request; return what `deliver` makes of it.

    Args:
        arrival: the request.
        parse: adds the message, history and parameters to the call. A `GatewayError` refuses the call.
        answer: runs the call; usually by `HostedAgent.begin` or `event_stream.begun`.
        deliver: encodes the end of the call for the client.
    """
    agent, bearer = arrival.agent, bearer_of(arrival.headers.get("authorization"))
    with traces.call(agent.name, arrival.headers, mcp_method=arrival.mcp_method) as span:
        asked = arrival.call()
        with records_of(asked, bearer):
            try:
                # Again: `web/access.py` may have read the request in another way, and nested calls do not pass it.
                if not arrival.caller.grants.may_run(agent.name):
                    raise CallRefusedError(f"You may not call agent '{agent.name}'.", reason="insufficient_scope")
                call = await parse(asked)
            except GatewayError as refusal:
                if isinstance(refusal, CallRefusedError):
                    agent.refuse(asked, refusal)
                answered = AnsweredCall(asked, refusal.with_traceback(None))  # as in `_answered`
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
        outcome = error.with_traceback(None)  # which has this frame: a reference cycle of the whole call
    except Exception:  # noqa: BLE001  the log gets the traceback, the client a sentence
        _log.exception("call failed")
        sentence = f"The gateway failed to answer; its log has the reason under {call.call_id}."
        outcome = CallFailedError(sentence, reason="internal_error")
    return AnsweredCall(call, outcome, reply, monotonic() - call.began)


@contextmanager
def records_of(call: Call, *tokens: Secret | None) -> Iterator[None]:
    """Records written inside the block, and in tasks started in it, carry the call's ids and none of its tokens."""
    revealed = [token.reveal() for token in (call.caller.bearer, *tokens) if token]
    with (
        working_on(
            agent=call.agent, call_id=call.call_id, conversation_id=call.conversation_id, trace_id=call.trace_id
        ),
        redaction.hiding(*revealed),
    ):
        yield
