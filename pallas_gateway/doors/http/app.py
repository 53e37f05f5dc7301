"""`create_app`: one ASGI app for all listeners, with one route table for each port."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request

from pallas_gateway.core.feature import Route
from pallas_gateway.doors.api.app import create_api, is_api_path
from pallas_gateway.doors.http import agent_routes, protected_resource, refusals
from pallas_gateway.doors.http.access import RequestedEndpoint
from pallas_gateway.doors.http.bodies import AnswerAfterBody
from pallas_gateway.doors.http.forwarded import TrustedProxies
from pallas_gateway.doors.http.host_check import HostCheck, cross_origin
from pallas_gateway.doors.http.open_endpoints import get_only, open_endpoints
from pallas_gateway.doors.http.switched_off import reason_for, switched_off
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.feature import PortRoutes
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.mcp.mcp_servers import McpServers


def create_app(gateway: Gateway, servers: McpServers, ports: Mapping[int, PortRoutes]) -> ASGIApp:
    """Return the app behind all listeners.

    Args:
        gateway: opened by the server; the app has no lifespan of its own.
        servers: of the gateway's agents.
        ports: the routes of each listening port.
    """
    tables = {
        port: AnswerAfterBody(_Table(gateway, servers, routes), gateway.limits.bodies) for port, routes in ports.items()
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":  # Hypercorn's lifespan is over at once; connections serve no WebSockets
            await tables[scope["server"][1]](scope, receive, send)

    guarded = cross_origin(app, gateway.configuration)
    return TrustedProxies(guarded, gateway.configuration.deployment.gateway.trusted_proxies)


class _Table:
    """The route table of one port."""

    def __init__(self, gateway: Gateway, servers: McpServers, routes: PortRoutes) -> None:
        self._gateway = gateway
        self._servers = servers
        self._routes = routes
        self._has_agents = routes.agent is not None or routes.agents_by_path
        self._is_main = routes.is_main(gateway.configuration)
        self._open = open_endpoints(gateway, routes)
        of_features = (route for feature in gateway.features for route in feature.routes(routes))
        self._others = (*self._of_agents(), *of_features)

    def _of_agents(self) -> Iterator[Route]:
        gateway, routes = self._gateway, self._routes
        guarded = partial(HostCheck, configuration=gateway.configuration)
        if routes.agents_by_path:
            yield Route(agent_routes.is_own_port_path, guarded(self._serve_all))
        is_agent_path = partial(agent_routes.is_agent_path, on_own_port=routes.agent is not None)
        yield Route(is_agent_path, guarded(self._serve_agent))
        if self._is_main:
            yield Route(is_api_path, create_api(gateway))
        if self._has_agents:
            metadata = get_only(gateway, self._read_metadata)
            yield Route(protected_resource.is_metadata_path, protected_resource.with_preflight(metadata))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app_at(scope)(scope, receive, send)

    def _app_at(self, scope: Scope) -> ASGIApp:
        """Return the app of the request's path, with its own guards."""
        path = scope["path"]
        if (endpoint := self._open.get(path)) is not None:
            return endpoint
        for route in self._others:
            if route.answers(path):
                return route.app
        if self._is_main and (why := reason_for(self._gateway, path)) is not None:
            return switched_off(self._gateway, why)
        return refusals.not_found(scope, refusals.NOTHING_HERE)

    async def _read_metadata(self, request: Request) -> Response:
        return protected_resource.respond(self._gateway, self._routes.agent, request.url.path)

    async def _serve_agent(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._routes.agent or agent_routes.named_by_path(scope["path"])
        # On a port without agents the metadata would show which agents exist.
        endpoint = RequestedEndpoint(name, name if self._has_agents else None)
        if not self._routes.agents_by_path:
            endpoint = replace(endpoint, absent=partial(self._why_not_here, scope, name))
        await agent_routes.serve(self._gateway, self._servers, endpoint, Request(scope, receive), send)

    def _why_not_here(self, scope: Scope, name: str | None) -> str | None:
        """Return the error for an agent that a port without the paths of agents does not serve; None if it does."""
        configuration = self._gateway.configuration
        if self._routes.agent is not None:
            is_here = agent_routes.is_own_port_path(scope["path"])
            return None if is_here else f"this port serves agent '{self._routes.agent}' at /mcp only"
        if name is None or name not in configuration.hosted_agents:
            return "no agent on this port"
        return f"agent '{name}' has a port of its own (gateway.per_port): {configuration.agent_url(name)}"

    async def _serve_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        await agent_routes.serve(
            self._gateway, self._servers, RequestedEndpoint(ALL_AGENTS, ALL_AGENTS), Request(scope, receive), send
        )
