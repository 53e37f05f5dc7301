"""Streamable HTTP for an MCP server, without sessions: what the SDK answers, and what `stateless_call` does."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from pallas_gateway.runtime.fast_paths import STATELESS_CALLS
from pallas_gateway.tasks import UseCount

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mcp.server.lowlevel import Server
    from starlette.types import Send

    from pallas_gateway.agent_server.requests import McpRequest


class Transport:
    """Answers HTTP requests by an MCP server, which may change between two requests.

    Attributes:
        ping_seconds: silence after which a call's stream is sent a comment, so that proxies keep the connection.
    """

    ping_seconds = 15.0

    def __init__(self, server: Server[Any]) -> None:
        # The body of each request has been read, within the gateway's own limit.
        self._manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=sys.maxsize)
        self._requests = UseCount()
        self._takes_calls = STATELESS_CALLS.is_on
        self._answering: set[asyncio.Task[Any]] = set()
        self._opened = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Answer requests until `close`; those that come before this has begun wait for it."""
        async with self._manager.run():
            self._opened.set()
            try:
                await self._over.wait()
            finally:
                for answering in self._answering:
                    answering.cancel()

    def close(self) -> None:
        """Take no more requests, and cut off those that are being answered."""
        self._over.set()

    def in_use(self) -> AbstractContextManager[None]:
        """For the block, something else is being answered that has to be waited for as well."""
        return self._requests.one_more()

    async def wait_until_idle(self) -> None:
        """Return once no request is being answered."""
        await self._requests.wait_for_none()

    def present(self, server: Server[Any]) -> None:
        """Answer by another server from the next request on; those being answered stay as they began."""
        self._manager.app = server  # read anew for each request; without sessions nothing else holds it

    async def handle(self, request: McpRequest, send: Send) -> None:
        """Answer one request: a call of the initialize era here, everything else by the SDK."""
        with self._requests.one_more():
            await self._opened.wait()
            if not (self._takes_calls and await self._answer_call(request, send)):
                await self._manager.handle_request(request.http.scope, request.receive, send)

    async def _answer_call(self, request: McpRequest, send: Send) -> bool:
        """Answer a call of the initialize era; false if the request is none."""
        from pallas_gateway.agent_server import stateless_call  # noqa: PLC0415  it may not fit the installed SDK

        call = request.call if stateless_call.may_be_call(request.http) else None
        if call is None:
            return False
        answering = cast("asyncio.Task[Any]", asyncio.current_task())  # an ASGI app runs in one
        self._answering.add(answering)
        try:
            app, ping_seconds = self._manager.app, self.ping_seconds
            await stateless_call.answer(app, call, request.http, send, answering, ping_seconds=ping_seconds)
        finally:
            self._answering.discard(answering)
        return True
