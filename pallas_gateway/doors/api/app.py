"""The app of `/api/v1`: the operations of all subjects behind their guards, and the document that describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Router

from pallas_gateway.doors.api.base import Api
from pallas_gateway.doors.api.errors import ApiError, error_body, response_to
from pallas_gateway.doors.api.operations import operation, operations_of
from pallas_gateway.doors.http import access
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.page_headers import NotStored
from pallas_gateway.doors.http.refusals import NOTHING_HERE
from pallas_gateway.doors.http.switched_off import reason_for, switched_off
from pallas_gateway.features.running_calls.api import CallsApi
from pallas_gateway.features.usage.routes import UsageApi
from pallas_gateway.identity.errors import TokenError
from pallas_gateway.identity.grants import NOTHING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.api.operations import Operation


class DocumentApi(Api):
    """The route of the document."""

    @operation(
        "GET", "/api/v1/openapi.json", "readDocument",
        "This document: what is switched on, with the parameters of the agents that the caller may see.", answer=Any,
    )  # fmt: skip
    async def _document(self, request: Request) -> Response:
        from pallas_gateway.doors.api import openapi  # noqa: PLC0415  imported for the first request only

        try:
            viewer = (await access.caller_of(self._gateway, request.scope)).grants
        except TokenError:
            viewer = NOTHING  # the document is public; without grants it names no agent's parameters
        shown, agents = operations(has_database=self._gateway.stored is not None), viewer.viewed(self._gateway.agents)
        return JSONResponse(openapi.document(shown, [*agents.values()]))


def operations(*, has_database: bool = True) -> list[Operation]:
    """Return the operations of a gateway; those of agents and threads require a database."""
    return [one for api in (*_PLAIN, *(_stored() if has_database else ())) for one in operations_of(api)]


def create_api(gateway: Gateway) -> Router:
    """Return the app; other paths are 404, with the setting that they require."""
    subjects = [api(gateway) for api in _PLAIN]
    if gateway.stored is not None:
        agents, threads = _stored()
        subjects += [agents(gateway, gateway.stored), threads(gateway, gateway.stored.threads)]
    host_check = Middleware(HostCheck, configuration=gateway.configuration, body_of=error_body)

    async def absent(scope: Scope, receive: Receive, send: Send) -> None:
        why = reason_for(gateway.configuration, scope["path"]) or NOTHING_HERE
        await switched_off(gateway, why, _not_found)(scope, receive, send)

    routes = [route for one in subjects for route in one.routes()]
    return Router(routes, redirect_slashes=False, default=absent, middleware=[Middleware(NotStored), host_check])


_PLAIN: tuple[type[Api], ...] = (DocumentApi, CallsApi, UsageApi)


def _not_found(_: Scope, why: str) -> Response:
    return response_to(ApiError(why, reason="not_found" if why == NOTHING_HERE else "switched_off"))


def _stored() -> tuple[Any, Any]:
    from pallas_gateway.features.definitions.http.api import AgentsApi  # noqa: PLC0415  imported only when enabled
    from pallas_gateway.features.threads.http.api import ThreadsApi  # noqa: PLC0415

    return AgentsApi, ThreadsApi
