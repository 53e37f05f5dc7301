"""The tools of an agent as MCP describes them, and how a `tools/call` becomes a `Call` and a `Reply` a result."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

from mcp_types import CallToolResult, TextContent, Tool

from pallas_gateway.calls.call import Usage
from pallas_gateway.calls.conversation import current_message, is_text, parse_history, refuse_too_many
from pallas_gateway.calls.parameters import params_schema, parse
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.conversation import Skipped
    from pallas_gateway.config.schema import AgentSettings

GET_HEALTH = "get_health"
META_KEY = "pallas/call"
"""Where a result's `_meta` holds the facts of its call."""
PARAMS_META_KEY = "pallas/params"
"""Where it says which of the call's parameters had no effect, or another."""
LONGEST_ID = 1000
"""Characters of a conversation id, which stands in every log record and notification of its call."""
_HEALTH = "Is this agent well, and are the servers it depends on reachable? Asks no model."
_log = logging.getLogger("pallas.agent_server")

_IMAGE_SCHEMA = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "The image, base64."},
        "mime_type": {"type": "string", "description": "Its type, such as image/png."},
    },
    "required": ["data", "mime_type"],
}
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What to say to the agent: the new user turn."},
        "images": {
            "type": ["array", "null"],
            "items": _IMAGE_SCHEMA,
            "description": "Images of this turn, for agents whose model takes images.",
        },
        "history": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {
                    "role": {"type": "string", "enum": ["user", "assistant"]},
                    "content": {"type": "string"},
                    "images": {"type": ["array", "null"], "items": _IMAGE_SCHEMA},
                },
                "required": ["role", "content"],
            },
            "description": "Earlier turns, oldest first. The agent keeps none: what is not sent is not known.",
        },
        "conversation_id": {
            "type": ["string", "null"],
            "description": "Any identifier of yours; logged and returned, never interpreted.",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}
HEALTH_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def message_tool(name: str, *, title: str, description: str) -> Tool:
    """The message tool under one of its names."""
    return Tool(name=name, title=title, description=description, input_schema=MESSAGE_SCHEMA)


def with_params(tools: Iterable[Tool], settings: AgentSettings) -> list[Tool]:
    """The tools as clients see them: message tools take the `params` that the agent's callers may set, if any.

    Agents that call this one as a peer are shown them without: a model has no say in how another one samples, and need
    not read a page about it in every prompt.
    """
    params = params_schema(settings)
    if params is None:
        return list(tools)
    schema = {**MESSAGE_SCHEMA, "properties": {**MESSAGE_SCHEMA["properties"], "params": params}}
    return [tool if tool.name == GET_HEALTH else tool.model_copy(update={"input_schema": schema}) for tool in tools]


def health_tool(description: str = _HEALTH) -> Tool:
    """The health tool."""
    return Tool(name=GET_HEALTH, title="Health", description=description, input_schema=HEALTH_SCHEMA)


def health_result(document: Mapping[str, Any]) -> CallToolResult:
    """The result of the health tool: one text block with a JSON object."""
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(document))])


def conversation_id_of(arguments: Mapping[str, Any]) -> str | None:
    """The conversation id, unless there is none or it is none; known before anything else may be refused."""
    found = arguments.get("conversation_id")
    return found if _is_identifier(found) else None


def parse_call(asked: Call, arguments: Mapping[str, Any], settings: AgentSettings, *, max_entries: int) -> Call:
    """`asked`, what is known of a call before its arguments are checked, with what they say.

    Args:
        asked: the call so far.
        arguments: of the message tool, unchecked.
        settings: of the agent.
        max_entries: most entries of history, and most images.

    Raises:
        CallRefusedError: `bad_input`, `bad_params` or `bad_image`; the message says what to send instead.
    """
    params = ["params"] if settings.caller_params.allowed else []
    text = _checked(arguments, known=(*MESSAGE_SCHEMA["properties"], *params))
    refuse_too_many(arguments.get("history"), arguments.get("images"), max_entries)
    parameters = parse(arguments.get("params"), settings)
    history, skipped = parse_history(arguments.get("history"))
    message = current_message(text, arguments.get("images"))
    _warn_of_skipped(asked, skipped)
    return replace(asked, message=message, history=history, parameters=parameters)


def _checked(arguments: Mapping[str, Any], *, known: Collection[str]) -> str:
    """The message, after the checks that concern all arguments at once."""
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is not None:
        names = ", ".join(known)
        raise CallRefusedError(f"Unknown argument {quoted(unknown)}. Arguments are: {names}.", reason="bad_input")
    message, conversation_id = arguments.get("message"), arguments.get("conversation_id")
    if not isinstance(message, str):
        raise CallRefusedError("Argument 'message' is required and must be a string.", reason="bad_input")
    if not is_text(message):
        raise CallRefusedError("Argument 'message' holds half a surrogate pair; send whole text.", reason="bad_input")
    if conversation_id is not None and not _is_identifier(conversation_id):
        limit = f"a string of at most {LONGEST_ID} characters"
        raise CallRefusedError(f"Argument 'conversation_id' must be {limit}.", reason="bad_input")
    return message


def _is_identifier(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= LONGEST_ID and is_text(value)


def _warn_of_skipped(call: Call, skipped: Skipped) -> None:
    """One line for a whole history: the number of entries, and the first of them with their reasons."""
    if skipped.count:
        ids = {"agent": call.agent, "call_id": call.call_id, "conversation_id": call.conversation_id}
        first = [{"index": row.index, "why": row.why} for row in skipped.first]
        _log.warning("history entries skipped", extra={**ids, "entries": skipped.count, "first": first})


def reply_result(reply: Reply, call: Call, *, seconds: float) -> CallToolResult:
    """The result of a call that was started."""
    meta = call_meta(call, stop_reason=reply.stop_reason, seconds=seconds, reply=reply)
    failed = reply.failure is not None
    notes = params_meta(reply)
    both = {META_KEY: meta, PARAMS_META_KEY: notes} if notes else {META_KEY: meta}
    return CallToolResult(content=list(reply.content), is_error=failed, meta=both)


def params_meta(reply: Reply) -> dict[str, Any]:
    """`_meta["pallas/params"]`: parameters that were ignored or changed; empty where all took effect as they were."""
    notes = {"ignored": list(reply.ignored), "changed": dict(reply.changed)}
    return {key: value for key, value in notes.items() if value}


def error_result(message: str, meta: dict[str, Any] | None = None) -> CallToolResult:
    """The result of a call that was refused or failed: one sentence a person understands."""
    content = TextContent(type="text", text=message)
    return CallToolResult(content=[content], is_error=True, meta={META_KEY: meta} if meta else None)


def call_meta(call: Call, *, stop_reason: str, seconds: float, reply: Reply | None = None) -> dict[str, Any]:
    """`_meta["pallas/call"]`: ids, stop reason, iterations, tokens by kind, duration in seconds."""
    return {
        "agent": call.agent,
        "conversation_id": call.conversation_id,
        "call_id": call.call_id,
        "stop_reason": stop_reason,
        "iterations": reply.iterations if reply else 0,
        "usage": (reply.usage if reply else Usage()).as_dict(),
        "duration_seconds": round(seconds, 3),
    }
