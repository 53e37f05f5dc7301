"""One `tools/call` of the initialize era over HTTP: a POST, answered by an event stream of its own.

Without sessions, the stream of a call has only its notifications and its result. For that, the SDK's transport runs a
server loop with memory streams and a dozen tasks, which costs more than the gateway's own work. The SDK has no such
loop for 2026-07-28. This module avoids it for the initialize era. It sends the same bytes as
`StreamableHTTPServerTransport`, which answers all requests that are not well-formed calls.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.runner import serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.exceptions import NoBackChannelError
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
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from pallas_gateway.changes.change import Fault
from pallas_gateway.mcp_server.envelope import SESSION_HEADER, VERSION_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from mcp.server.lowlevel import Server
    from mcp.shared.dispatcher import CallOptions
    from starlette.requests import Request
    from starlette.types import Receive, Send

    type Expect = Callable[[Request], AbstractContextManager[tuple[str, asyncio.Future[Mapping[str, Any]]]]]

FAULTS = (
    Fault(
        title="The MCP SDK runs a session for each stateless request",
        text="""\
Symptom: without sessions (`stateless=True`), each request of a client that uses `initialize` still gets a session: a
server loop with its memory streams and tasks. For a call of an agent without tools this cost more than half of the
gateway's CPU.

Reproduction: a call makes 10 tasks with protocol version 2025-11-25, and 2 with 2026-07-28.

Repair: calls of the older versions are answered by `serve_one`, as the SDK does for 2026-07-28. All other requests are
left to the SDK's transport.
""",
        library="mcp",
        gone_when="`StreamableHTTPSessionManager` answers stateless requests of all versions by `serve_one`",
        script="mcp_stateless_session.py",
        test="tests/unit/mcp_server/test_stateless_call.py",
    ),
)
_HEADERS = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]
_TRANSPORT = TransportContext(kind="streamable-http", can_send_request=False)
_log = logging.getLogger("pallas.agent_server")


def may_be_call(request: Request) -> bool:
    """Return True if a request can be a call of the initialize era, by its method and headers."""
    return (
        request.method == "POST"
        and request.headers.get(VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION) in HANDSHAKE_PROTOCOL_VERSIONS
        and request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        and all(check_accept_headers(request))
    )


async def answer(  # noqa: PLR0913  the server, and what one request is made of
    server: Server[Any],
    call: JSONRPCRequest,
    request: Request,
    send: Send,
    expect: Expect,
    *,
    ping_seconds: float,
) -> None:
    """Answer a call on its response stream, which begins at once.

    Args:
        server: has the handlers.
        call: the envelope of `request`.
        request: its body has been read; its `receive` returns the client's disconnect.
        send: sends the response.
        expect: makes the id of a request to the client, and waits for the answer.
        ping_seconds: silence after which the client is sent a comment, so that proxies keep the connection.
    """
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    client, context = _Client(request.receive, send, ping_seconds), _Context(call, request, send, expect)
    answering = cast("asyncio.Task[Any]", asyncio.current_task())  # an ASGI app runs in one
    watching = asyncio.create_task(client.watch(answering), name="client of a call")
    version = request.headers.get(VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
    connection = Connection.from_envelope(version, None, None)
    last: JSONRPCResponse | JSONRPCError
    try:
        try:
            result = await serve_one(
                server, context, call.method, call.params, connection=connection, lifespan_state=_NOTHING
            )
            last = JSONRPCResponse(jsonrpc="2.0", id=call.id, result=result)
        except Exception as failure:  # noqa: BLE001  as the SDK does: every failure is a JSON-RPC error
            last = JSONRPCError(jsonrpc="2.0", id=call.id, error=_error(failure))
        finally:
            context.is_open = False
        watching.cancel()  # no comment comes after the last message
        await send({"type": "http.response.body", "body": event(last), "more_body": False})
    except asyncio.CancelledError:
        if not client.has_left:
            raise
        answering.uncancel()
    finally:
        watching.cancel()


_NOTHING: dict[str, Any] = {}


def _error(failure: Exception) -> ErrorData:
    if (error := handler_exception_to_error_data(failure)) is not None:
        return error
    # A mistake of the gateway's own, outside of a call.
    _log.error("a request failed", exc_info=failure)
    return ErrorData(code=0, message=str(failure))


class _Client:
    """The client of a call: `watch` notices its disconnect, and sends comments during a silence."""

    def __init__(self, receive: Receive, send: Send, ping_seconds: float) -> None:
        self._ping_seconds = ping_seconds
        self.has_left = False
        self._receive = receive
        self._send = send

    async def watch(self, answering: asyncio.Task[Any]) -> None:
        """Cancel `answering` when the client disconnects or cannot be watched."""
        try:
            while not await self._leaves_within(self._ping_seconds):
                comment = f": ping - {datetime.now(UTC)}\r\n\r\n".encode()
                await self._send({"type": "http.response.body", "body": comment, "more_body": True})
        except asyncio.CancelledError:
            return  # the call has ended; an exception with a traceback would be a reference cycle of the task
        except OSError:
            pass  # by the ASGI specification, this is a closed connection, too
        except Exception as failure:  # noqa: BLE001  a call must not continue without this watch
            _log.error("client of a call can be watched no longer, the call ends", exc_info=failure)
        self.has_left = True
        answering.cancel()

    async def _leaves_within(self, seconds: float) -> bool:
        silence = asyncio.timeout(seconds)
        try:
            async with silence:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            if not silence.expired():  # a timeout of the socket
                raise
            return False
        return True


class _Context:
    """The `DispatchContext` of a request: the SDK's handlers read the request and send to its client by it."""

    transport = _TRANSPORT

    def __init__(self, call: JSONRPCRequest, request: Request, send: Send, expect: Expect) -> None:
        self.is_open = True
        self.can_send_request = SESSION_HEADER in request.headers  # otherwise any client could answer
        self._expect = expect
        self.request = request
        self.request_id = call.id
        self.message_metadata = ServerMessageMetadata(request_context=request, can_send_request=False)
        self._send = send

    @cached_property
    def cancel_requested(self) -> anyio.Event:
        """The event that the SDK defines; nothing sets it, because a cancelled call is a cancelled task."""
        return anyio.Event()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, unless the request has been answered."""
        del opts
        if self.is_open:
            message = JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params) if params else None)
            await self._send({"type": "http.response.body", "body": event(message), "more_body": True})

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
            message = JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, params=dict(params) if params else None)
            await self._send({"type": "http.response.body", "body": event(message), "more_body": True})
            answer = await response
        if isinstance(result := answer.get("result"), dict):
            return result
        raise MCPError(INTERNAL_ERROR, "The client answered with an error.")


def event(message: JSONRPCResponse | JSONRPCError | JSONRPCNotification | JSONRPCRequest) -> bytes:
    """Return a message as an event of a stream."""
    # Without absent members: the TypeScript SDK refuses a message with `null` as params.
    encoded = message.model_dump_json(by_alias=True, exclude_none=True).encode()
    return b"event: message\r\ndata: " + encoded + b"\r\n\r\n"
