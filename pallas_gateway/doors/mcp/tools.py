"""The tools of an agent in MCP: their descriptions, the `Call` of a `tools/call`, and the result of a `Reply`."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from pallas_gateway.calls.call import CALL_META_KEY, GET_HEALTH, PARAMS_META_KEY
from pallas_gateway.calls.conversation import (
    LONGEST_ID,
    current_message,
    history_rows,
    is_conversation_id,
    is_text,
    parse_history,
    refuse_too_many,
)
from pallas_gateway.calls.parameters import parse
from pallas_gateway.errors import CallLimitedError, CallRefusedError
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pallas_gateway.calls.call import Call
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.tasks import Parts

LIMIT_META_KEY = "pallas/limit"
"""In `_meta` of a refusal: the rule of `gateway.limits`, and when to try again."""
TRACE_META_KEY = "pallas/trace_url"
"""In `_meta` of a result: the page of the call's trace."""
LONGEST_TITLE, LONGEST_DESCRIPTION = 60, 200
"""Bytes of the title and description of a tool, which are in the context of every client's model."""
_HEALTH = "Health of this agent and its servers. Asks no model."
_ONLY_READS = ToolAnnotations(read_only_hint=True)

_ANY_OBJECT = {"type": "object"}  # OpenAI's API refuses a list without `items`
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The new user turn."},
        "images": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"data": {"type": "string"}, "mime_type": {"type": "string"}},
                "required": ["data", "mime_type"],
            },
            "description": "[{data: base64, mime_type}], or PDFs",
        },
        "history": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "role": {"type": "string", "enum": ["user", "assistant"]},
                    "content": {"type": "string"},
                    "images": {"type": "array", "items": _ANY_OBJECT},
                },
                "required": ["role", "content"],
            },
            "description": "Earlier turns, oldest first, [{role, content, images?}]: it remembers none.",
        },
        "conversation_id": {"type": "string", "description": "Logged and returned."},
    },
    "required": ["message"],
    "additionalProperties": False,
}
"""The arguments of a call, as clients see them. `parse_call` accepts null for each optional argument, too.

The schema does not say so, because autogen-ext and dspy fail on types such as `["array", "null"]`.
"""
HEALTH_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def message_tool(name: str, *, title: str, description: str, params: Mapping[str, Any] | None = None) -> Tool:
    """Return the message tool; `params` is the schema of that argument, for callers who may send it."""
    schema = MESSAGE_SCHEMA
    if params is not None:
        schema = {**MESSAGE_SCHEMA, "properties": {**MESSAGE_SCHEMA["properties"], "params": params}}
    return Tool(
        name=name,
        title=clamped_to_bytes(title, LONGEST_TITLE),
        description=clamped_to_bytes(description, LONGEST_DESCRIPTION),
        input_schema=schema,
    )


def in_brief(tool: Tool) -> Tool:
    """Return the message tool with the types and descriptions of its arguments only, for a list of many agents."""
    return _with_properties(tool, keep=("type", "description"))


def under_another_name(tool: Tool, name: str) -> Tool:
    """Return the message tool under another of its names, without descriptions of its arguments."""
    update = {"name": name, "title": None, "description": f"The same as {tool.name}."}
    return _with_properties(tool, keep=("type",)).model_copy(update=update)


def _with_properties(tool: Tool, *, keep: Collection[str]) -> Tool:
    properties = {
        # The description of `params` ends with their names, which a list of many agents has no room for.
        name: {key: str(value).partition(": {")[0] for key, value in schema.items() if key in keep}
        | ({"items": _ANY_OBJECT} if "items" in schema else {})
        for name, schema in tool.input_schema["properties"].items()
    }
    return tool.model_copy(update={"input_schema": {**tool.input_schema, "properties": properties}})


def health_tool(description: str = _HEALTH) -> Tool:
    tool = Tool(name=GET_HEALTH, title="Health", description=description, input_schema=HEALTH_SCHEMA)
    return declared_to_only_read(tool)


def declared_to_only_read(tool: Tool) -> Tool:
    """Return the tool with `readOnlyHint`; without it, Codex asks its user before each call."""
    return tool.model_copy(update={"annotations": _ONLY_READS})


@lru_cache(maxsize=1000)  # the list of all agents asks for each of them every time
def clamped_to_bytes(text: str, most: int) -> str:
    """Return the text on one line, cut after a word so that it has at most `most` bytes as JSON with its escapes."""
    whole = " ".join(text.split())
    sizes = accumulate(len(json.dumps(character)) - 2 for character in whole)
    fits = [size for size in islice(sizes, most + 1) if size <= most]
    if len(fits) == len(whole):
        return whole
    begin = whole[: bisect_right(fits, most - len(r"\u2026"))]
    return f"{begin.rpartition(' ')[0] or begin}…"


def health_result(document: Mapping[str, Any]) -> CallToolResult:
    """Return the result of the health tool: a text block with a JSON object."""
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(document))])


def parse_call(asked: Call, arguments: Mapping[str, Any], settings: AgentSettings, *, max_entries: int) -> Parts[Call]:
    """Add message, history and parameters to `asked`.

    Args:
        asked: the call without its arguments.
        arguments: of the message tool, unchecked.
        settings: of the agent.
        max_entries: most entries of history, and most images.

    Raises:
        CallRefusedError: `bad_input`, `bad_params` or `bad_image`; the message names the correction.
    """
    params = ["params"] if settings.caller_params.allowed else []
    text = _checked(arguments, known=(*MESSAGE_SCHEMA["properties"], *params))
    rows = history_rows(arguments.get("history"))
    refuse_too_many(rows, arguments.get("images"), max_entries)
    parameters = parse(arguments.get("params"), settings)
    history, skipped = yield from parse_history(rows)
    message = yield from current_message(text, arguments.get("images"))
    skipped.warn(asked)
    return replace(asked, message=message, history=history, history_skipped=skipped.count, parameters=parameters)


def _checked(arguments: Mapping[str, Any], *, known: Collection[str]) -> str:
    """Check the names and types of all arguments; return the message."""
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is not None:
        names = ", ".join(known)
        raise CallRefusedError(f"Unknown argument {quoted(unknown)}. Arguments are: {names}.", reason="bad_input")
    message, conversation_id = arguments.get("message"), arguments.get("conversation_id")
    if not isinstance(message, str):
        raise CallRefusedError("Argument 'message' is required and must be a string.", reason="bad_input")
    if not is_text(message):
        raise CallRefusedError("Argument 'message' holds half a surrogate pair; send whole text.", reason="bad_input")
    if conversation_id is not None and not is_conversation_id(conversation_id):
        limit = f"a string of at most {LONGEST_ID} characters"
        raise CallRefusedError(f"Argument 'conversation_id' must be {limit}.", reason="bad_input")
    return message


def call_result(request: CallRequest, trace_url: str | None = None) -> CallToolResult:
    """Return the result of a call: the reply, or the sentence of its error."""
    meta: dict[str, Any] = {CALL_META_KEY: request.facts(), **({TRACE_META_KEY: trace_url} if trace_url else {})}
    if (reply := request.reply) is None:
        content = TextContent(type="text", text=str(request.outcome))
        return CallToolResult(content=[content], is_error=True, meta={**meta, **_limit_meta(request.outcome)})
    notes = reply.parameter_notes
    both = {**meta, PARAMS_META_KEY: notes} if notes else meta
    return CallToolResult(content=list(reply.content), is_error=request.has_failed, meta=both)


def _limit_meta(outcome: object) -> dict[str, Any]:
    """Return `_meta["pallas/limit"]` for a call that a rule refuses."""
    if not isinstance(outcome, CallLimitedError):
        return {}
    return {LIMIT_META_KEY: {"rule": outcome.rule, "retry_after_seconds": outcome.retry_after_seconds}}
