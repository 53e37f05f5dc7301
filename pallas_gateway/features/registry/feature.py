"""The registry: a document at a well-known path, and the part of an MCP registry's API that reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

from pallas_gateway.core.feature import Feature, ListedRoute, Route
from pallas_gateway.doors.http.access import viewer_of
from pallas_gateway.doors.http.open_endpoints import get_only
from pallas_gateway.features.registry import registry, registry_api
from pallas_gateway.urls import WELL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pallas_gateway.core.feature import Endpoint, PortRoutes


class RegistryFeature(Feature):
    """The routes of the registry, on its port."""

    listed = (
        ListedRoute("GET", WELL_KNOWN, "the [registry](clients.md) of the agents"),
        ListedRoute("GET", registry_api.PATH, "the part of an MCP registry's API that reads; also below `/v0`"),
    )

    @override
    def open_endpoints(self, port: PortRoutes) -> Mapping[str, Endpoint]:
        return {WELL_KNOWN: self._well_known} if port.registry else {}

    @override
    def routes(self, port: PortRoutes) -> Iterable[Route]:
        if port.registry:
            yield Route(registry_api.is_path, get_only(self._gateway, self._api))

    async def _well_known(self, request: Request) -> Response:
        viewer = await viewer_of(self._gateway, request.scope)
        return registry.respond(request, {"servers": registry.entries(self._gateway, viewer)})

    async def _api(self, request: Request) -> Response:
        return registry_api.respond(self._gateway, request, await viewer_of(self._gateway, request.scope))
