"""The endpoints outside the Host guard: probes, metrics, and those of features.

They hold nothing worth a DNS rebinding attack. The probes only read state, so they may be requested every second.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pallas_gateway.changes import registry as changes
from pallas_gateway.core.agent_state import State
from pallas_gateway.doors.http import refusals
from pallas_gateway.doors.http.access import informed_of, refusal_without, viewer_of
from pallas_gateway.errors import TokenError
from pallas_gateway.identity.grants import NOTHING, VIEW_METRICS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.feature import Endpoint, PortRoutes
    from pallas_gateway.core.gateway import Gateway


def open_endpoints(gateway: Gateway, port: PortRoutes) -> dict[str, ASGIApp]:
    """Return the apps of one port, by path."""
    endpoints: dict[str, Endpoint] = {path: partial(endpoint, gateway) for path, endpoint in _ON_EVERY_PORT.items()}
    for feature in gateway.features:
        endpoints |= feature.open_endpoints(port)
    return {path: get_only(gateway, endpoint) for path, endpoint in endpoints.items()}


async def _live(_gateway: Gateway, _request: Request) -> Response:
    return JSONResponse({"status": "alive"})  # as long as the event loop responds


async def _ready(gateway: Gateway, request: Request) -> Response:
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
    troubles = gateway.troubles()
    is_whole = not any(one.is_severe for one in troubles) and all(one.state is not State.FAILED for one in statuses)
    drains = gateway.calls.draining
    is_ready = gateway.all_tried and not drains and (is_whole or not strict)
    word = "draining" if drains else "ready" if is_ready else "not ready" if gateway.all_tried else "starting"
    not_up = {
        name: {"state": one.status.state.value, "reason": one.status.reason if informed.may_view(name) else None}
        for name, one in visible.items()
        if one.status.state is not State.READY
    }
    document = {"status": word, "agents": len(visible), "not_up": not_up}
    return JSONResponse({**document, **{one.key: one.value for one in troubles}}, status_code=200 if is_ready else 503)


async def _metrics(gateway: Gateway, request: Request) -> Response:
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


def get_only(gateway: Gateway, endpoint: Endpoint) -> ASGIApp:
    """Return the app of an endpoint for GET and HEAD, which refuses wrong tokens."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            response: Response = JSONResponse({"error": "use GET"}, status_code=405, headers={"Allow": "GET, HEAD"})
        else:
            try:
                response = await endpoint(Request(scope))
            except TokenError as error:
                response = refusals.of_token(gateway, error, scope)
        await response(scope, receive, send)

    return app


_ON_EVERY_PORT = {"/livez": _live, "/readyz": _ready, "/metrics": _metrics}
