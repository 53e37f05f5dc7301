"""A scripted model behind any wire format."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, ClassVar, Protocol, override

from tests.support.asgi import (
    Receive,
    Scope,
    Send,
    end_body,
    headers_of,
    read_body,
    respond,
    respond_json,
    send_part,
    start_response,
)
from tests.support.listener import serve_app
from tests.support.providers.google_login import TOKEN_PATH
from tests.support.scripted_llm import (
    CallTools,
    Cut,
    EndEarly,
    ErrorEvent,
    Json,
    LlmRequest,
    Played,
    Reply,
    Say,
    Script,
    ScriptedLlm,
    Turn,
    echo,
    hold_at_gate,
)
from tests.support.waiting import Gate

type Streamed = Say | CallTools | Cut | EndEarly | ErrorEvent
ALL_KINDS = frozenset({"cached", "written", "reasoning"})
"""The parts of `Usage` that a wire format may report beside the prompt and the completion."""


class Dialect(Protocol):
    """One wire format. Events are returned as the bytes of the body."""

    content_type: ClassVar[str]
    request_class: ClassVar[type[LlmRequest]]
    kinds: ClassVar[frozenset[str]]  # of `ALL_KINDS`

    def is_turn(self, path: str) -> bool:
        """Return True if a POST to `path` asks the model."""

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        """The events before the first piece."""

    def piece(self, text: str) -> bytes:
        """One piece of text."""

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        """The tool calls, after `turn.text`."""

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        """The last events, usage included."""

    def error(self, message: str) -> bytes:
        """An error inside a stream."""

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        """The answer to a request that wants no stream."""

    def refusal(self, status: int, message: str) -> Json:
        """The body of an HTTP error."""


class ScriptedProvider(ScriptedLlm):
    """A scripted model that speaks `dialect`; without one, OpenAI's chat completions."""

    def __init__(self, dialect: Dialect | None, script: Script | Sequence[Turn] = echo) -> None:
        super().__init__(script)
        self.dialect = dialect
        self.sockets: list[Any] = []  # of the turns' clients
        self.handshakes: list[Reply] = []  # refusals of the next WebSockets
        self.token = "token-of-google"
        self.logins: list[Gate | Reply | None] = []  # how tokens are given: at once, or not before a gate, or not
        self.login_count = 0

    @override
    def restart(self, script: Script | Sequence[Turn]) -> None:
        super().restart(script)
        self.sockets, self.handshakes = [], []

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._converse(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == TOKEN_PATH:
            await self._log_in(receive, send)
        elif scope["type"] == "http" and scope["method"] == "GET" and "/models" in scope["path"]:
            await respond_json(send, 200, {"models": [], "data": []})  # the preflight's question
        else:
            await super().__call__(scope, receive, send)

    async def _log_in(self, receive: Receive, send: Send) -> None:
        await read_body(receive)
        self.login_count += 1
        how = self.logins.pop(0) if self.logins else None
        if isinstance(how, Gate):
            await how.enter("login")
        if isinstance(how, Reply):
            await respond(send, how.status, how.body.decode(), content_type=how.content_type)
        else:
            await respond_json(send, 200, {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"})

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket: each message of the client is a request, each event a message."""
        await receive()
        if self.handshakes:
            await respond_to_handshake(send, self.handshakes.pop(0))
            return
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            messages = Messages(send)
            await self._serve(json.loads(message["text"]), scope, receive, messages)
            if not messages.is_ended:
                return  # without a close: Hypercorn closes with 1011, as for a server that crashed
            if not messages.is_whole:
                await send({"type": "websocket.close", "code": 1000})
                return

    def refuse(self, status: int, message: str = "scripted failure", **headers: str) -> Reply:
        """An HTTP error in the provider's form; headers with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        openai = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
        body = self.dialect.refusal(status, message) if self.dialect else openai
        return Reply(status, json.dumps(body).encode(), "application/json", named)

    @override
    def _is_turn(self, scope: Scope) -> bool:
        path = scope["path"]  # Azure's names the deployment
        is_turn = self.dialect.is_turn(path) if self.dialect else path.endswith("/chat/completions")
        return scope["method"] == "POST" and is_turn

    @override
    def _request_of(self, number: int, body: Json, scope: Scope) -> LlmRequest:
        self.sockets.append(scope["client"])
        request_class = self.dialect.request_class if self.dialect else LlmRequest
        return request_class(number, body, headers_of(scope), scope["path"])

    @override
    async def _play(self, turn: Played, request: LlmRequest, send: Send) -> None:
        if self.dialect is None or isinstance(turn, Reply):
            await super()._play(turn, request, send)
        elif isinstance(turn, (Say, CallTools)) and not request.is_streamed:
            await hold_at_gate(turn)
            await respond_json(send, 200, self.dialect.whole(turn, request))
        else:
            await _stream(self.dialect, turn, request, send)


async def _stream(dialect: Dialect, turn: Streamed, request: LlmRequest, send: Send) -> None:
    await start_response(send, 200, content_type=dialect.content_type)
    if opening := dialect.opening(turn, request):
        await send_part(send, opening)
    for number, text in enumerate(texts_of(turn), start=1):
        if isinstance(turn, Say) and turn.gate is not None and number > 1:
            await turn.gate.enter(f"piece {number}")
        await send_part(send, dialect.piece(text))
    if isinstance(turn, Cut):
        return  # ending without the last body part makes Hypercorn drop the connection
    if isinstance(turn, ErrorEvent):
        await send_part(send, dialect.error(turn.message))
    elif not isinstance(turn, EndEarly):
        if isinstance(turn, CallTools):
            await send_part(send, dialect.calls(turn, request))
        await send_part(send, dialect.ending(turn, request))
    await end_body(send)


async def respond_to_handshake(send: Send, reply: Reply) -> None:
    """Refuse a WebSocket with an HTTP response."""
    headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    start = {"type": "websocket.http.response.start", "status": reply.status, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": reply.body})


class Messages:
    """Sends the events of a body as messages of a WebSocket; called with the parts of the body.

    An HTTP error is sent as an `error` event with `status` and `headers`, any other body without events as it is.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Any = None
        self.is_ended = False  # the body is
        self.is_whole = False  # the last event ends a response

    async def __call__(self, part: Any) -> None:
        if part["type"] == "http.response.start":
            self._start = part
            return
        self.is_ended = not part.get("more_body", False)
        content_type = headers_of(self._start)["content-type"]
        if content_type == "text/event-stream":
            texts = [block.partition(b"data: ")[2] for block in part.get("body", b"").split(b"\n\n")]
        elif content_type == "application/json" and self._start["status"] >= HTTPStatus.BAD_REQUEST:
            texts = [json.dumps(self._as_event(part["body"])).encode()]
        else:
            texts = [part["body"]]
        for text in filter(None, texts):
            self.is_whole = any(f'"type": "{ending}"'.encode() in text for ending in _ENDINGS)
            await self._send({"type": "websocket.send", "text": text.decode()})

    def _as_event(self, body: bytes) -> Json:
        about = {"status": self._start["status"], "headers": headers_of(self._start)}
        return {"type": "error", **json.loads(body), **about}


_ENDINGS = ("response.completed", "response.incomplete", "error")


def texts_of(turn: Streamed) -> tuple[str, ...]:
    if isinstance(turn, CallTools):
        return (turn.text,) if turn.text else ()
    return turn.pieces


def split(text: str) -> tuple[str, ...]:
    """Both halves of a text, without an empty one: arguments come in pieces."""
    half = len(text) // 2
    return tuple(part for part in (text[:half], text[half:]) if part)


@asynccontextmanager
async def scripted_provider(
    dialect: Dialect | None, script: Script | Sequence[Turn] = echo, *, port: int = 0
) -> AsyncGenerator[ScriptedProvider]:
    """Serve a `ScriptedProvider` at `llm.base_url`, which has no path; see `scripted_llm`."""
    llm = ScriptedProvider(dialect, script)
    async with serve_app(llm, port=port, websockets=True) as listener:
        llm.base_url = listener.base_url
        yield llm
    if llm.surprises:
        raise AssertionError("the scripted provider was surprised: " + "; ".join(llm.surprises))
