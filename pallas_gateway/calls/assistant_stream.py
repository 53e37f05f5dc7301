"""The assistant stream: the payloads of `notifications/message`, and how those of a peer are relayed. Pure.

`assistant_chunk` and `assistant_chunk_results` are version 2 of the format that clients of Pallas know;
`assistant_delta` is the live text.

Payloads of a peer are passed on. Each gateway on the way appends one element to `via_agent` (the name under which it
called the peer) and one to `call_path` (the id of the tool call that made the call). So a reader can rebuild the tree
from payloads alone, also with parallel calls of one peer at any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pallas_gateway.calls.events.events import (
    Emitter,
    Event,
    FromPeer,
    QuestionAsked,
    QuestionClosed,
    TextDelta,
    ToolResult,
    ToolsEnded,
    TurnEnded,
)

LOGGER = "pallas.assistant_stream"
STREAM_META_KEY = "pallas/stream"
"""Key of a request's `_meta`; with the value `delta` the client receives live text."""
SCHEMA_VERSION = 2
CHUNK = "assistant_chunk"
RESULTS = "assistant_chunk_results"
DELTA = "assistant_delta"
QUESTION, ANSWER = "question", "answer"
LONGEST_RESULT = 4000
"""Characters of a tool result that go into a payload."""

type Payload = dict[str, Any]
RELAY_VERSION = 3
OLDEST_VERSION = 2
_KINDS = (CHUNK, RESULTS, QUESTION, ANSWER)


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


@dataclass(frozen=True, slots=True)
class PeerCall:
    """The tool call behind which a peer is working now."""

    server: str
    tool: str
    tool_call_id: str


def relayed(logger: str | None, data: object, call: PeerCall | None, *, max_depth: int) -> Payload | None:
    """The payload to pass on, None for what is not passed on.

    Args:
        logger: the notification's logger.
        data: its data, as received.
        call: the tool call it belongs to; None if that is not known.
        max_depth: a payload that already came through this many agents is dropped.
    """
    if call is None or logger != LOGGER or not isinstance(data, dict) or not _is_relayable(data):
        return None
    via, path = _strings(data, "via_agent"), _strings(data, "call_path")
    if len(via) >= max_depth:
        return None
    return {
        **data,
        "via_agent": [*via, call.server],
        "call_path": [*path, call.tool_call_id],
        "parent_call_id": call.tool_call_id,
        "schema_version": RELAY_VERSION,
    }


def _is_relayable(data: Mapping[str, Any]) -> bool:
    version = data.get("schema_version")
    return data.get("kind") in _KINDS and isinstance(version, int) and version >= OLDEST_VERSION


def _strings(data: Mapping[str, Any], key: str) -> list[str]:
    value = data.get(key)
    return [str(one) for one in value] if isinstance(value, list) else []
