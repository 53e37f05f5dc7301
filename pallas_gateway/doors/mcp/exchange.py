"""One `tools/call` over HTTP: a POST, answered in the task of the request.

The SDK runs two tasks, a task group and a memory stream for each call of 2026-07-28, and parses its body again. For the
initialize era it runs a server loop with memory streams and a dozen tasks. This module needs neither. It sends the same
bytes as the SDK's transports, which answer all requests that are not well-formed calls.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.runner import modern_error_data, serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

from pallas_gateway.changes.change import Fault
from pallas_gateway.doors.mcp.envelope import SESSION_HEADER, VERSION_HEADER
from pallas_gateway.long_responses import LongResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from mcp.server.lowlevel import Server
    from mcp.shared.dispatcher import CallOptions
    from starlette.requests import Request
    from starlette.types import Receive, Send

    from pallas_gateway.doors.mcp.envelope import McpRequest

    type Expect = Callable[[Request], AbstractContextManager[tuple[str, asyncio.Future[Mapping[str, Any]]]]]
    type Message = JSONRPCResponse | JSONRPCError | JSONRPCNotification | JSONRPCRequest

FAULTS = (
    Fault(
        title="The MCP SDK runs a session for each stateless request",
        text="""\
Symptom: each request of a client that uses `initialize` gets a server loop with its streams and tasks, also without
sessions (`stateless=True`): more than half of a plain call's CPU.

Repair: calls are answered by `serve_one` in the task of their request.
""",
        library="mcp",
        gone_when="`StreamableHTTPSessionManager` answers stateless requests by `serve_one` without further tasks",
        script="mcp_stateless_session.py",
        test="tests/unit/doors/mcp/test_exchange.py",
    ),
)
_HEADERS = {
    b"cache-control": b"no-cache, no-transform",
    b"connection": b"keep-alive",
    b"content-type": b"text/event-stream",
    b"x-accel-buffering": b"no",
}
_TRANSPORT = TransportContext(kind="streamable-http", can_send_request=False)
_NOTHING: dict[str, Any] = {}
_log = logging.getLogger("pallas.agent_server")


@dataclass(frozen=True, slots=True)
class McpToolCall:
    """A well-formed `tools/call`; `route` is what its client says of itself, which the initialize era does not."""

    message: JSONRPCRequest
    route: InboundModernRoute
    is_modern: bool

    @property
    def process(self) -> str | None:
        """The process of the call that this request continues, as its client states it; None for a new call."""
        state = (self.message.params or {}).get("requestState")
        return state.partition(".")[0] if self.is_modern and isinstance(state, str) and "." in state else None


def tool_call(request: McpRequest) -> McpToolCall | None:
    """Return the call of a request; None for a request that the SDK has to answer or refuse."""
    http, headers = request.http, request.http.headers
    version, media_type = headers.get(VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION), headers.get("content-type", "")
    if is_older := version in HANDSHAKE_PROTOCOL_VERSIONS:
        is_json = media_type.partition(";")[0].strip() == "application/json"
    else:
        is_json = media_type.lower().startswith("application/json")
    if http.method != "POST" or not is_json or not all(check_accept_headers(http)) or (message := request.call) is None:
        return None
    if is_older:
        return McpToolCall(message, InboundModernRoute(version, None, None), is_modern=False)
    if find_duplicated_routing_header(headers.items()) is not None:
        return None
    # The SDK would look for headers of arguments now; no tool of the gateway has any.
    route = classify_inbound_request({"method": message.method, "params": message.params}, headers=headers)
    if not isinstance(route, InboundModernRoute):
        return None
    return McpToolCall(message, route, is_modern=route.protocol_version in MODERN_PROTOCOL_VERSIONS)


async def answer(  # noqa: PLR0913  the server, and what one request is made of
    server: Server[Any],
    call: McpToolCall,
    request: Request,
    send: Send,
    expect: Expect,
    *,
    ping_seconds: float,
) -> None:
    """Answer a call: by an event stream, or in the 2026-07-28 era by JSON if nothing comes before the result.

    Args:
        server: has the handlers.
        call: what `request` asks for.
        request: its body has been read; its `receive` returns the client's disconnect.
        send: sends the response.
        expect: makes the id of a request to the client, and waits for the answer.
        ping_seconds: silence after which the client is sent a comment, so that proxies keep the connection.
    """
    message, route = call.message, call.route
    client = _Client(request.receive, send, ping_seconds, is_modern=call.is_modern)
    context = _Context(call, request, client, expect)
    connection = Connection.from_envelope(route.protocol_version, route.client_info, route.client_capabilities)
    if not call.is_modern:
        await client.begin()
    client.keep_alive()
    last: JSONRPCResponse | JSONRPCError
    async with client.watched():
        try:
            result = await serve_one(
                server, context, message.method, message.params, connection=connection, lifespan_state=_NOTHING
            )
            last = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)
        except Exception as failure:  # noqa: BLE001  as the SDK does: every failure is a JSON-RPC error
            error = modern_error_data(failure) if call.is_modern else _error(failure)
            last = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
        finally:
            context.is_open = False
        await client.end_with(last)


def _error(failure: Exception) -> ErrorData:
    if (error := handler_exception_to_error_data(failure)) is not None:
        return error
    # A fault of the gateway.
    _log.error("a request failed", exc_info=failure)
    return ErrorData(code=0, message=str(failure))


class _Client(LongResponse):
    """The client of a call, and the response to it."""

    def __init__(self, receive: Receive, send: Send, ping_seconds: float, *, is_modern: bool) -> None:
        self._is_modern = is_modern
        comment = _ping if is_modern else _dated_ping
        super().__init__(receive, send, headers=_HEADERS, silence_seconds=ping_seconds, comment=comment)

    async def send(self, message: Message) -> None:
        """Send a message before the last one."""
        await self.write(event(message, is_modern=self._is_modern))

    async def end_with(self, message: JSONRPCResponse | JSONRPCError) -> None:
        """Send the last message."""
        if await self.unwatch():
            await self.end(event(message, is_modern=self._is_modern))
            return
        status = ERROR_CODE_HTTP_STATUS.get(message.error.code, 200) if isinstance(message, JSONRPCError) else 200
        response = Response(_ascii(message), status, media_type="application/json")
        await response({"type": "http"}, self._receive, self._send)


def _ping() -> bytes:
    return b": ping\r\n\r\n"


def _dated_ping() -> bytes:
    return f": ping - {datetime.now(UTC)}\r\n\r\n".encode()


class _Context:
    """The `DispatchContext` of a request: the SDK's handlers read the request and send to its client by it."""

    transport = _TRANSPORT

    def __init__(self, call: McpToolCall, request: Request, client: _Client, expect: Expect) -> None:
        self.is_open = True
        # Without a session, any client could answer. 2026-07-28 has no such requests.
        self.can_send_request = not call.is_modern and SESSION_HEADER in request.headers
        self._expect = expect
        self.request = request
        self.request_id = call.message.id
        self.message_metadata = ServerMessageMetadata(request_context=request, can_send_request=False)
        self._client = client

    @cached_property
    def cancel_requested(self) -> anyio.Event:
        """The event that the SDK defines; nothing sets it, because a cancelled call is a cancelled task."""
        return anyio.Event()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, unless the request has been answered."""
        del opts
        if self.is_open:
            await self._client.send(JSONRPCNotification(jsonrpc="2.0", method=method, params=_members(params)))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Do nothing, because the gateway sends its progress by `notify`."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request to the client and return its result.

        Raises:
            NoBackChannelError: the client has no session, or its request has been answered.
            MCPError: the client answered with an error.
        """
        del opts
        if not self.can_send_request or not self.is_open:
            raise NoBackChannelError(method)
        with self._expect(self.request) as (id_, response):
            await self._client.send(JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, params=_members(params)))
            answer = await response
        if isinstance(result := answer.get("result"), dict):
            return result
        raise MCPError(INTERNAL_ERROR, "The client answered with an error.")


def _members(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    # Without absent members: the TypeScript SDK refuses a message with `null` as params.
    return dict(params) if params else None


def event(message: Message, *, is_modern: bool) -> bytes:
    """Return a message as an event of a stream."""
    data = _ascii(message) if is_modern else message.model_dump_json(by_alias=True, exclude_none=True).encode()
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


def _ascii(message: Message) -> bytes:
    document = message.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(document, separators=(",", ":")).encode()
