"""What answers at a gateway's address and need not be one: it says what the test wrote down."""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, override


@dataclass(frozen=True)
class Raw:
    """A body as it is; `pings` are sent after it without end, and `is_cut` ends it before the announced length."""

    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    pings: bool = False
    is_cut: bool = False


type Document = tuple[int, object] | Callable[[dict[str, Any]], tuple[int, object]]


class Answers:
    """What an odd server says: by path and method, by method, else to any; and the requests it got.

    A function gets the request, and gives the status and the document.
    """

    def __init__(self, documents: Mapping[str, Document]) -> None:
        self.documents = documents
        self.is_over = threading.Event()
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""

    def to(self, *keys: str, rpc: dict[str, Any]) -> tuple[int, object]:
        found = next((self.documents[key] for key in keys if key in self.documents), (404, {}))
        return found(rpc) if callable(found) else found


@contextmanager
def odd_server(documents: Mapping[str, Document]) -> Generator[Answers]:
    """A server in a thread that answers `documents` by method: GET is the registry's, POST the agents'."""
    answers = Answers(documents)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            rpc = json.loads(body) if body else {}
            answers.seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}, rpc))
            method = rpc.get("method", self.command)
            status, document = answers.to(f"{self.path} {method}", method, self.command, rpc=rpc)
            if isinstance(document, Raw):
                send_raw(self, status, document, answers.is_over)
                return
            sent = encoded(document, rpc).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if callable(document) else "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  the base class looks for these names

        @override
        def log_message(self, format: str, *arguments: object) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # of connections that a busy machine has not accepted yet: others are reset

        @override
        def handle_error(self, *_: object) -> None: ...  # a client that hung up is no news

    with Server(("127.0.0.1", 0), Handler) as server:
        answers.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield answers
        finally:
            answers.is_over.set()
            server.shutdown()
            thread.join()


def send_raw(handler: BaseHTTPRequestHandler, status: int, raw: Raw, is_over: threading.Event) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": raw.content_type, **raw.headers}.items():
        handler.send_header(name, value)
    if not raw.pings:
        handler.send_header("Content-Length", str(len(raw.body.encode()) + raw.is_cut))
    handler.end_headers()
    handler.wfile.write(raw.body.encode())
    while raw.pings and not is_over.wait(0.05):
        handler.wfile.write(b": ping\n\n")


def encoded(document: object, rpc: dict[str, Any]) -> str:
    """Text as it is; a JSON-RPC answer to `rpc`; for a function the messages it gives, as a stream."""
    if callable(document):
        return "".join(f"data: {encoded(message, rpc)}\n\n" for message in document(rpc))
    if isinstance(document, dict) and ("result" in document or "error" in document):
        document = {"jsonrpc": "2.0", "id": rpc.get("id"), **document}
    return document if isinstance(document, str) else json.dumps(document)


def registry_of(*names: str) -> dict[str, Any]:
    remotes = [{"type": "streamable-http", "url": f"https://public.example.com/agents/{name}/mcp"} for name in names]
    servers = [
        {"server": {"name": f"n/{name}", "remotes": [remote]}} for name, remote in zip(names, remotes, strict=True)
    ]
    return {"servers": servers}


HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "p", "version": "1"},
}
DISCOVERED: dict[str, Any] = {
    "result": {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "echo", "version": "1"},
        "ttlMs": 0,
        "cacheScope": "public",
    }
}


def modern_agent(tools: list[str], answer: object) -> dict[str, tuple[int, object]]:
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
    return {
        "GET": (200, registry_of("echo")),
        "server/discover": (200, DISCOVERED),
        "tools/list": (
            200,
            {"result": {"resultType": "complete", "tools": listed, "ttlMs": 0, "cacheScope": "public"}},
        ),
        "tools/call": (200, answer),
    }


ANSWER = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}}


def notice(method: str, **params: object) -> object:
    return {"jsonrpc": "2.0", "method": method, "params": params}


INITIALIZED = {
    "result": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    }
}


def hostile(era: str, **schemas: object) -> dict[str, tuple[int, object]]:
    """A server of one era with the tool `book`, whose `tools/call` a test changes from call to call."""
    server = modern_agent([], {})
    tool = {"name": "book", "inputSchema": {"type": "object"}, **schemas}
    server["tools/list"] = (
        200,
        {"result": {"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "public"}},
    )
    if era == "initialize":
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        server |= {"server/discover": (400, unknown), "initialize": (200, INITIALIZED)}
        server["notifications/initialized"] = (202, "")
    return server
