"""A session that its server has forgotten is an error of each further request.

Symptom: the SDK's client knows the end of a session only by a 404 without a JSON-RPC error. After other refusals of a
restarted server (400, 410, 500, an error in an answer of 200), each tool of that server fails until the end of the
call.

Repair: an error in the words of an SDK, as the first answer to a request that carried a session, is its end; such a
request was not run. Other errors stay: their tool may have run.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.client.streamable_http import RequestContext
    from mcp.shared.message import SessionMessage

CHANGE = Change(
    "forgotten-sessions",
    REPAIR,
    ("mcp", "fast-agent-mcp"),
    seen_in="2.3.0",
    replaces=(Name("mcp.client.streamable_http:StreamableHTTPTransport._handle_post_request", ("self", "ctx")),),
    relies_on=(
        Name("fast_agent.mcp.client_connection:MCPClientConnection._request", ("self", "operation")),
        Name("fast_agent.mcp.mcp_aggregator:MCPAggregator._handle_session_terminated", ("self", "server_name")),
    ),
    gone_when="fast-agent makes a new session after each answer that names a session which its server does not know",
)
_TERMINATED = "Session terminated"
"""The SDK's message, which fast-agent compares."""
_FORGOTTEN = re.compile(
    r"(?:HTTP 4\d\d[^:]*: )?(?:(?:Bad Request|Not Found|Unauthorized): )?"
    r"(?:(?:MCP )?session(?: id)? (?:not found(?: or (?:has )?expired)?|expired|(?:has been )?terminated|required)"
    r"|(?:no valid|invalid(?: or expired)?|unknown|missing) session(?: id)?(?: provided)?"
    r"|server not initialized)"
    r"(?:: [\w.-]+| in mcp-session-id header)?\.?",
    re.IGNORECASE,
)
"""All of a message of an SDK. Tools have sessions as well, of which their own errors speak."""


def changed(original: Callable[..., Awaitable[None]], _: object) -> Callable[..., Awaitable[None]]:
    """Return the method that sends a request and reads its answer."""

    @wraps(original)
    async def handle_post_request(self: Any, ctx: RequestContext) -> None:
        receiver = ctx.read_stream_writer
        has_begun = False

        async def send(received: SessionMessage | Exception) -> None:
            nonlocal has_begun
            message = getattr(received, "message", None)
            if isinstance(message, JSONRPCNotification | JSONRPCRequest):
                has_begun = True
            elif isinstance(message, JSONRPCError) and not has_begun and _FORGOTTEN.fullmatch(message.error.message):
                message.error = ErrorData(code=INVALID_REQUEST, message=_TERMINATED)
            await receiver.send(received)

        if ctx.session_id is not None:
            ctx = replace(ctx, read_stream_writer=cast("Any", SimpleNamespace(send=send)))
        await original(self, ctx)

    return handle_post_request
