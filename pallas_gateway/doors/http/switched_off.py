"""The 404 of a disabled route, which names the setting to callers that may view an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.doors.http import agent_routes, refusals
from pallas_gateway.doors.http.access import caller_of
from pallas_gateway.errors import TokenRejectedError, VerificationUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.gateway import Gateway


def reason_for(gateway: Gateway, path: str) -> str | None:
    """Return a sentence about the setting that enables a path on the shared port; None without such a setting."""
    configuration = gateway.configuration
    for feature in gateway.feature_types:
        if (why := feature.why_off(configuration, path)) is not None:
            return why
    if agent_routes.is_own_port_path(path) and configuration.per_port:
        return "each agent is at /mcp on a port of its own; without `gateway.per_port` (--per-port) all are here"
    return None


def switched_off(gateway: Gateway, why: str, respond: Callable[[Scope, str], Response] = refusals.not_found) -> ASGIApp:
    """Return the app of a disabled path: 404 with `why`, to callers that may view an agent."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        may_know = False
        try:
            caller = await caller_of(gateway, scope)
            may_know = bool(caller.grants.viewed(gateway.agents))
        except TokenRejectedError as error:
            refusals.record(gateway, scope, "invalid_token", str(error))
        except VerificationUnavailableError:
            pass
        await respond(scope, why if may_know else refusals.NOTHING_HERE)(scope, receive, send)

    return app
