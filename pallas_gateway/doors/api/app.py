"""The app of `/api/v1`: the operations of all subjects behind their guards, and the document that describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Router

from pallas_gateway.doors.api.base import Api, operation, operations_of
from pallas_gateway.doors.api.errors import ApiError, error_body, response_to
from pallas_gateway.doors.http import access
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.page_headers import NotStored
from pallas_gateway.doors.http.refusals import NOTHING_HERE
from pallas_gateway.doors.http.switched_off import reason_for, switched_off

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.core.feature import Feature
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.api.base import Operation


class DocumentApi(Api):
    """The route of the document."""

    @operation(
        "GET", "/api/v1/openapi.json", "readDocument",
        "This document: what is switched on, for the agents that the caller may see.", answer=Any,
    )  # fmt: skip
    async def _document(self, request: Request) -> Response:
        from pallas_gateway.doors.api import openapi  # noqa: PLC0415  imported for the first request only

        # The document is public; without grants it names no agent's parameters.
        viewer = await access.informed_of(self._gateway, request.scope)
        shown, agents = operations(map(type, self._gateway.features)), viewer.viewed(self._gateway.agents)
        return JSONResponse(openapi.document(shown, [*agents.values()]))


def is_api_path(path: str) -> bool:
    """Return true if a path belongs to this API."""
    return f"{path}/".startswith("/api/v1/")


def operations(features: Iterable[type[Feature]]) -> list[Operation]:
    """Return the operations of a gateway with these features."""
    apis = (DocumentApi, *(feature.api() for feature in features))
    return [one for api in apis if api is not None for one in operations_of(api)]


def create_api(gateway: Gateway) -> Router:
    """Return the app; other paths are 404, with the setting that they require."""
    of_features = [(feature.api(), feature) for feature in gateway.features]
    subjects = [DocumentApi(gateway), *(api(gateway, feature) for api, feature in of_features if api is not None)]
    host_check = Middleware(HostCheck, configuration=gateway.configuration, body_of=error_body)

    async def absent(scope: Scope, receive: Receive, send: Send) -> None:
        why = reason_for(gateway, scope["path"]) or NOTHING_HERE
        await switched_off(gateway, why, _not_found)(scope, receive, send)

    routes = [route for one in subjects for route in one.routes()]
    return Router(routes, redirect_slashes=False, default=absent, middleware=[Middleware(NotStored), host_check])


def _not_found(_: Scope, why: str) -> Response:
    return response_to(ApiError(why, reason="not_found" if why == NOTHING_HERE else "switched_off"))
