"""Events in the form of the assistant stream: payloads of `notifications/message`. Pure.

`assistant_chunk` and `assistant_chunk_results` are version 2 of the format that clients of Pallas know;
`assistant_delta` is the live text. `calls/assistant_stream.py` has the names of the format, and how payloads of a peer
are relayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.assistant_stream import (
    ANSWER,
    CHUNK,
    DELTA,
    LONGEST_RESULT,
    QUESTION,
    RESULTS,
    SCHEMA_VERSION,
)
from pallas_gateway.calls.events.events import FromPeer, QuestionAsked, QuestionClosed, TextDelta, ToolsEnded, TurnEnded

if TYPE_CHECKING:
    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.events.events import Emitter, Event, ToolResult


def payload_of(event: Event) -> Payload | None:  # noqa: PLR0911  a table
    """Return the payload of an event; None for progress, which is no part of the assistant stream."""
    match event:
        case TextDelta(emitter, iteration, text):
            return {**_head(DELTA, emitter, iteration), "text": text}
        case TurnEnded(emitter, iteration, text, tool_calls, stop_reason):
            calls = [
                {"id": call.id, "server": call.server, "name": call.name, "arguments": dict(call.arguments)}
                for call in tool_calls
            ]
            said = {"text": text, "tool_calls": calls, "stop_reason": stop_reason}
            return {**_head(CHUNK, emitter, iteration), **said}
        case ToolsEnded(emitter, iteration, results):
            return {**_head(RESULTS, emitter, iteration), "results": [_result(one) for one in results]}
        case FromPeer(data):
            return data
        case QuestionAsked(question, message):
            return {"kind": QUESTION, "schema_version": SCHEMA_VERSION, "id": question.id, "message": message}
        case QuestionClosed(id_, action):
            return {"kind": ANSWER, "schema_version": SCHEMA_VERSION, "id": id_, "action": action}
    return None


def _head(kind: str, emitter: Emitter, iteration: int) -> Payload:
    return {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "agent": emitter.agent,
        "conversation_id": emitter.conversation_id,
        "iteration": iteration,
    }


def _result(outcome: ToolResult) -> dict[str, Any]:
    return {
        "id": outcome.call.id,
        "server": outcome.call.server,
        "name": outcome.call.name,
        "is_error": outcome.is_error,
        "text": outcome.text[:LONGEST_RESULT],
        "truncated": len(outcome.text) > LONGEST_RESULT,
        "duration_seconds": round(outcome.duration_seconds, 3),
    }
