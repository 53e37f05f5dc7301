"""Connections of one call to HTTP servers of the 2026-07-28 era whose listing is cached.

Nothing of such a connection exists between two requests. The SDK keeps three tasks and four streams for it until the
call ends: with fast-agent's, 70 KB. Here the task that needs an answer sends the request and reads the answer itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast, override

import anyio
import httpx2
from fast_agent.mcp.client_connection import MCPClientConnection
from mcp.client.session import ClientSession
from mcp.client.streamable_http import RequestContext, StreamableHTTPTransport
from mcp.shared import jsonrpc_dispatcher
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, ErrorData, JSONRPCRequest

from pallas_gateway.changes.change import Fault
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.answers import EVENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fast_agent.config import MCPServerSettings
    from fast_agent.mcp.client_callback_runtime import MCPClientCallbackRuntime
    from mcp_types import JSONRPCMessage, ServerCapabilities

    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing

END_SECONDS = 0.1
"""Longest wait for the end of a stream that has brought its answer."""
_CLOSED = "Connection closed"
_dispatcher: Any = jsonrpc_dispatcher  # it does not export `request_clock`, which `timeouts` replaces
FAULTS = (
    Fault(
        title="A connection of 2026-07-28 exists between its requests",
        text="""\
Symptom: four tasks of a connection take 70 KB of a call that waits for its model, and the socket is
closed after an answer by a stream.

Repair: the task that needs an answer sends the request and reads the stream (`PostDispatcher`).
""",
        library="mcp",
        gone_when="the SDK's client sends requests of 2026-07-28 without tasks, and reads streams to their end",
        test="tests/unit/runtime/downstreams/connections/test_stateless_servers.py",
    ),
)


_OWN_METHODS = ("message_handler", "sampling_callback", "elicitation_callback")


class StatelessServer:
    """The connection of one call to one server: a `ServerConnection`, as far as fast-agent uses it."""

    negotiation = None

    def __init__(self, client: MCPClientConnection, callbacks: MCPClientCallbackRuntime) -> None:
        self.client = client
        self._callback_runtime = callbacks

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server has declared."""
        capabilities: ServerCapabilities = self.client.server_capabilities
        return capabilities

    def release(self) -> None:
        """Break the reference cycles at the end of the call."""
        vars(self.client.session).clear()
        break_cycles(self._callback_runtime)


def stateless_server(
    listing: ServerListing, config: MCPServerSettings, callbacks: MCPClientCallbackRuntime
) -> StatelessServer:
    """Make a connection to a server whose listing is cached. No request is sent."""
    if listing.http_client is None or listing.discovered is None:
        raise TypeError("a listing of another kind of server")
    dispatcher = PostDispatcher(config.url or "", listing.http_client)
    dispatcher.server = config.name or ""
    dispatcher.session = session = ClientSession(
        dispatcher=dispatcher,
        read_timeout_seconds=config.read_timeout_seconds,
        sampling_callback=callbacks.sampling_callback,
        sampling_capabilities=callbacks.sampling_capabilities,
        list_roots_callback=callbacks.list_roots_callback,
        elicitation_callback=callbacks.elicitation_callback,
        message_handler=callbacks.message_handler,
        client_info=callbacks.client_info,
    )
    session.adopt(listing.discovered)
    listing.prime(session)
    connection = MCPClientConnection(cast("Any", dispatcher), callbacks, cache=False)
    connection.client._session = session  # as if it had been entered
    return StatelessServer(connection, callbacks)


def break_cycles(callbacks: Any) -> None:
    """Remove the methods that the callbacks of an ended connection have in their attributes."""
    for name in _OWN_METHODS:
        setattr(callbacks, name, None)


class PostDispatcher(JSONRPCDispatcher):
    """Sends each request of a session as a POST and handles all that the server sends within its answer.

    The SDK's dispatcher, without the task that receives messages.
    """

    session: ClientSession
    server = ""

    def __init__(self, url: str, http_client: httpx2.AsyncClient) -> None:
        super().__init__(cast("Any", None), cast("Any", None))
        self._running = True
        self._transport = _Posts(url, max_sse_event_size=EVENT_BYTES)
        self._http_client = http_client
        self._handlers: list[Callable[[], Awaitable[Any]]] = []

    @override
    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Send a request and return its result; the time limit includes the sending.

        Raises:
            MCPError: an error of the server, no answer in time, or no complete answer.
        """
        opts = dict(opts or {})
        try:
            with _dispatcher.request_clock(opts.pop("timeout", None)) as clock:
                clock.start()
                return await super().send_raw_request(method, params, opts, **options)
        except TimeoutError:
            raise MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out") from None

    async def receive(self, item: SessionMessage) -> None:
        """Handle a message of the server."""
        await self._dispatch(item, self.session._on_request, self.session._on_notify, None)
        handlers, self._handlers = self._handlers, []
        for handle in handlers:
            await handle()

    @override
    async def _write(self, message: JSONRPCMessage, metadata: Any = None) -> None:
        if not isinstance(message, JSONRPCRequest):
            return  # clients of this era send only requests, and cancel one by closing its stream
        headers = metadata if isinstance(metadata, ClientMessageMetadata) else None
        sent = SessionMessage(message=message, metadata=metadata)
        try:
            try:
                await self._post(sent, headers)
            except httpx2.ConnectError:  # nothing was sent
                if message.method != "tools/call":
                    raise
                await connecting.pause_before_repeat(self.server, "connection refused", connecting.REFUSED_WAIT_SECONDS)
                await self._post(sent, headers)
        except Exception as error:
            raise MCPError(code=CONNECTION_CLOSED, message=_CLOSED) from error
        self._resolve_pending(message.id, ErrorData(code=CONNECTION_CLOSED, message=_CLOSED))  # if nothing else has

    async def _post(self, sent: SessionMessage, headers: ClientMessageMetadata | None) -> None:
        with anyio.CancelScope() as reading:
            answer = cast("Any", _Answer(self, reading))
            await self._transport._handle_post_request(RequestContext(self._http_client, None, sent, headers, answer))

    @override
    def _spawn(self, fn: Callable[..., Awaitable[Any]], *args: object, sender_ctx: Any) -> None:
        del sender_ctx  # the handlers run in the sender's task
        self._handlers.append(lambda: fn(*args))


class _Answer:
    """The receiver of one request's answer: the interface of a stream to which the SDK's transport writes."""

    def __init__(self, dispatcher: PostDispatcher, reading: anyio.CancelScope) -> None:
        self.send = dispatcher.receive
        self.reading = reading


class _Posts(StreamableHTTPTransport):
    """Reads the stream of an answer to its end, so that its socket is used again; the SDK's transport closes it."""

    @override
    async def _handle_sse_event(
        self, sse: httpx2.ServerSentEvent, read_stream_writer: Any, *more: Any, **options: Any
    ) -> bool:
        is_complete = await super()._handle_sse_event(sse, read_stream_writer, *more, **options)
        reading = read_stream_writer.reading
        if sse.id:  # after the end of a stream with an id, the SDK would connect again
            return is_complete or reading.deadline < math.inf
        if is_complete:
            reading.deadline = min(reading.deadline, anyio.current_time() + END_SECONDS)
        return False
