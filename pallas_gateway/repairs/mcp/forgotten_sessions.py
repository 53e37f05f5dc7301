"""A session that its server has forgotten is an error of each further request.

Symptom: a server of the initialize era that has been restarted refuses the sessions of its life before, in the words of
its SDK: 404 or 400 with a JSON-RPC error, 410, 500, or an error in an answer of 200. Only after a 404 without such an
error does the SDK's client report the end of the session, which is what fast-agent makes a new one for. After all
others every tool of that server fails until the end of the call.

Reproduction: call a tool of a server of the TypeScript SDK, start it again, and call the tool again.

Repair: an error that speaks of the session, in answer to a request that carried one, is the end of the session. Such a
request was not run. Other errors stay: their tool may have run.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError

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
_LONGEST = 300
_FORGOTTEN = re.compile(
    r"\b(?:no|not a|invalid|unknown|missing|expired|unrecognized)\b.{0,30}\bsession\b"
    r"|\bsession\b.{0,60}\b(?:not found|not exist|expired|terminated|unknown|invalid|missing|required|closed|ended)\b"
    r"|\bserver not initialized\b",
    re.IGNORECASE | re.DOTALL,
)


def changed(original: Callable[..., Awaitable[None]], _: object) -> Callable[..., Awaitable[None]]:
    """Return the method that sends a request and reads its answer."""

    @wraps(original)
    async def handle_post_request(self: Any, ctx: RequestContext) -> None:
        receiver = ctx.read_stream_writer

        async def send(received: SessionMessage | Exception) -> None:
            message = getattr(received, "message", None)
            if isinstance(message, JSONRPCError) and _FORGOTTEN.search(message.error.message[:_LONGEST]):
                message.error = ErrorData(code=INVALID_REQUEST, message=_TERMINATED)
            await receiver.send(received)

        if ctx.session_id is not None:
            ctx = replace(ctx, read_stream_writer=cast("Any", SimpleNamespace(send=send)))
        await original(self, ctx)

    return handle_post_request
