"""From a request to the agent it is for: by path on the gateway's port, by port in per-port mode.

No redirect and no mount: `/agents/x/mcp` and `/agents/x/mcp/` are the same place, and a redirect would lose the
method, the body or (behind an ingress) the scheme.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from pallas_gateway.agent_server.requests import SESSION_HEADER
from pallas_gateway.telemetry.redaction import quoted
from pallas_gateway.web import bodies

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from pallas_gateway.agent_server.transport import Transport
    from pallas_gateway.hosting.gateway import Gateway

_AGENT_PATH = re.compile(r"/agents/([^/]+)/mcp/?")
_OWN_PORT_PATH = re.compile(r"/mcp/?")
_INITIALIZE = re.compile(rb'"method"\s*:\s*"initialize"')
NOTHING_HERE = "nothing here"
_LOOKED_AT = 65_536  # bytes of a request in which its method is looked for


async def serve_by_path(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    """`/agents/<name>/mcp` of any hosted agent."""
    name = named_by_path(scope["path"])
    server = gateway.servers.get(name) if name else None
    if server is None:
        await not_found(scope, no_agent(name))(scope, receive, send)
        return
    await _serve(server.transport, scope, receive, send)


async def serve_one(gateway: Gateway, name: str, scope: Scope, receive: Receive, send: Send) -> None:
    """`/mcp` of the one agent a port belongs to."""
    if not _OWN_PORT_PATH.fullmatch(scope["path"]):
        await not_found(scope, f"this port serves agent '{name}' at /mcp only")(scope, receive, send)
        return
    server = gateway.servers.get(name)
    if server is None:  # gone with a reload, and its port is about to go
        await not_found(scope, no_agent(name))(scope, receive, send)
        return
    await _serve(server.transport, scope, receive, send)


async def serve_all(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    """`/mcp` of all agents at once."""
    await _serve(gateway.all_agents.transport, scope, receive, send)


def is_all_agents_path(path: str) -> bool:
    """Whether a path of the gateway's port is that of all agents at once."""
    return _OWN_PORT_PATH.fullmatch(path) is not None


def named_by_path(path: str) -> str | None:
    """The agent a path is for, hosted or not; None if it is none of an agent."""
    match = _AGENT_PATH.fullmatch(path)
    return match[1] if match else None


def no_agent(name: str | None) -> str:
    """Why a path leads to no agent."""
    return f"no agent {quoted(name)}" if name else NOTHING_HERE


def is_agent_path(path: str, *, on_own_port: bool) -> bool:
    """Whether a path belongs to the agents, hosted or not; `/mcp` does on an agent's own port only."""
    return path.startswith("/agents/") or (on_own_port and _OWN_PORT_PATH.fullmatch(path) is not None)


def not_found(scope: Scope, why: str) -> JSONResponse:
    """404 as JSON."""
    return JSONResponse({"error": why, "path": scope["path"]}, status_code=404)


async def _serve(transport: Transport, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] != "POST":
        # Without sessions GET has no stream to open and DELETE none to end; the spec's answer is 405.
        message = {"error": f"{scope['method']} is not used here: this MCP server keeps no sessions. Use POST."}
        await JSONResponse(message, status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        return
    if not bodies.is_json(Headers(scope=scope)):
        message = {"error": "Send the body as application/json (Content-Type)."}
        await JSONResponse(message, status_code=415)(scope, receive, send)
        return
    await transport.handle(scope, *_with_session_id(scope, receive, send))


def _with_session_id(scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Hand a client that initializes an opaque session id.

    It costs no state and any id is accepted later: it only ties a client's `notifications/cancelled`, which comes on
    another request, to the call it means.
    """
    headers = Headers(scope=scope)
    if SESSION_HEADER in headers or headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS:
        return receive, send
    initializes = False

    async def look() -> Message:
        nonlocal initializes
        message = await receive()
        initializes = initializes or _INITIALIZE.search(message.get("body", b"")[:_LOOKED_AT]) is not None
        return message

    async def stamp(message: Message) -> None:
        if message["type"] == "http.response.start" and initializes:
            MutableHeaders(scope=message)[SESSION_HEADER] = secrets.token_urlsafe(16)
        await send(message)

    return look, stamp
