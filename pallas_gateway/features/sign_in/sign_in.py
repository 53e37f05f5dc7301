"""`GET /api/sign-in`: how people sign in, for the console and `pallas-gateway login`. It requires no token.

It names the issuer alone. Clients fetch the metadata of the authorization server from there (OpenID Connect Discovery
or RFC 8414), and check that its `issuer` is equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from pallas_gateway.doors.http.protected_resource import scopes
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway

_OF_OPENID = ("openid", "offline_access")


async def respond(gateway: Gateway, _request: Request) -> Response:
    """Answer with the project, and issuer, client, scopes and resource; `null` where people do not sign in."""
    project = gateway.configuration.deployment.name
    return JSONResponse({"sign_in": _sign_in(gateway), "project": project}, headers={"Cache-Control": "no-store"})


def _sign_in(gateway: Gateway) -> dict[str, Any] | None:
    auth = gateway.configuration.deployment.gateway.auth
    if auth is None or auth.jwt is None or auth.console_client_id is None:
        return None
    wanted = auth.console_scopes
    return {
        "issuer": auth.jwt.issuer,
        "client_id": auth.console_client_id,
        "scopes": list(wanted if wanted is not None else (*_OF_OPENID, *scopes(gateway, ALL_AGENTS))),
        "resource": gateway.configuration.public_base_url if auth.console_send_resource else None,
    }
