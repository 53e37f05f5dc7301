"""The response to a request for a turn: JSON, or a stream of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_types import ImageContent
from starlette.responses import JSONResponse

from pallas_gateway.calls.call import Image, Message, with_nested
from pallas_gateway.calls.events.answer_text import text_of
from pallas_gateway.doors.api.errors import limit_of, response_to
from pallas_gateway.errors import GatewayError
from pallas_gateway.features.threads.http import answers
from pallas_gateway.features.threads.http.live_turn import ShownExchange
from pallas_gateway.features.threads.records import ABANDONED, ABANDONED_SENTENCE
from pallas_gateway.telemetry.redaction import storable

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.long_responses import ServerSentEvents


DONE = "[DONE]"  # the last event of every stream


@dataclass(frozen=True, slots=True)
class ExchangeResponse:
    """The response to one request.

    Attributes:
        http: scope, receive and send of the request.
        events: the response if it is a stream; it watches the client in any case.
        is_stream: the client accepts a stream.
        trace_url: returns the page of a call's trace; None for a response to another request than the call's own.
    """

    http: tuple[Scope, Receive, Send]
    events: ServerSentEvents
    is_stream: bool
    trace_url: Callable[[Call], str | None] = lambda _: None

    async def end(self, request: CallRequest, turn: ShownExchange) -> None:
        """Send the response, or its end."""
        outcome, events = request.outcome, self.events
        has_begun = await events.unwatch()
        if self.is_stream and (has_begun or turn.number is not None or not request.has_failed):
            await events.data(answers.line(self._last_event(request, turn)))
            await events.data(DONE)
            await events.end()
        elif isinstance(outcome, GatewayError):
            await response_to(outcome, about=turn.about())(*self.http)
        else:
            await JSONResponse(self._answer(request.call, outcome, turn))(*self.http)

    def _last_event(self, request: CallRequest, turn: ShownExchange) -> answers.Json:
        outcome = request.outcome
        if isinstance(outcome, GatewayError):
            why = {"message": str(outcome), "reason": outcome.reason, **limit_of(outcome)}
            return {"type": "error", **why, **turn.about()}
        return {"type": "final", **self._answer(request.call, outcome, turn)}

    def _answer(self, call: Call, reply: Reply, turn: ShownExchange) -> answers.Json:
        outcome = {"stopReason": reply.stop_reason, "usage": reply.usage.as_dict(), "callId": call.call_id}
        both = with_nested(reply.turns, reply.nested)
        questions = [answers.question(one) for one in turn.questions.values()]
        optional = {
            "params": reply.parameter_notes,
            "stopped": reply.stopped,
            "historyLeftOut": turn.left_out,
            "questions": questions,
            "traceUrl": self.trace_url(call),
            "usageWithNested": both.get("usage_with_nested"),
            "costWithNested": both.get("cost_with_nested"),
        }
        notes = {name: value for name, value in optional.items() if value}
        return {**turn.about(), **answers.content_of(message_of(reply)), **outcome, **notes}


def last_events_of_abandoned(thread_id: str, number: int) -> bytes:
    """The end of a stream whose process has ended, as bytes."""
    about = ShownExchange(thread_id, number).about()
    error = {"type": "error", "message": ABANDONED_SENTENCE, "reason": ABANDONED, **about}
    return f"data: {answers.line(error)}\n\ndata: {DONE}\n\n".encode()


def message_of(reply: Reply) -> Message:
    """The answer as it is stored and sent: its text and images, the only blocks that a model accepts in a history."""
    images = [Image(block.data, block.mime_type) for block in reply.content if isinstance(block, ImageContent)]
    return Message("assistant", storable(text_of(reply)), tuple(images))
