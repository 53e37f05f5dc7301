"""`create_app`: one ASGI app for all listeners, with one route table for each port."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pallas_gateway.doors import openai
from pallas_gateway.doors.api.app import create_api
from pallas_gateway.doors.api.errors import error_body
from pallas_gateway.doors.http import agent_routes, protected_resource, refusals
from pallas_gateway.doors.http.access import RequestedEndpoint
from pallas_gateway.doors.http.bodies import AnswerAfterBody
from pallas_gateway.doors.http.forwarded import TrustedProxies
from pallas_gateway.doors.http.host_check import HostCheck, cross_origin
from pallas_gateway.doors.http.open_endpoints import open_endpoints
from pallas_gateway.doors.http.page_headers import NotStored
from pallas_gateway.doors.http.switched_off import API, reason_for, switched_off
from pallas_gateway.features.registry import registry_api
from pallas_gateway.features.sign_in import sign_in
from pallas_gateway.identity.errors import TokenError
from pallas_gateway.urls import ALL_AGENTS, CONSOLE, SIGN_IN, is_console_api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.http.open_endpoints import Endpoint
    from pallas_gateway.doors.mcp.mcp_servers import McpServers


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """The routes of a listener: every agent by path, one agent at `/mcp`, or the registry."""

    agents_by_path: bool = False
    agent: str | None = None
    registry: bool = False


def create_app(gateway: Gateway, servers: McpServers, ports: Mapping[int, PortRoutes]) -> ASGIApp:
    """Return the app behind all listeners.

    Args:
        gateway: opened by the server; the app has no lifespan of its own.
        servers: of the gateway's agents.
        ports: the routes of each listening port.
    """
    tables = {port: _Table(gateway, servers, routes) for port, routes in ports.items()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _accept_lifespan(receive, send)
        elif scope["type"] == "http":
            await AnswerAfterBody(tables[scope["server"][1]], gateway.limits.bodies)(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    guarded = cross_origin(app, gateway.configuration)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve metadata to pages of every origin, independent of `allowed_origins`."""
        is_open = scope["type"] == "http" and protected_resource.is_metadata_path(scope["path"])
        await (app if is_open else guarded)(scope, receive, send)

    return TrustedProxies(entry, gateway.configuration.deployment.gateway.trusted_proxies)


class _Table:
    """The route table of one port."""

    def __init__(self, gateway: Gateway, servers: McpServers, routes: PortRoutes) -> None:
        self._gateway = gateway
        self._servers = servers
        self._routes = routes
        self._has_agents = routes.agent is not None or routes.agents_by_path
        self._agents = HostCheck(self._serve_agent, gateway.configuration)
        self._is_main = _is_main(gateway, routes)
        self._api = create_api(gateway) if self._is_main else None
        self._sign_in = _sign_in(gateway) if self._is_main else None
        self._all_agents = HostCheck(self._serve_all, gateway.configuration)
        self._open = open_endpoints(gateway, routes)
        self._for_openai_clients = _openai_api(gateway, routes)
        self._console, self._console_api = _console(gateway, routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._open.get(registry_api.route(scope["path"]))
        if self._has_agents and protected_resource.is_metadata_path(scope["path"]):
            if scope["method"] == "OPTIONS":
                await protected_resource.preflight()(scope, receive, send)
                return
            endpoint = self._metadata
        if endpoint is not None:
            await _answer(self._gateway, endpoint, scope, receive, send)
        else:
            await self._app_at(scope)(scope, receive, send)

    def _app_at(self, scope: Scope) -> ASGIApp:
        """Return the app of the request's path, with its own guards."""
        path = scope["path"]
        if self._for_openai_clients is not None and openai.is_path(path):
            return self._for_openai_clients
        if self._routes.agents_by_path and agent_routes.is_own_port_path(path):
            return self._all_agents
        if agent_routes.is_agent_path(path, on_own_port=self._routes.agent is not None):
            return self._agents
        if (enabled := self._enabled_at(path)) is not None:
            return enabled
        if self._is_main and (why := reason_for(self._gateway.configuration, path)) is not None:
            return switched_off(self._gateway, why)
        return refusals.not_found(scope, refusals.NOTHING_HERE)

    def _enabled_at(self, path: str) -> ASGIApp | None:
        """Return the app of a path that not all ports or settings have; None for other paths, and if it is disabled."""
        if path == SIGN_IN:
            return self._sign_in
        if self._api is not None and f"{path}/".startswith(API):
            return self._api
        if is_console_api(path):
            return self._console_api
        return self._console if f"{path}/".startswith(CONSOLE) else None

    async def _metadata(self, request: Request) -> Response:
        return protected_resource.respond(self._gateway, self._routes.agent, request.url.path)

    async def _serve_agent(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._routes.agent or agent_routes.named_by_path(scope["path"])
        # On a port without agents the metadata would show which agents exist.
        shown, absent = name if self._has_agents else None, partial(self._why_not_here, scope, name)
        await agent_routes.serve(
            self._gateway, self._servers, RequestedEndpoint(name, shown, absent), Request(scope, receive), send
        )

    def _why_not_here(self, scope: Scope, name: str | None) -> str | None:
        """Return the error for an agent that this port does not serve; None if it does."""
        configuration = self._gateway.configuration
        if self._routes.agent is not None:
            is_here = agent_routes.is_own_port_path(scope["path"])
            return None if is_here else f"this port serves agent '{self._routes.agent}' at /mcp only"
        if self._routes.agents_by_path:
            return None
        if name is None or name not in configuration.hosted_agents:
            return "no agent on this port"
        return f"agent '{name}' has a port of its own (gateway.per_port): {configuration.agent_url(name)}"

    async def _serve_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        await agent_routes.serve(
            self._gateway, self._servers, RequestedEndpoint(ALL_AGENTS, ALL_AGENTS), Request(scope, receive), send
        )


def _is_main(gateway: Gateway, routes: PortRoutes) -> bool:
    """Return True for the port of the registry, which has all agents, and for the port of a single agent."""
    return routes.registry or (routes.agent is not None and gateway.configuration.only_agent is not None)


def _openai_api(gateway: Gateway, routes: PortRoutes) -> ASGIApp | None:
    if not _is_main(gateway, routes) or not gateway.configuration.deployment.gateway.openai_api:
        return None
    from pallas_gateway.doors.openai.api import OpenAiApi  # noqa: PLC0415  imported only when enabled

    return NotStored(OpenAiApi(gateway))


def _console(gateway: Gateway, routes: PortRoutes) -> tuple[ASGIApp | None, ASGIApp | None]:
    """Return the apps of the console's page and of its endpoints."""
    if not routes.registry or not gateway.configuration.serves_console:
        return None, None
    from pallas_gateway.features.console import api, tool_runs  # noqa: PLC0415  imported only when enabled
    from pallas_gateway.features.console.files import console  # noqa: PLC0415

    details = HostCheck(partial(_answer, gateway, partial(api.respond, gateway)), gateway.configuration)
    runs = NotStored(HostCheck(tool_runs.ToolRunsApi(gateway), gateway.configuration, body_of=error_body))

    async def endpoints(scope: Scope, receive: Receive, send: Send) -> None:
        await (runs if tool_runs.is_path(scope["path"]) else details)(scope, receive, send)

    return console(gateway.configuration), endpoints


def _sign_in(gateway: Gateway) -> ASGIApp | None:
    if not gateway.configuration.serves_console and not gateway.configuration.signs_in:
        return None
    return HostCheck(partial(_answer, gateway, partial(sign_in.respond, gateway)), gateway.configuration)


async def _answer(gateway: Gateway, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        response: Response = JSONResponse({"error": "use GET"}, status_code=405, headers={"Allow": "GET, HEAD"})
    else:
        try:
            response = await endpoint(Request(scope))
        except TokenError as error:
            response = refusals.of_token(gateway, error, scope)
    await response(scope, receive, send)


async def _accept_lifespan(receive: Receive, send: Send) -> None:
    """Confirm the server's lifespan messages; `process/server.py` opens and closes the gateway."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
