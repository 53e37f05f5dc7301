"""`GET /api/sign-in`: how people sign in, for the console and `pallas-gateway login`. It requires no token.

It names the issuer alone. Clients fetch the metadata of the authorization server from there (OpenID Connect Discovery
or RFC 8414), and check that its `issuer` is equal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, override

from starlette.responses import JSONResponse, Response

from pallas_gateway.core.feature import Feature, ListedRoute, Route
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.open_endpoints import get_only
from pallas_gateway.doors.http.protected_resource import scopes
from pallas_gateway.urls import ALL_AGENTS, SIGN_IN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import PortRoutes
    from pallas_gateway.core.gateway import Gateway

_OF_OPENID = ("openid", "offline_access")


class SignInFeature(Feature):
    """One route, which requires no token."""

    listed = (
        ListedRoute(
            "GET",
            SIGN_IN,
            "how people [sign in](sign-in.md)",
            setting="`gateway.console`, or `gateway.auth.console_client_id`",
        ),
    )

    @classmethod
    @override
    def why_off(cls, configuration: Configuration, path: str) -> str | None:
        if path != SIGN_IN:
            return None
        return "people do not sign in here; `gateway.auth.console_client_id` in agents.yaml enables it"

    @override
    def routes(self, port: PortRoutes) -> Iterable[Route]:
        configuration = self._gateway.configuration
        if port.is_main(configuration) and (configuration.serves_console or configuration.signs_in):
            respond = get_only(self._gateway, partial(_respond, self._gateway))
            yield Route(lambda path: path == SIGN_IN, HostCheck(respond, configuration))


async def _respond(gateway: Gateway, _request: Request) -> Response:
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
