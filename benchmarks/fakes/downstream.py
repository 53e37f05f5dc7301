"""Many MCP servers in one process, with one tool each: `python -m benchmarks.fakes.downstream`.

`/NAME/MS/mcp` is the server NAME, which answers each request MS milliseconds after it came. Both protocol eras. The
servers `asks` and `asks-long` answer a tool call of 2026-07-28 once they have asked the caller by a form, the latter in
2,000 characters. The result of `long` has 4 KB.
`/token` stands in for an authorization server, which issues one token for any other.
`GET /counts` says how many requests of each JSON-RPC method each server has seen, `POST /counts` begins anew.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from hashlib import sha256
from typing import Any

from benchmarks.fakes.http import Request, as_json, main, whole

TOOL = "lookup_fact"
TOKEN_PATH = "/token"
FACT = "Bees can count to four."
MODERN_VERSION = "2026-07-28"
_TOOL: dict[str, Any] = {
    "name": TOOL,
    "description": "Look up a fact about a topic.",
    "inputSchema": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
}
_INFO = {"name": "facts", "version": "1"}
_CAPABILITIES = {kind: {"listChanged": False} for kind in ("tools", "prompts", "resources")}
"""All that FastMCP's servers claim; clients ask for what is claimed."""
_EXTRA = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What newer clients want in a result and older ones ignore."""
_RESULTS: dict[str, dict[str, Any]] = {
    "server/discover": {"supportedVersions": [MODERN_VERSION], "capabilities": _CAPABILITIES, **_EXTRA},
    "tools/list": {"tools": [_TOOL], **_EXTRA},
    "prompts/list": {"prompts": [], **_EXTRA},
    "resources/list": {"resources": [], **_EXTRA},
    "tools/call": {"content": [{"type": "text", "text": FACT}], "isError": False, "resultType": "complete"},
    "ping": {},
}
ASKS, ASKS_LONG = "asks", "asks-long"
LONG = "long"
_QUESTION = {
    "method": "elicitation/create",
    "params": {
        "message": "Which fact?",
        "requestedSchema": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
    },
}
_ASKED = {"resultType": "input_required", "inputRequests": {"topic": _QUESTION}, "requestState": "asked"}

_numbers = itertools.count()
_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)


def answer(request: Request, transport: asyncio.Transport) -> None:
    """Answer one request; see the module."""
    if request.path == "/counts":
        if request.method == "POST":
            _counts.clear()
        transport.write(as_json(_counts))
        return
    if request.path == TOKEN_PATH:
        transport.write(as_json({"access_token": "issued", "token_type": "Bearer", "expires_in": 3600}))
        return
    _, name, delay_ms, *_ = request.path.split("/")
    response = _response(request, name)
    if delay_ms == "0":
        transport.write(response)
    else:
        asyncio.get_running_loop().call_later(int(delay_ms) / 1000, transport.write, response)


def _response(request: Request, name: str) -> bytes:
    if request.method != "POST":
        _counts[name][request.method] += 1
        return whole(b"", status="200 OK" if request.method == "DELETE" else "405 Method Not Allowed")
    message = json.loads(request.body)
    _counts[name][message.get("method", "?")] += 1
    if "id" not in message:
        return whole(b"", status="202 Accepted")
    result = _result(name, message)
    if result is None:
        error = {"code": -32601, "message": "Method not found"}
        return as_json({"jsonrpc": "2.0", "id": message["id"], "error": error})
    event = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return whole(f"event: message\ndata: {event}\n\n".encode(), content_type="text/event-stream")


def _result(name: str, message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params") or {}
    if name in {ASKS, ASKS_LONG} and method == "tools/call" and not params.get("inputResponses"):
        return _ASKED
    if name == LONG and method == "tools/call":
        return {**_RESULTS[method], "content": [{"type": "text", "text": _long_fact(next(_numbers), parts=64)}]}
    if name == ASKS_LONG and method == "tools/call":
        return {**_RESULTS[method], "content": [{"type": "text", "text": _long_fact(message["id"])}]}
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        return {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": _INFO}
    return _RESULTS.get(method)


def _long_fact(number: object, parts: int = 31) -> str:
    """Return a text that differs from call to call: equal ones would make a compressed state small."""
    return f"{FACT} {''.join(sha256(f'{number} {part}'.encode()).hexdigest() for part in range(parts))}"


if __name__ == "__main__":
    main(answer)
