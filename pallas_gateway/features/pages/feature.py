"""The front page, and the documentation below `/docs/`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, override

from pallas_gateway.core.feature import Feature, ListedRoute
from pallas_gateway.core.offers import PageForBrowsers
from pallas_gateway.doors.http.access import informed_of, viewer_of
from pallas_gateway.features.pages import documentation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pallas_gateway.core.feature import Endpoint, PortRoutes


class PagesFeature(Feature):
    """The pages that every port has."""

    listed = (
        ListedRoute("GET", "/", "the console for browsers, the front page as JSON for programs"),
        ListedRoute("GET", "/docs/", "these pages"),
    )

    @override
    def open_endpoints(self, port: PortRoutes) -> Mapping[str, Endpoint]:
        pages: dict[str, Endpoint] = dict.fromkeys(documentation.documents(), documentation.document)
        pages |= dict.fromkeys(documentation.images(), documentation.image)
        pages |= dict.fromkeys(("/docs", "/docs/"), documentation.index)
        return {**pages, "/": partial(self._front_page, port)}

    async def _front_page(self, port: PortRoutes, request: Request) -> Response:
        from pallas_gateway.features.pages import front_page  # noqa: PLC0415  imported for the first page only

        gateway, other = self._gateway, self._gateway.find(PageForBrowsers)
        if other is not None and not front_page.wants_json(request) and (there := other.redirect(port)) is not None:
            return there
        viewer = await viewer_of(gateway, request.scope)
        return front_page.respond(gateway, port, request, viewer, await informed_of(gateway, request.scope))
