"""How people sign in, for the console and `pallas-gateway login`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, override

from pallas_gateway.core.feature import Feature, ListedRoute, Route
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.open_endpoints import get_only
from pallas_gateway.features.sign_in import sign_in
from pallas_gateway.urls import SIGN_IN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import PortRoutes


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
            respond = get_only(self._gateway, partial(sign_in.respond, self._gateway))
            yield Route(lambda path: path == SIGN_IN, HostCheck(respond, configuration))
