"""Streamable HTTP for an MCP server, without sessions: what the SDK answers, and what `stateless_call` does."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pallas_gateway.agent_server import stateless_call
from pallas_gateway.agents.version import UseCount
from pallas_gateway.calls.json_size import TOO_MANY_VALUES, has_too_many_values

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mcp.server.lowlevel import Server
    from starlette.types import Message, Receive, Scope, Send


class Transport:
    """Answers HTTP requests by an MCP server, which may change between two requests."""

    def __init__(self, server: Server[Any], max_body_bytes: int) -> None:
        self._manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=max_body_bytes)
        self._with_body = RequestBodyLimitMiddleware(self._answer_post, max_body_bytes)
        self._requests = UseCount()
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

    def present(self, server: Server[Any], max_body_bytes: int) -> None:
        """Answer by another server from the next request on; those being answered stay as they began."""
        self._manager.app = server  # read anew for each request; without sessions nothing else holds it
        self._manager.asgi_app.max_body_size = self._with_body.max_body_size = max_body_bytes

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        with self._requests.one_more():
            await self._opened.wait()
            handle = self._with_body if scope["method"] == "POST" else self._manager.handle_request
            await handle(scope, receive, send)

    async def _answer_post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse what would be too much to parse, and answer what is a call; everything else is the SDK's.

        A request whose client left before it was whole is dropped.
        """
        message = await receive()  # the limit has read the body, and gives it as one
        if message["type"] != "http.request" or message.get("more_body"):
            return
        body = message.get("body", b"")
        if has_too_many_values(body):
            await Response(TOO_MANY_VALUES, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)(scope, receive, send)
            return
        call = stateless_call.call_in(body) if stateless_call.may_be_call(Request(scope)) else None
        if call is None:
            await self._manager.handle_request(scope, _once_more(message, receive), send)
            return
        answering = cast("asyncio.Task[Any]", asyncio.current_task())  # an ASGI app runs in one
        self._answering.add(answering)
        try:
            await stateless_call.answer(self._manager.app, call, Request(scope, receive), send, answering)
        finally:
            self._answering.discard(answering)


def _once_more(message: Message, receive: Receive) -> Receive:
    """A `receive` that gives `message` again before it goes on."""
    again = [message]

    async def receive_again() -> Message:
        return again.pop() if again else await receive()

    return receive_again
