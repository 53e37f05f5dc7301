"""Looking into a request's body before it is answered, and handing it on whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pallas_gateway.calls.json_size import has_too_many_values

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Message, Receive

_VIEWED_BY_TOOL = "get_health"


def is_json(headers: Headers) -> bool:
    """Return true if a body is sent as JSON; a page of another origin needs a preflight to send that (CORS)."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def read(receive: Receive, limit: int) -> tuple[bytes, Receive]:
    """The body, or as much of it as is allowed at all, and a `receive` that gives it again."""
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= limit:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    pending = iter(messages)

    async def again() -> Message:
        message = next(pending, None)
        return await receive() if message is None else message

    return b"".join(message.get("body", b"") for message in messages), again


def is_call(body: bytes) -> bool:
    """Whether a request calls an agent. What cannot be read passes: the MCP server refuses it in its own words."""
    return called_tool(body) not in (None, _VIEWED_BY_TOOL)


def called_tool(body: bytes) -> str | None:
    """The tool that a request calls, empty if that cannot be told; None if it calls none, or cannot be read."""
    if has_too_many_values(body):
        return ""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return None
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    return name if isinstance(name, str) else ""
