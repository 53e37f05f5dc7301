"""Streamable HTTP of an MCP server, without sessions, answered by `exchange` or by the SDK."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import NoBackChannelError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData, JSONRPCError
from starlette.responses import JSONResponse, Response

from pallas_gateway.calls.asking.client_answers import process_of
from pallas_gateway.doors.mcp import exchange
from pallas_gateway.doors.mcp.envelope import LONGEST_ANSWER, key_of_answers
from pallas_gateway.doors.mcp.rounds import ENDED_WITH_PROCESS
from pallas_gateway.errors import RETRY_AFTER_SECONDS, CallRefusedError
from pallas_gateway.tasks import UseCount, give_way

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from mcp.server.lowlevel import Server
    from starlette.requests import Request
    from starlette.types import Send

    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.doors.mcp.envelope import McpRequest


class McpEndpoint:
    """Passes HTTP requests to an MCP server, which may be replaced between two requests.

    Args:
        server: the first one.
        name: of the server, in the keys of its requests.
        sessions: of this process.

    Attributes:
        requests: those that run, by HTTP and by other agents.
        ping_seconds: silence after which a call's stream is sent a comment, so that proxies keep the connection.
    """

    ping_seconds = 15.0

    def __init__(self, server: Server[Any], name: str, sessions: Sessions) -> None:
        self._name = name
        self._sessions = sessions
        # The body of each request has been read, within the gateway's own limit.
        self._manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=sys.maxsize)
        self.requests = UseCount()
        self._answering: set[asyncio.Task[Any]] = set()
        self._opened = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Answer requests until `close`; earlier requests wait for this."""
        async with self._manager.run():
            self._opened.set()
            try:
                await self._over.wait()
            finally:
                for answering in self._answering:
                    answering.cancel()

    def close(self) -> None:
        """Accept no more requests, and cancel the running ones."""
        self._over.set()

    async def wait_until_idle(self) -> None:
        """Return when no request is running."""
        await self.requests.wait_for_none()

    async def finish(self) -> None:
        """Close after the last request."""
        try:
            await self.wait_until_idle()
        finally:
            self.close()

    def update(self, server: Server[Any]) -> None:
        """Answer by another server from the next request on; running requests keep theirs."""
        self._manager.app = server  # read for each request; without sessions nothing else holds it

    async def handle(self, request: McpRequest, send: Send) -> None:
        """Answer one request: calls and answers to questions here, all others by the SDK.

        A request for a call of another process of the gateway is answered by that one.
        """
        answering = cast("asyncio.Task[Any]", asyncio.current_task())  # an ASGI app runs in one
        with self.requests.one_more():
            await self._opened.wait()
            self._answering.add(answering)
            try:
                await self._answer(request, send)
            finally:
                self._answering.discard(answering)

    async def _answer(self, request: McpRequest, send: Send) -> None:
        answer = request.client_answer
        call = exchange.tool_call(request) if answer is None else None
        await give_way(request.read_at)
        process, id_ = (call.process, call.message.id) if call is not None else (None, None)
        if answer is not None and len(request.body) <= LONGEST_ANSWER:  # a longer one is refused here
            process = process_of(str(answer["id"]))
        http, elsewhere = request.http, self._sessions.elsewhere
        try:
            if process is not None and await elsewhere.answered_by(
                process, http, request.body, send, if_cut=partial(_cut, id_)
            ):
                return
        except CallRefusedError as error:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            busy = _not_taken(HTTPStatus.SERVICE_UNAVAILABLE, str(error), id_, headers)
            await busy(http.scope, request.receive, send)
            return
        if answer is not None:
            await self._take_answer(request, answer)(http.scope, request.receive, send)
        elif call is not None:
            app, ping_seconds = self._manager.app, self.ping_seconds
            await exchange.answer(app, call, http, send, self._expect, ping_seconds=ping_seconds)
        else:
            await self._manager.handle_request(http.scope, request.receive, send)

    def _take_answer(self, request: McpRequest, answer: Mapping[str, Any]) -> Response:
        """Pass a client's answer to the call of this process that waits for it."""
        if len(request.body) > LONGEST_ANSWER:
            return _not_taken(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"An answer has at most {LONGEST_ANSWER} bytes.")
        key_of = key_of_answers(request.http, self._name)
        if key_of is None or not self._sessions.answers.take(key_of, str(answer["id"]), answer):
            return _not_taken(HTTPStatus.BAD_REQUEST, "This client was sent no request of this id.")
        return Response(status_code=HTTPStatus.ACCEPTED)

    def _expect(self, request: Request) -> AbstractContextManager[tuple[str, asyncio.Future[Mapping[str, Any]]]]:
        """Wait for the answer to a new request to the client of `request`."""
        key_of = key_of_answers(request, self._name)
        if key_of is None:
            raise NoBackChannelError("elicitation/create")
        return self._sessions.answers.expecting(key_of)


def _cut(id_: str | int | None) -> bytes:
    """Return the last event of a stream whose process has ended."""
    error = ErrorData(code=INTERNAL_ERROR, message=ENDED_WITH_PROCESS, data={"reason": "call_again"})
    return exchange.event(JSONRPCError(jsonrpc="2.0", id=id_, error=error), is_modern=True)


def _not_taken(
    status: HTTPStatus, message: str, id_: str | int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response to a request that is refused; by the specification, without an id to an answer."""
    error = JSONRPCError(jsonrpc="2.0", id=id_, error=ErrorData(code=INVALID_REQUEST, message=message))
    return JSONResponse(error.model_dump(exclude_none=True), status, headers)
