"""The app of `/api/v1`: the routes of all subjects. `web/app.py` puts it behind its guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Router

from pallas_gateway.web.api.errors import ApiError, response_to
from pallas_gateway.web.calls.api import CallsApi
from pallas_gateway.web.calls.usage import UsageApi
from pallas_gateway.web.refusals import NOTHING_HERE
from pallas_gateway.web.switched_off import reason_for, switched_off

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.hosting.gateway import Gateway


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes that a gateway has; those of threads and of agents require a database."""
    found = [*CallsApi(gateway).routes(), *UsageApi(gateway).routes()]
    if gateway.stored is not None:
        from pallas_gateway.web.agents.api import AgentsApi  # noqa: PLC0415  imported only when enabled
        from pallas_gateway.web.threads.api import ThreadsApi  # noqa: PLC0415

        found += [*AgentsApi(gateway, gateway.stored).routes(), *ThreadsApi(gateway, gateway.stored.threads).routes()]
    return found


def create_api(gateway: Gateway) -> Router:
    """Return the app; other paths are 404, with the setting that they require."""

    async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
        why = reason_for(gateway.configuration, scope["path"])
        here = ApiError(NOTHING_HERE, reason="not_found")
        await (switched_off(gateway, why) if why is not None else response_to(here))(scope, receive, send)

    return Router(routes(gateway), redirect_slashes=False, default=nothing_here)
