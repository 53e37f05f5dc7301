"""`create_app`: one ASGI app for all listeners; which routes a request sees depends on the port it came in by."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pallas_gateway.calls.credentials import NESTED_CALL_HEADER
from pallas_gateway.web import agent_routes, metrics, probes, registry
from pallas_gateway.web.guards import DrainGate, RefusalAfterBody, cross_origin, host_and_origin_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.gateway import Gateway

    type Endpoint = Callable[[Request], Response]

_log = logging.getLogger("pallas.web")


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """What a listener serves: every agent by path, one agent at `/mcp`, the registry, or nested calls only."""

    agents_by_path: bool = False
    agent: str | None = None
    registry: bool = False
    nested_only: bool = False


def create_app(gateway: Gateway, ports: Mapping[int, PortRoutes]) -> ASGIApp:
    """The app behind all listeners.

    Args:
        gateway: opened by whoever serves the app; the app has no lifespan of its own.
        ports: the routes of each listening port.
    """
    tables = {port: _Table(gateway, routes) for port, routes in ports.items()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _accept_lifespan(receive, send)
        elif scope["type"] == "http":
            await RefusalAfterBody(tables[scope["server"][1]])(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    return cross_origin(app, gateway.configuration)


class _Table:
    """The route table of one port."""

    def __init__(self, gateway: Gateway, routes: PortRoutes) -> None:
        self._gateway = gateway
        self._routes = routes
        self._agents = host_and_origin_guard(DrainGate(self._serve_agent, gateway), gateway.configuration)
        self._open = _open_endpoints(gateway, routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._open.get(scope["path"])
        if endpoint is not None:
            await _answer(endpoint, scope, receive, send)
        elif agent_routes.is_agent_path(scope["path"]):
            await self._agents(scope, receive, send)
        else:
            await agent_routes.not_found(scope, "nothing here")(scope, receive, send)

    async def _serve_agent(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._routes.agent is not None:
            await agent_routes.serve_one(self._gateway, self._routes.agent, scope, receive, send)
        elif self._routes.agents_by_path or self._is_nested_call(scope):
            await agent_routes.serve_by_path(self._gateway, scope, receive, send)
        else:
            await agent_routes.not_found(scope, "no agent on this port")(scope, receive, send)

    def _is_nested_call(self, scope: Scope) -> bool:
        if not self._routes.nested_only:
            return False
        token = Request(scope).headers.get(NESTED_CALL_HEADER)
        return self._gateway.running.parent_of(token) is not None


def _open_endpoints(gateway: Gateway, routes: PortRoutes) -> dict[str, Endpoint]:
    """The endpoints outside the Host guard: they give nothing away that is worth a rebinding attack."""
    if routes.nested_only:
        return {}
    endpoints: dict[str, Endpoint] = {
        "/livez": lambda _: probes.live(),
        "/readyz": lambda request: probes.ready(gateway, request),
        "/metrics": lambda request: metrics.exposition(gateway.metrics.registry, request),
    }
    if routes.registry:
        endpoints["/.well-known/mcp/server.json"] = lambda request: registry.respond(
            request, registry.well_known_document(gateway)
        )
        endpoints["/v0.1/servers"] = lambda request: registry.respond(request, registry.list_document(gateway))
    return endpoints


async def _answer(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        response: Response = JSONResponse({"error": "use GET"}, status_code=405, headers={"Allow": "GET, HEAD"})
    else:
        response = endpoint(Request(scope))
    await response(scope, receive, send)


async def _accept_lifespan(receive: Receive, send: Send) -> None:
    """Say yes to the server's lifespan protocol; the gateway is opened and closed outside it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
