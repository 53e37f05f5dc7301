"""A result that the SDK cannot read is a failure of its tool.

Symptom: for one wrong part (an unknown kind of content, a null text) the whole result is lost, and the model runs the
tool again.

Repair: the other parts are read, and a line names the wrong ones.
"""

from __future__ import annotations

import json
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

from mcp_types import CallToolResult, ContentBlock, InputRequiredResult
from pydantic import TypeAdapter, ValidationError

from pallas_gateway.calls.tool_results import RAN, json_of
from pallas_gateway.changes.change import REPAIR, Change, Name
from pallas_gateway.http_answers import decoded
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel

    type Fits = Callable[[dict[str, Any]], bool]

CHANGE = Change(
    "unreadable-results",
    REPAIR,
    ("mcp",),
    seen_in="2.3.0",
    replaces=(
        Name("mcp_types.methods:validate_server_result", ("method", "version", "data"), by="read_results"),
        Name("mcp.client.streamable_http:jsonrpc_message_adapter", by="read_messages"),
    ),
    gone_when="the SDK's client reads the parts of a tool's result each by itself",
)
CALL_TOOL = "tools/call"
_MOST = 300
_MOST_BLOCKS = 1000
"""Blocks that are read of a result of which one cannot be read."""
_LONGEST = 60
_REQUIRED = ("type", "text", "data", "mimeType", "uri", "resource")
_result: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
_KINDS: dict[str, type[BaseModel]] = {one.model_fields["type"].default: one for one in get_args(ContentBlock)}


def read_results(original: Callable[..., None], _: object) -> Callable[..., None]:
    """Return the check of a result; that of a tool is made readable first, in place."""

    @wraps(original)
    def validate_server_result(method: str, version: str, data: dict[str, Any], **options: Any) -> None:
        def fits(result: dict[str, Any]) -> bool:
            try:
                original(method, version, result, **options)
                _result.validate_python(result, by_name=False)
            except (ValueError, RecursionError):  # ValidationError is a ValueError, as is JSON of too many levels
                return False
            return True

        if method != CALL_TOOL or data.get("resultType") == "input_required":
            original(method, version, data, **options)
        elif not fits(data):
            readable = _readable(dict(data), fits)
            data.clear()
            data.update(readable)

    return validate_server_result


def read_messages(original: TypeAdapter[Any], _: object) -> Any:
    """Return the reader of the messages of HTTP servers, for which a result may be any JSON value."""

    def validate_json(data: bytes, **options: Any) -> Any:
        try:
            return original.validate_json(data, **options)
        except ValidationError:
            message = decoded(data)
            if not isinstance(message, dict) or isinstance(message.get("result", {}), dict):
                raise
            return original.validate_python({**message, "result": {"content": message["result"]}}, **options)

    return SimpleNamespace(validate_json=validate_json)


def _readable(result: dict[str, Any], fits: Fits) -> dict[str, Any]:
    """Return the readable parts of a result, and a line about the others."""
    kept: dict[str, Any] = {"content": [], "resultType": "complete"}
    meta = {"_meta": result["_meta"]} if "_meta" in result and fits({**kept, "_meta": result["_meta"]}) else {}
    kept |= {"isError": True} if result.get("isError") else {}
    unread: list[str] = []
    content = result.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    for number, block in enumerate(blocks[:_MOST_BLOCKS]):
        found = next((one for one in _forms(block) if fits({**kept, "content": [one]})), None)
        kept["content"] += [] if found is None else [found]
        if found is None or _is_unknown(block):
            unread.append(f"content[{number}]{_why(block)}")
    if len(blocks) > _MOST_BLOCKS:
        unread.insert(0, f"the last {len(blocks) - _MOST_BLOCKS} blocks")
    if (structured := result.get("structuredContent", result.get("toolResult"))) is not None:
        if not unread and not isinstance(structured, str) and fits({**kept, "structuredContent": structured}):
            kept["structuredContent"] = structured
        elif not any(one["type"] == "text" and json_of(one["text"]) == structured for one in kept["content"]):
            kept["content"].append(_text(structured))
    elif not kept["content"] and not unread:
        unread.append("it has no content")
    return {**kept, **meta, "content": [*kept["content"], *_line(kept, unread)]}


def _line(kept: dict[str, Any], unread: list[str]) -> Iterator[dict[str, str]]:
    if unread:
        some = "a part of its answer" if kept["content"] else "its answer"
        began = "The tool failed; " if kept.get("isError") else RAN
        yield _text(f"{began}{some} cannot be read ({shortened('; '.join(unread), _MOST)}).")


def _forms(block: Any) -> Iterator[dict[str, Any]]:
    """A block as it is, without what is not required, and its text."""
    if isinstance(block, dict):
        yield block
        bare = {name: block[name] for name in _REQUIRED if name in block}
        yield {**bare, "name": block.get("name") or block.get("uri")}
    text = block.get("text") if isinstance(block, dict) else block
    if isinstance(text, str | int | float):
        yield _text(text)


def _is_unknown(block: Any) -> bool:
    return isinstance(block, dict) and str(block.get("type", "text")) not in _KINDS


def _text(value: Any) -> dict[str, str]:
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def _why(block: Any) -> str:
    """The end of a sentence about a block that begins with its place."""
    if not isinstance(block, dict):
        return ": not an object"
    kind = str(block.get("type"))
    if kind not in _KINDS:
        return f": unknown type {kind[:_LONGEST]!r}"
    try:
        _KINDS[kind].model_validate(block, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f".{'.'.join(map(str, first['loc']))}: {first['msg']}"[: 2 * _LONGEST]
    return f": not of this version of the protocol ({kind})"
