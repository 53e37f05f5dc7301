"""The assistant's work as clients see it while a call runs: payloads of `notifications/message`. Pure.

`assistant_chunk` and `assistant_chunk_results` are version 2 of the format Pallas' clients know; `assistant_delta` is
the live text. `iteration` counts LLM turns of the emitting agent from 1.

Payloads of a peer are passed on. Each gateway on the way appends one element to `via_agent` (the name under which it
called the peer) and one to `call_path` (the id of the tool call that made the call). So a reader can rebuild the tree
from payloads alone, also with parallel calls of one peer at any depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


@dataclass(frozen=True, slots=True)
class Emitter:
    """The sender of a payload: the agent by the name that clients know, and the client's own conversation id.

    `is_served` tells the agent that was called from those inside it, one of which may have the same name.
    """

    agent: str
    conversation_id: str | None
    is_served: bool = True


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call that an LLM requested; `server` is None for a tool that is no downstream's."""

    id: str
    server: str | None
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call."""

    call: ToolCall
    is_error: bool
    text: str
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """One LLM turn has ended: `assistant_chunk`."""

    emitter: Emitter
    iteration: int
    text: str
    tool_calls: Sequence[ToolCall] = ()
    stop_reason: str | None = None

    def payload(self) -> Payload:
        """Return the form of `notifications/message`."""
        calls = [
            {"id": call.id, "server": call.server, "name": call.name, "arguments": dict(call.arguments)}
            for call in self.tool_calls
        ]
        said = {"text": self.text, "tool_calls": calls, "stop_reason": self.stop_reason}
        return {**_head(CHUNK, self.emitter, self.iteration), **said}


@dataclass(frozen=True, slots=True)
class ToolsEnded:
    """The tool calls of one LLM turn have ended: `assistant_chunk_results`."""

    emitter: Emitter
    iteration: int
    results: Sequence[ToolResult]

    def payload(self) -> Payload:
        """Return the form of `notifications/message`."""
        return {**_head(RESULTS, self.emitter, self.iteration), "results": [_result(one) for one in self.results]}


@dataclass(frozen=True, slots=True)
class FromPeer:
    """An event of a peer's assistant in the form in which the peer sent it; see `relay`."""

    data: Payload

    def payload(self) -> Payload:
        """Return the form of `notifications/message`."""
        return self.data


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """The caller is asked a question: `question`."""

    id: str
    message: str

    def payload(self) -> Payload:
        """Return the form of `notifications/message`."""
        return {"kind": QUESTION, "schema_version": SCHEMA_VERSION, "id": self.id, "message": self.message}


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """The caller's question is closed: `answer`; its `action` is `accept`, `decline` or `cancel`."""

    id: str
    action: str

    def payload(self) -> Payload:
        """Return the form of `notifications/message`."""
        return {"kind": ANSWER, "schema_version": SCHEMA_VERSION, "id": self.id, "action": self.action}


type AssistantEvent = TurnEnded | ToolsEnded | QuestionAsked | QuestionAnswered | FromPeer


def delta(emitter: Emitter, iteration: int, text: str) -> Payload:
    """New characters of the live text."""
    return {**_head(DELTA, emitter, iteration), "text": text}


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
