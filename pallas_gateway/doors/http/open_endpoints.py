"""The endpoints outside the Host guard: front page, documentation, probes, metrics and registry.

They hold nothing worth a DNS rebinding attack. The probes only read state, so they may be requested every second.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from starlette.responses import JSONResponse, RedirectResponse, Response

from pallas_gateway.changes import registry as changes
from pallas_gateway.core.agent_state import State
from pallas_gateway.doors.http.access import informed_of, refusal_without, viewer_of
from pallas_gateway.features.console import documentation
from pallas_gateway.features.registry import registry, registry_api
from pallas_gateway.identity.errors import TokenError
from pallas_gateway.identity.grants import NOTHING, VIEW_METRICS
from pallas_gateway.urls import CONSOLE, WELL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.http.app import PortRoutes

    type Endpoint = Callable[[Request], Awaitable[Response]]


def open_endpoints(gateway: Gateway, routes: PortRoutes) -> dict[str, Endpoint]:
    """Return the endpoints of one port, by path."""
    pages = dict.fromkeys(documentation.documents(), _document)
    pages |= dict.fromkeys(documentation.images(), _image) | dict.fromkeys(documentation.moved_documents(), _moved)
    endpoints = {**_ON_EVERY_PORT, **pages, **(_WITH_REGISTRY if routes.registry else {})}
    return {path: partial(endpoint, gateway, routes) for path, endpoint in endpoints.items()}


async def _front_page(gateway: Gateway, routes: PortRoutes, request: Request) -> Response:
    from pallas_gateway.features.registry import front_page  # noqa: PLC0415  imported for the first page only

    if routes.registry and gateway.configuration.serves_console and not front_page.wants_json(request):
        from pallas_gateway.features.console.files import security_headers  # noqa: PLC0415  imported only when enabled

        headers = {**security_headers(gateway.configuration), "Vary": "Accept"}
        return RedirectResponse(CONSOLE[1:], headers=headers)  # relative: a proxy may add a prefix
    viewer = await viewer_of(gateway, request.scope)
    return front_page.respond(gateway, routes, request, viewer, await informed_of(gateway, request.scope))


async def _document(_gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    from pallas_gateway.features.registry import front_page  # noqa: PLC0415  as above

    return await documentation.respond_document(request.scope["path"], as_page=front_page.prefers_html(request))


async def _image(_gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    return documentation.respond_image(request.scope["path"])


async def _moved(_gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    return documentation.respond_moved(request.scope["path"])


async def _live(_gateway: Gateway, _routes: PortRoutes, _request: Request) -> Response:
    return JSONResponse({"status": "alive"})  # as long as the event loop responds


async def _ready(gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    """Answer 200 if every agent was tried and the gateway is not draining.

    `?strict=1` also requires that no agent has failed, and that the database of agents is not away.

    An agent that a reload adds counts once it was tried. The body lists agents that the viewer may view, with reasons
    for those who may view them by a grant; the status is the same for every caller.
    """
    try:
        viewer = await viewer_of(gateway, request.scope)
    except TokenError:
        viewer = NOTHING  # a probe needs the status; an invalid token only hides the list of agents
    informed = await informed_of(gateway, request.scope)
    statuses, visible = [one.status for one in gateway.agents.values()], viewer.viewed(gateway.agents)
    strict = request.query_params.get("strict") in ("1", "true")
    is_whole = not gateway.stored_agents_away and all(one.state is not State.FAILED for one in statuses)
    drains = gateway.calls.draining
    is_ready = gateway.all_tried and not drains and (is_whole or not strict)
    word = "draining" if drains else "ready" if is_ready else "not ready" if gateway.all_tried else "starting"
    not_up = {
        name: {"state": one.status.state.value, "reason": one.status.reason if informed.may_view(name) else None}
        for name, one in visible.items()
        if one.status.state is not State.READY
    }
    document = {"status": word, "agents": len(visible), "not_up": not_up}
    if gateway.limits_away is not None:
        document["limits"] = {"database": "away", "calls": gateway.limits_away}
    if gateway.stored_agents_away:
        document["database"] = {"agents": "away"}
    return JSONResponse(document, status_code=200 if is_ready else 503)


async def _metrics(gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    """Return the metrics as text 0.0.4, or in the format of the scraper's `Accept`."""
    if (refused := await refusal_without(VIEW_METRICS, gateway, request.scope)) is not None:
        return refused
    for name, is_on in changes.registry().states().items():
        gateway.metrics.fast_path.labels(name).set(is_on)
    try:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # its parser fails on versions that are not numbers
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return Response(await gateway.metrics.exposition(encode), headers={"Content-Type": content_type})


async def _well_known(gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    viewer = await viewer_of(gateway, request.scope)
    return registry.respond(request, registry.well_known_document(gateway, viewer))


async def _registry_api(gateway: Gateway, _routes: PortRoutes, request: Request) -> Response:
    return registry_api.respond(gateway, request, await viewer_of(gateway, request.scope))


_ON_EVERY_PORT = {"/": _front_page, "/livez": _live, "/readyz": _ready, "/metrics": _metrics}
_WITH_REGISTRY = {WELL_KNOWN: _well_known, registry_api.PATH: _registry_api}
