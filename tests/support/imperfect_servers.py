"""Downstreams that list their tools as no server should, each at a path of one odd server."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from tests.support.odd_server import DISCOVERED, HANDSHAKE, Answers, Document, Raw, odd_server

type Era = Literal["initialize", "modern"]

SCHEMA: dict[str, Any] = {"type": "object"}
NO_METHOD = {"error": {"code": -32601, "message": "Method not found"}}
PAGE = 50
EVENTS = "text/event-stream"
PINGS = Raw(content_type=EVENTS, pings=True)
"""A stream without an answer and without an end."""
UNLISTABLE: dict[str, tuple[tuple[int, object], str]] = {
    "refused": ((502, Raw("bad gateway", "text/plain")), "HTTP 502 Bad Gateway: bad gateway"),
    "login": ((200, Raw("<html>sign in</html>", "text/html")), "not an MCP answer: HTTP 200 with text/html"),
    "redirect": (
        (302, Raw(headers={"Location": "http://127.0.0.1:9/login"})),
        "Redirect to http://127.0.0.1:9/login not followed",
    ),
    "accepted": ((202, Raw()), "server answered a request with 202 Accepted"),
    "nothing": ((204, Raw(content_type="")), "not an MCP answer: HTTP 204 with no kind of content"),
    "empty": ((200, Raw()), "its answer is no JSON-RPC message (EOF while parsing a value at line 1 column 0)"),
    "array": ((200, Raw("[]")), "its answer is no JSON-RPC message"),
    "cut": ((200, Raw('{"jsonrpc": "2.0", ', is_cut=True)), ""),
    "ended": ((200, Raw(": hello\n\n", EVENTS)), "SSE stream ended without a response"),
    "text": ((200, Raw("all is well", "text/plain")), "not an MCP answer: HTTP 200 with text/plain"),
    "shapeless": (
        (200, {"result": {"tools": {}}}),
        "ListToolsResult: in tools, Input should be a valid list",
    ),
}
"""Forms of answers to `tools/list`, and the end of the reason that health gives."""


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, **more}


def listing(*tools: Any, **more: Any) -> dict[str, Any]:
    """A page of tools that is valid in both eras."""
    return {"result": {"tools": list(tools), "resultType": "complete", "ttlMs": 0, "cacheScope": "public", **more}}


def cursor_of(rpc: dict[str, Any]) -> str | None:
    cursor: str | None = (rpc.get("params") or {}).get("cursor")
    return cursor


def paged(cursors: list[str], prefix: str = "tool") -> Callable[[dict[str, Any]], tuple[int, object]]:
    """Pages of `PAGE` tools: each cursor leads to the next page, an unknown one is an error."""

    def answer(rpc: dict[str, Any]) -> tuple[int, object]:
        cursor = cursor_of(rpc)
        if cursor is not None and cursor not in cursors:
            return 200, {"error": {"code": -32602, "message": f"no page {cursor!r}"}}
        page = 0 if cursor is None else cursors.index(cursor) + 1
        more = {"nextCursor": cursors[page]} if page < len(cursors) else {}
        return 200, listing(*(tool(f"{prefix}_{PAGE * page + number:04}") for number in range(PAGE)), **more)

    return answer


def said(rpc: dict[str, Any]) -> tuple[int, object]:
    """The result of any tool: the name by which it was called."""
    return 200, {"result": {"resultType": "complete", "content": [{"type": "text", "text": rpc["params"]["name"]}]}}


@contextmanager
def imperfect_servers(lists: Mapping[str, Document], era: Era = "initialize") -> Generator[Answers]:
    """Servers that answer `tools/list` as `lists` say, by name; their URLs are `/NAME/mcp` at that of the answers."""
    is_modern = era == "modern"
    documents: dict[str, Document] = {
        "initialize": (200, NO_METHOD if is_modern else {"result": HANDSHAKE}),
        "server/discover": (200, DISCOVERED if is_modern else NO_METHOD),
        "notifications/initialized": (202, ""),
        "tools/call": said,
        **{f"/{name}/mcp tools/list": document for name, document in lists.items()},
    }
    with odd_server(documents) as answers:
        yield answers


def settings_of(answers: Answers, names: Mapping[str, object]) -> dict[str, Any]:
    return {name: {"transport": "http", "url": f"{answers.url}/{path}/mcp"} for name, path in names.items()}
