"""The agent of a request: by path on the gateway's port, by port in per-port mode.

`/agents/x/mcp` and `/agents/x/mcp/` are equal, without a redirect: it would lose the method, the body or (behind an
ingress) the scheme.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import MutableHeaders

from pallas_gateway.doors.http import refusals
from pallas_gateway.doors.http.access import admitted
from pallas_gateway.doors.mcp.envelope import SESSION_HEADER, McpRequest
from pallas_gateway.doors.mcp.stream_asking import modes_in, new_session_id
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Send

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.http.access import RequestedEndpoint
    from pallas_gateway.doors.mcp.mcp_servers import McpServers

_AGENT_PATH = re.compile(r"/agents/([^/]+)/mcp/?")
_OWN_PORT_PATH = re.compile(r"/mcp/?")


async def serve(gateway: Gateway, servers: McpServers, endpoint: RequestedEndpoint, http: Request, send: Send) -> None:
    """Answer a request to an MCP endpoint, or refuse it."""
    request = await admitted(gateway, endpoint, http)
    server = servers.all_agents if endpoint.name == ALL_AGENTS else servers.by_agent.get(endpoint.name or "")
    if isinstance(request, McpRequest) and server is not None:
        await server.endpoint.handle(request, _with_session_id(request, send))
        return
    if isinstance(request, McpRequest):  # the agent was removed by a reload while the body arrived
        request = refusals.not_found(http.scope, refusals.no_agent(endpoint.name))
    await request(http.scope, http.receive, send)


def is_own_port_path(path: str) -> bool:
    """Return True for the path of an agent on its own port, and of all agents on the gateway's."""
    return _OWN_PORT_PATH.fullmatch(path) is not None


def named_by_path(path: str) -> str | None:
    """Return the name of the agent of a path, hosted or not; None for other paths."""
    match = _AGENT_PATH.fullmatch(path)
    return match[1] if match else None


def is_agent_path(path: str, *, on_own_port: bool) -> bool:
    """Return True for a path of an agent, hosted or not; `/mcp` is one on an agent's own port only."""
    return path.startswith("/agents/") or (on_own_port and is_own_port_path(path))


def _with_session_id(request: McpRequest, send: Send) -> Send:
    """Add an opaque session id to the response to `initialize`.

    Nothing is stored for it, and any id is accepted later. It connects what a client sends in another request (a
    cancellation, the answer to a question) to its call, and holds the modes of questions that the client declared.
    """
    headers = request.http.headers
    is_modern = headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS
    if SESSION_HEADER in headers or is_modern or not request.initializes:
        return send

    session = new_session_id(modes_in(request.capabilities))

    async def stamp(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[SESSION_HEADER] = session
        await send(message)

    return stamp
