"""Real FastMCP servers for agents to call, recording all that reaches them, able to go down and come back.

`stateless_downstream` has the tools, `stateful_downstream` counts per session, `refusing` only ever answers one status.
"""

import json
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_context
from mcp.shared.exceptions import MCPDeprecationWarning

from .asgi import (
    AsgiApp,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    headers_of,
    http_only,
    read_body,
    respond_json,
)
from .listener import reserved_port, serve_app
from .protocol_messages import to_server
from .waiting import WAIT_SECONDS, Changes, Gate

Era = Literal["both", "initialize", "modern"]
MODERN_VERSION = "2026-07-28"
UNSUPPORTED_PROTOCOL_VERSION = -32022


@dataclass
class HttpRequest:
    """One HTTP request as it arrived. `rpc` is the decoded JSON-RPC body of a POST, else empty."""

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    rpc: dict[str, Any]
    query: str = ""
    body: bytes = field(default=b"", repr=False)
    status: int | None = None  # None until the response has begun
    answered: bool = False  # the response has ended
    client_left: bool = False  # the client hung up before the response had ended

    @property
    def rpc_method(self) -> str | None:
        """JSON-RPC method, None for GET and DELETE."""
        return self.rpc.get("method")

    @property
    def tool(self) -> str | None:
        return (self.rpc.get("params") or {}).get("name") if self.rpc_method == "tools/call" else None

    @property
    def era(self) -> Literal["initialize", "modern"]:
        return "modern" if self.headers.get("mcp-protocol-version", "") >= MODERN_VERSION else "initialize"

    @property
    def bearer(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme.lower() == "bearer" else None


class Recorder:
    """ASGI wrapper that notes every HTTP request of any MCP server, and which of them are still open."""

    def __init__(self, app: AsgiApp | None = None) -> None:
        self.app = app
        self.requests: list[HttpRequest] = []
        self.open: list[HttpRequest] = []
        self.sessions: set[str] = set()  # ids handed out and not yet deleted
        self._changes = Changes()

    @property
    def rpc_methods(self) -> list[str]:
        return [request.rpc_method for request in self.requests if request.rpc_method]

    def calls(self, tool: str | None = None) -> list[HttpRequest]:
        return [r for r in self.requests if r.tool is not None and tool in {None, r.tool}]

    def clear(self) -> None:
        """Forget the requests so far; open ones and sessions are still counted."""
        self.requests.clear()

    async def until(self, predicate: Callable[["Recorder"], object], timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return once `predicate(self)` holds; looked at again whenever a request begins, answers or ends."""
        await self._changes.until(
            lambda: predicate(self), timeout_seconds, what=f"the recorder (so far: {self.rpc_methods})"
        )

    async def wait_until_idle(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        await self.until(lambda _: not self.open, timeout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is None:
            raise RuntimeError("nothing to record: the app is not set")
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await read_body(receive)
        except ClientGoneError:
            return
        query = scope["query_string"].decode("latin-1")
        request = HttpRequest(scope["method"], scope["path"], headers_of(scope), _decoded(body), query, body)
        to_server(body, request.headers)
        self.requests.append(request)
        self.open.append(request)
        self._changes.announce()
        try:
            await self.app(scope, self._watched_receive(request, body, receive), self._watched_send(request, send))
        finally:
            self.open.remove(request)
            self._changes.announce()

    def _watched_receive(self, request: HttpRequest, body: bytes, receive: Receive) -> Receive:
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def watched() -> Message:
            if pending:
                return pending.pop()
            message = await receive()
            if message["type"] == "http.disconnect" and not request.answered:
                request.client_left = True
                self._changes.announce()
            return message

        return watched

    def _watched_send(self, request: HttpRequest, send: Send) -> Send:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                self._note_session(request, message)
            else:
                request.answered = not message.get("more_body", False)
            self._changes.announce()
            await send(message)

        return watched

    def _note_session(self, request: HttpRequest, message: Message) -> None:
        if request.method == "DELETE":
            self.sessions.discard(request.headers.get("mcp-session-id", ""))
            return
        for name, value in message.get("headers", []):
            if name.lower() == b"mcp-session-id" and request.rpc_method == "initialize":
                self.sessions.add(value.decode())


class Downstream:
    """A FastMCP server at one fixed address, up or down as the test says.

    `serve` reserves the port for the whole block, so while stopped, connecting is refused and nobody takes it over.
    """

    def __init__(self, server: FastMCP, *, stateless: bool, era: Era = "both") -> None:
        """Serve `server` at `/mcp`. An `era` other than "both" refuses the other one as a real server would."""
        self.server = server
        self.recorder = Recorder()
        self.url = ""
        self._stateless = stateless
        self.era: Era = era
        self._port = 0
        self._running: AsyncExitStack | None = None

    async def start(self) -> None:
        """Listen, with a new FastMCP app: sessions of an earlier life are unknown to it."""
        if self._running is not None:
            raise AssertionError("already started")
        app: AsgiApp = self.server.http_app(path="/mcp", stateless_http=self._stateless)
        self.recorder.app = _only(self.era, app)
        running = AsyncExitStack()
        await running.enter_async_context(serve_app(self.recorder, port=self._port))
        self._running = running

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        running, self._running = self._running, None
        self.recorder.sessions.clear()
        if running is not None:
            await running.aclose()

    @asynccontextmanager
    async def serve(self, *, start: bool = True) -> AsyncGenerator[None]:
        """Own the address until the block ends; `start=False` begins with the server down."""
        with reserved_port() as self._port:
            self.url = f"http://127.0.0.1:{self._port}/mcp"
            try:
                if start:
                    await self.start()
                yield
            finally:
                await self.stop()


class StatelessDownstream(Downstream):
    """Tools `add`, `echo`, `fail`, `slow` and `emit`, prompt `greeting`. `gate` is where `slow` calls are held."""

    def __init__(self, name: str = "tools", *, era: Era = "both") -> None:
        self.gate = Gate()
        super().__init__(_tools_server(name, self.gate), stateless=True, era=era)


class StatefulDownstream(Downstream):
    """Tool `count`, which counts its calls within one MCP session. `counts` is by session id."""

    def __init__(self) -> None:
        """Speak the initialize era: that of 2026-07-28 has no sessions."""
        self.counts: dict[str, int] = {}
        super().__init__(_counter_server(self.counts), stateless=False, era="initialize")


@asynccontextmanager
async def stateless_downstream(
    name: str = "tools", *, era: Era = "both", start: bool = True
) -> AsyncGenerator[StatelessDownstream]:
    downstream = StatelessDownstream(name, era=era)
    async with downstream.serve(start=start):
        yield downstream


@asynccontextmanager
async def stateful_downstream() -> AsyncGenerator[StatefulDownstream]:
    downstream = StatefulDownstream()
    async with downstream.serve():
        yield downstream


@dataclass(frozen=True)
class Refusing:
    """A server that answers every request alike; `recorder` has what it was asked."""

    url: str
    recorder: Recorder


@asynccontextmanager
async def refusing(
    status: int, headers: Mapping[str, str] | None = None, *, words: str | None = None
) -> AsyncGenerator[Refusing]:
    """Answer `status` to everything (401, 403, 503, a 307 with its Location…), with these words."""

    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond_json(send, status, {"error": words or f"always {status}"}, headers)

    recorder = Recorder(app)
    async with serve_app(recorder) as listener:
        yield Refusing(f"{listener.base_url}/mcp", recorder)


def _tools_server(name: str, gate: Gate) -> FastMCP:
    server = FastMCP(name)

    @server.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    def fail(message: str) -> str:
        """Fail with this message."""
        raise ToolError(message)

    @server.prompt
    def greeting(name: str) -> str:
        """Greet somebody."""
        return f"Hello, {name}"

    _add_live_tools(server, gate)
    return server


def _add_live_tools(server: FastMCP, gate: Gate) -> None:
    @server.tool
    async def slow(label: str = "") -> str:
        """Take until the test says so."""
        await gate.enter(label)
        return f"done {label}".strip()

    @server.tool
    async def emit(logs: list[dict[str, Any]], progress: list[str] | None = None) -> str:
        """Send progress messages, then log notifications `{logger, data}` with `data` as it is, then answer."""
        context = get_context()
        for step, message in enumerate(progress or [], start=1):
            await context.report_progress(step, None, message)
        for log in logs:
            await _sending(context, log)
        return "emitted"


def _sending(context: Context, log: Mapping[str, Any]) -> Coroutine[Any, Any, None]:
    with warnings.catch_warnings():  # 2026-07-28 deprecates logging; Pallas clients live on it
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return context.session.send_log_message(
            level="info", data=log["data"], logger=log.get("logger"), related_request_id=context.request_id
        )


def _counter_server(counts: dict[str, int]) -> FastMCP:
    server = FastMCP("counter")

    @server.tool
    def count() -> int:
        """How often this session has asked."""
        session = get_context().session_id
        counts[session] = counts.get(session, 0) + 1
        return counts[session]

    return server


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _only(era: Era, app: AsgiApp) -> AsgiApp:
    """Refuse the other era the way servers of one era do."""
    if era == "both":
        return app

    async def gated(scope: Scope, receive: Receive, send: Send) -> None:
        version = headers_of(scope).get("mcp-protocol-version", "") if scope["type"] == "http" else ""
        is_modern = version >= MODERN_VERSION
        if scope["type"] != "http" or is_modern == (era == "modern"):
            await app(scope, receive, send)
            return
        rpc = _decoded(await read_body(receive))
        await respond_json(send, 400, {"jsonrpc": "2.0", "id": rpc.get("id"), "error": _refusal(is_modern, version)})

    return gated


def _refusal(is_modern: bool, version: str) -> dict[str, Any]:
    if is_modern:  # what the 1.x SDKs say to a version they have never heard of
        return {"code": -32600, "message": f"Bad Request: Unsupported protocol version: {version}"}
    return {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": "Unsupported protocol version",
        "data": {"supported": [MODERN_VERSION], "requested": version},
    }
