"""Clients of each API that read as fast as a test lets them: requests to the ASGI app, and their responses."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.asgi import Message
from tests.support.scripted_calls import World

type Era = Literal["initialize", "modern"]
MODERN, LEGACY = "2026-07-28", "2025-11-25"
LOGGER = "pallas.assistant_stream"


@dataclass(frozen=True)
class Received:
    at: float
    data: Any


class Exchange:
    """One request and its response.

    The client reads at once what it is sent, unless `stop_reading` was called. `fail` breaks the connection in the way
    that a server notices when it writes; `leave` closes it.
    """

    def __init__(self, world: World, path: str, body: Any, headers: dict[str, str]) -> None:
        self._world = world
        self.received: list[Received] = []
        self.comments: list[float] = []
        self.status: int | None = None
        self.has_ended = False
        self.error: BaseException | None = None
        self._unsent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self._text = b""
        self._is_json = False
        self._may_read, self._left = asyncio.Event(), asyncio.Event()
        self._may_read.set()
        self._fails = False
        everything = {"host": "127.0.0.1:1", "content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 5),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in everything.items()],
        }
        self.task = world.loop.create_task(self._run(scope), name="exchange")
        world.rest()

    async def _run(self, scope: Any) -> None:
        try:
            await self._world.app(scope, self._receive, self._send)
        except ConnectionError as error:
            self.error = error

    async def _receive(self) -> Message:
        if self._unsent:
            return self._unsent.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._may_read.wait()
        if self._fails:
            raise ConnectionResetError("the client is gone")
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_json = b"application/json" in dict(message["headers"]).get(b"content-type", b"")
            return
        self._text += message.get("body", b"")
        self._parse()
        if not message.get("more_body", False):
            self.has_ended = True
            if self._is_json and self._text:
                self.received.append(Received(self._world.loop.time(), json.loads(self._text)))

    def _parse(self) -> None:
        if self._is_json:
            return
        self._text = self._text.replace(b"\r\n", b"\n")
        *events, self._text = self._text.split(b"\n\n")
        now = self._world.loop.time()
        for event in events:
            lines = [line.removeprefix(b"data: ") for line in event.split(b"\n") if line.startswith(b"data: ")]
            if lines:
                text = b"\n".join(lines)
                self.received.append(Received(now, text.decode() if text == b"[DONE]" else json.loads(text)))
            elif event.startswith(b":"):
                self.comments.append(now)

    def stop_reading(self) -> None:
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()
        self._world.rest()

    def fail(self) -> None:
        self._fails = True
        self._may_read.set()
        self._world.rest()

    def leave(self) -> None:
        self._left.set()
        self._may_read.set()
        self._world.rest()

    @property
    def messages(self) -> list[Any]:
        return [one.data for one in self.received]


@dataclass(frozen=True)
class McpOptions:
    era: Era = "initialize"
    progress: bool = True
    messages: bool = True
    deltas: bool = True
    modes: tuple[str, ...] = ()


class McpClient:
    def __init__(self, world: World, options: McpOptions, agent: str, bearer: str | None = None) -> None:
        self._world = world
        self.options = options
        self._path = f"/agents/{agent}/mcp"
        self._bearer = {"authorization": f"Bearer {bearer}"} if bearer else {}
        self._ids = 0
        flags = "".join(mode[0] for mode in options.modes)
        self._session = f"session-{id(self)}.{flags}"

    def call(
        self,
        message: str = "hello",
        *,
        state: str | None = None,
        answers: dict[str, Any] | None = None,
        ends: bool = False,
    ) -> "McpExchange":
        """Call the agent; with a state, repeat the request with answers to its questions."""
        self._ids += 1
        params: dict[str, Any] = {"name": "send_message", "arguments": {"message": message}, "_meta": self._meta()}
        if state is not None:
            params["requestState"] = state
        if answers:
            params["inputResponses"] = answers
        if ends:
            params["_meta"]["pallas/end"] = True
        body = {"jsonrpc": "2.0", "id": self._ids, "method": "tools/call", "params": params}
        return McpExchange(self._world, self._path, body, self._headers("tools/call", "send_message"))

    def cancel(self) -> None:
        """Send `notifications/cancelled` for the latest request."""
        params = {"requestId": self._ids}
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        Exchange(self._world, self._path, body, self._headers("notifications/cancelled"))

    def answer(self, id_: str, result: Any) -> Exchange:
        """Answer a question of the initialize era."""
        body = {"jsonrpc": "2.0", "id": id_, "result": result}
        return Exchange(self._world, self._path, body, self._headers("answer"))

    def _meta(self) -> dict[str, Any]:
        options, meta = self.options, dict[str, Any]()
        if options.progress:
            meta["progressToken"] = "token"
        if options.deltas:
            meta["pallas/stream"] = "delta"
        if options.era == "modern":
            elicitation: Any = {"elicitation": {mode: {} for mode in options.modes}} if options.modes else {}
            meta["io.modelcontextprotocol/protocolVersion"] = MODERN
            meta["io.modelcontextprotocol/clientInfo"] = {"name": "test", "version": "1"}
            meta["io.modelcontextprotocol/clientCapabilities"] = elicitation
            if options.messages:
                meta["io.modelcontextprotocol/logLevel"] = "info"
        return meta

    def _headers(self, method: str, name: str | None = None) -> dict[str, str]:
        common = {"accept": "application/json, text/event-stream", **self._bearer}
        if self.options.era == "initialize":
            return {**common, "mcp-protocol-version": LEGACY, "mcp-session-id": self._session}
        return {**common, "mcp-protocol-version": MODERN, "mcp-method": method, **({"mcp-name": name} if name else {})}


class McpExchange(Exchange):
    @property
    def progress(self) -> list[Received]:
        return [Received(one.at, one.data["params"]) for one in self.received if _is(one, "notifications/progress")]

    @property
    def payloads(self) -> list[Received]:
        found = [one for one in self.received if _is(one, "notifications/message")]
        return [Received(one.at, one.data["params"]["data"]) for one in found]

    @property
    def questions(self) -> list[Any]:
        return [one.data for one in self.received if _is(one, "elicitation/create")]

    @property
    def result(self) -> Any:
        return next((one for one in self.messages if "method" not in one), None)


def _is(received: Received, method: str) -> bool:
    return isinstance(received.data, dict) and received.data.get("method") == method


class ChatExchange(Exchange):
    def __init__(self, world: World, agent: str, *, stream: bool) -> None:
        body = {"model": agent, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        super().__init__(world, "/v1/chat/completions", body, {})

    @property
    def text(self) -> str:
        chunks = [one for one in self.messages if isinstance(one, dict) and "choices" in one]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return "".join((one.get("delta") or one.get("message") or {}).get("content") or "" for one in choices)

    @property
    def finish(self) -> list[str]:
        chunks = [one for one in self.messages if isinstance(one, dict) and "choices" in one]
        return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]


class TurnExchange(Exchange):
    """A turn of a thread as a stream of events; with a `thread_id`, another client of the turn that runs there."""

    def __init__(self, world: World, agent: str, *, background: bool = False, thread_id: str | None = None) -> None:
        path = f"/api/v1/threads/{thread_id}/answers" if thread_id else f"/api/v1/agents/{agent}/chat"
        body = {"answers": {}} if thread_id else {"message": "hello", "background": background}
        super().__init__(world, path, body, {"accept": "text/event-stream"})

    @property
    def events(self) -> list[Any]:
        return [one for one in self.messages if isinstance(one, dict)]

    @property
    def thread_id(self) -> str | None:
        return next((str(one["threadId"]) for one in self.events if one["type"] == "thread"), None)

    @property
    def text(self) -> str:
        return "".join(one["delta"] for one in self.events if one["type"] == "text")

    @property
    def things(self) -> list[tuple[str, str]]:
        """Texts, and the ids of tool calls that begin and end."""
        kinds = {"text": "delta", "tool_call": "id", "tool_result": "id"}
        return [(one["type"], one[kinds[one["type"]]]) for one in self.events if one["type"] in kinds]
