"""A result that the SDK cannot read is a failure of its tool.

Symptom: a tool has run, and one part of its result is not as the protocol has it: a kind of content that is unknown, a
text that is null, an image without `mimeType`, `structuredContent` without `content` or as a list, `toolResult` of old
servers, no `resultType`. The SDK's client raises pydantic's errors about every kind of content, everything in the
result is lost, and a model that reads them runs the tool again.

Reproduction: call a tool that answers `{"content": [{"type": "text", "text": "booked"}, {"type": "video"}]}`.

Repair: the parts of such a result that can be read are read, and a line says what cannot.
"""

from __future__ import annotations

import json
from functools import wraps
from typing import TYPE_CHECKING, Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from pallas_gateway.calls.tool_results import RAN
from pallas_gateway.changes.change import REPAIR, Change, Name

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
MOST_NAMED = 5
"""Parts that a line names."""
_LONGEST = 60
_REQUIRED = ("type", "text", "data", "mimeType", "uri", "resource")
_result: TypeAdapter[Any] = TypeAdapter(CallToolResult | InputRequiredResult)
_KINDS: dict[str, type[BaseModel]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource_link": ResourceLink,
    "resource": EmbeddedResource,
}


def read_results(original: Callable[..., None], _: object) -> Callable[..., None]:
    """Return the check of a result; that of a tool is made readable first, in place."""

    @wraps(original)
    def validate_server_result(method: str, version: str, data: dict[str, Any], **options: Any) -> None:
        def fits(result: dict[str, Any]) -> bool:
            try:
                original(method, version, result, **options)
                _result.validate_python(result, by_name=False)
            except ValidationError:
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
    return _Messages(original)


class _Messages:
    """The SDK's reader of messages."""

    def __init__(self, reader: TypeAdapter[Any]) -> None:
        self._reader = reader

    def validate_json(self, data: str | bytes, **options: Any) -> Any:
        """Read a message; a result that is no object becomes the content of one."""
        try:
            return self._reader.validate_json(data, **options)
        except ValidationError:
            message = _json(data)
            if not isinstance(message, dict) or isinstance(message.get("result", {}), dict):
                raise
            return self._reader.validate_python({**message, "result": {"content": message["result"]}}, **options)


def _json(data: str | bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def _readable(result: dict[str, Any], fits: Fits) -> dict[str, Any]:
    """What of a result can be read, with a line about the rest."""
    kept: dict[str, Any] = {"content": [], "resultType": "complete"}
    kept |= {
        name: result[name] for name in ("_meta", "isError") if name in result and fits({**kept, name: result[name]})
    }
    unread: list[str] = []
    for place, block in _blocks(result.get("content")):
        found = next((one for one in _forms(block) if fits({**kept, "content": [one]})), None)
        kept["content"] += [] if found is None else [found]
        if found is None or _is_unknown(block):
            unread.append(f"{place}{_why(block)}")
    if (structured := result.get("structuredContent", result.get("toolResult"))) is not None:
        if not unread and not isinstance(structured, str) and fits({**kept, "structuredContent": structured}):
            kept["structuredContent"] = structured
        elif not any(one["type"] == "text" for one in kept["content"]):
            kept["content"].append(_text(structured))
    elif not kept["content"] and not unread:
        unread.append("it has no content")
    return {**kept, "content": [*kept["content"], *_line(kept, unread)]}


def _line(kept: dict[str, Any], unread: list[str]) -> Iterator[dict[str, str]]:
    if unread:
        some = "a part of its answer" if kept["content"] else "its answer"
        named = "; ".join([*unread[:MOST_NAMED], *(["…"] if unread[MOST_NAMED:] else [])])
        began = "The tool failed; " if kept.get("isError") else RAN
        yield _text(f"{began}{some} cannot be read ({named}).")


def _blocks(content: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(content, list):
        yield from ((f"content[{number}]", block) for number, block in enumerate(content))
    elif content is not None:
        yield "content", content


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
