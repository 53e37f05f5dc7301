"""The assistant stream: the names of its format, and how a peer's payloads are relayed. Pure.

`calls/events/payloads.py` makes the payloads of `notifications/message`.

Payloads of a peer are passed on. Each gateway on the way appends one element to `via_agent` (the name under which it
called the peer) and one to `call_path` (the id of the tool call that made the call). So a reader can rebuild the tree
from payloads alone, also with parallel calls of one peer at any depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
