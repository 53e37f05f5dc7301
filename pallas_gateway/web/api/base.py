"""A subject of `/api/v1`: its routes, and what refused requests are answered with."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

from starlette.requests import Request
from starlette.routing import Match, Route

from pallas_gateway.errors import GatewayError
from pallas_gateway.identity.errors import TokenError
from pallas_gateway.web import refusals
from pallas_gateway.web.api.errors import not_allowed, response_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.hosting.gateway import Gateway

    type Endpoint = Callable[..., Awaitable[ASGIApp]]
    """Called with the request, then the values in its path."""
    type Methods = Mapping[str, Endpoint]


class Api:
    """Base of the subjects, such as threads: each names its `paths`. An app of its own uses `respond` alone."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def paths(self) -> Mapping[str, Methods]:
        """The endpoints by path, as `starlette.routing.Route` takes it, and method; `GET` answers `HEAD`, too."""
        return {}

    def routes(self) -> list[Route]:
        """Return a route for each path."""
        return [_Route(path, _Endpoints(self, methods)) for path, methods in self.paths.items()]

    def failed(self, error: GatewayError) -> Response:
        """Return the response for an error of an endpoint."""
        return response_to(error)

    async def respond(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request by an endpoint, also if it refuses the request."""
        try:
            request = Request(scope, receive)
            response = await endpoint(request, *request.path_params.values())
            await response(scope, receive, send)
        except TokenError as error:
            await refusals.of_token(self._gateway, error, scope)(scope, receive, send)
        except refusals.RefusedError as error:
            await error.response(scope, receive, send)
        except GatewayError as error:
            await self.failed(error)(scope, receive, send)


class _Route(Route):
    """A route of whole paths: Starlette's also match before a newline at the end."""

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if scope["path"].endswith("\n") else super().matches(scope)


class _Endpoints:
    """The ASGI app of one path."""

    def __init__(self, api: Api, methods: Methods) -> None:
        self._api = api
        self.methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is None:
            await not_allowed(self.methods)(scope, receive, send)
        else:
            await self._api.respond(endpoint, scope, receive, send)
