"""The body of a request: its type, its limit of bytes, and its limit of time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from pallas_gateway.doors.http.refusals import draining
from pallas_gateway.tasks import TaskOwner, give_way

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pallas_gateway.limits import BodyLimits


def is_json(headers: Headers, *types: str) -> bool:
    """Return True if a body is sent as JSON, which requires a CORS preflight from pages of other origins.

    `types`: other media types that are JSON.
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower() in ("application/json", *types)


async def read(request: Request, limit: int) -> bytes | None:
    """Return the body; None if it is larger than `limit` bytes.

    Raises:
        ClientDisconnect: the client disconnected before its request was complete; `AnswerAfterBody` ends the request.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > len(str(limit)) or int(declared) > limit):
        return None
    pieces, left = [], limit
    async for piece in request.stream():
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            return None
    began, body = perf_counter(), b"".join(pieces)
    await give_way(began)
    return body


class AnswerAfterBody:
    """Limits the time for a request's body, and reads and discards the rest of it before the answer.

    Closing a connection with unread data resets it, and its client would not see a refusal.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; with 408 if its body is late."""
        body, has_begun, is_stopping = _Body(receive, self._limits), False, False
        rest: TaskOwner | None = None

        async def late_send(message: Message) -> None:
            nonlocal has_begun, rest
            if body.is_late and not has_begun:
                return
            if "status" in message:
                has_begun = True
                if body.is_unread:
                    rest = rest or TaskOwner()
                    reading = rest.spawn(body.read_on(), name="rest of a body")
                    await asyncio.wait({reading}, timeout=self._limits.rest_seconds)
            await send(message)

        try:
            with suppress(ClientDisconnect):  # the request was not complete
                await self._app(scope, body.receive, late_send)
        except asyncio.CancelledError:
            is_stopping = True
            raise
        finally:
            if rest is not None:
                await rest.cancel_all()
            if not has_begun and (refusal := body.refusal(is_stopping=is_stopping)) is not None:
                await refusal(scope, receive, send)


class _Body:
    """The body of one request; a client that sends it too slowly is treated as disconnected."""

    def __init__(self, receive: Receive, limits: BodyLimits) -> None:
        self.is_unread = True
        self.is_late = False
        self._receive = receive
        self._limits = limits
        self._latest = asyncio.get_running_loop().time() + limits.seconds

    async def receive(self) -> Message:
        """Return the next message of the request."""
        if self.is_late:
            return {"type": "http.disconnect"}
        if not self.is_unread:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._latest):
                message = await self._receive()
        except TimeoutError:
            self.is_late, self.is_unread = True, False
            return {"type": "http.disconnect"}
        self._latest += len(message.get("body", b"")) / self._limits.bytes_per_second
        self.is_unread = message.get("more_body", False)
        return message

    def refusal(self, *, is_stopping: bool) -> JSONResponse | None:
        """Return the answer to a request whose body has not arrived; None to others."""
        if is_stopping:
            return draining() if self.is_unread else None
        why = {"error": "request_timeout", "error_description": "The body of the request did not arrive in time."}
        return JSONResponse(why, status_code=408, headers={"Cache-Control": "no-store"}) if self.is_late else None

    async def read_on(self) -> None:
        """Read and discard the rest."""
        while self.is_unread:
            await self.receive()
