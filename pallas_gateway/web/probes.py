"""`/livez` and `/readyz`: they only read state, so they may be requested every second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from pallas_gateway.agents.agent_state import State
from pallas_gateway.identity.grants import EVERYTHING

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.identity.grants import Grants


def live() -> JSONResponse:
    """200 while the event loop responds."""
    return JSONResponse({"status": "alive"})


def ready(gateway: Gateway, request: Request, viewer: Grants = EVERYTHING) -> JSONResponse:
    """200 once every agent was tried and the gateway is not draining; `?strict=1` requires all agents to be ready.

    The body lists agents that the viewer may view; the status is the same for every caller.
    """
    down = {
        name: {"state": agent.status.state.value, "reason": agent.status.reason}
        for name, agent in gateway.agents.items()
        if agent.status.state is not State.READY
    }
    strict = request.query_params.get("strict") in ("1", "true")
    is_ready = gateway.all_tried and not gateway.draining and not (strict and down)
    word = "draining" if gateway.draining else "ready" if is_ready else "not ready" if gateway.all_tried else "starting"
    shown = {name: why for name, why in down.items() if viewer.may_view(name)}
    document = {"status": word, "agents": sum(viewer.may_view(name) for name in gateway.agents), "not_up": shown}
    return JSONResponse(document, status_code=200 if is_ready else 503)
