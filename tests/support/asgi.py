"""The few ASGI moves the fakes need, and the types they are written in."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import wraps
from typing import Any, cast

type Scope = MutableMapping[str, Any]
type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientGoneError(Exception):
    """The client closed the connection before its request was whole."""


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        body += part
        if not message.get("more_body", False):
            return body


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone. The body, or the message of a WebSocket, must have been read."""
    while not (await receive())["type"].endswith(".disconnect"):
        pass


def headers_of(scope: Scope) -> dict[str, str]:
    """Request headers by lower-case name; a repeated one is joined with a comma."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def respond(
    send: Send,
    status: int,
    body: bytes | str,
    *,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    await start_response(send, status, content_type=content_type, headers=headers)
    await send({"type": "http.response.body", "body": body if isinstance(body, bytes) else body.encode()})


async def respond_json(send: Send, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
    """Send `value` as one whole JSON response."""
    await respond(send, status, json.dumps(value), headers=headers)


async def start_response(
    send: Send, status: int, *, content_type: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send the status line and headers; the body is still to come."""
    everything = {"content-type": content_type, **(headers or {})}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in everything.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_part(send: Send, body: bytes | str) -> None:
    """Send a piece of the body, with more to come."""
    part = body if isinstance(body, bytes) else body.encode()
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def end_body(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def plain_lifespan(receive: Receive, send: Send) -> None:
    """The lifespan of an app with nothing to start or stop."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def http_only[**P](app: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Decorate an app, or its `__call__`, that answers requests and has nothing to start or stop."""

    @wraps(app)
    async def answered(*given: P.args, **named: P.kwargs) -> None:
        scope, receive, send = cast("tuple[Scope, Receive, Send]", given[-3:])
        await (plain_lifespan(receive, send) if scope["type"] == "lifespan" else app(*given, **named))

    return answered


class AsgiClient:
    """Both ends of one ASGI exchange: sends `pieces` (then hangs), and remembers what was sent back."""

    def __init__(self, pieces: list[Message], **headers: str) -> None:
        self.pieces = pieces
        self.sent: list[Message] = []
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/agents/echo/mcp",
            "scheme": "http",
            "server": ("192.0.2.1", 24200),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

    @property
    def status(self) -> int | None:
        return next((message["status"] for message in self.sent if "status" in message), None)

    async def receive(self) -> Message:
        if not self.pieces:
            await asyncio.Event().wait()
        return self.pieces.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def piece(*, more: bool) -> Message:
    return {"type": "http.request", "body": b"x" * 1000, "more_body": more}


def answering(status: int) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond_json(send, status, {})

    return app


class Wire:
    """A connection: what was sent on it, and when its client leaves."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
