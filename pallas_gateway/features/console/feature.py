"""The console: a page for people, and the endpoints that only it uses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, override

from starlette.responses import RedirectResponse

from pallas_gateway.core.feature import Feature, ListedRoute, Route
from pallas_gateway.core.offers import PageForBrowsers
from pallas_gateway.doors.api.errors import error_body
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.http.open_endpoints import get_only
from pallas_gateway.doors.http.page_headers import NotStored
from pallas_gateway.identity.grants import VIEW_GATEWAY
from pallas_gateway.urls import AGENT_DETAILS, CONSOLE, GATEWAY_STATE, RIGHTS, is_console_api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import PortRoutes

_CONSOLE = "`gateway.console`"


class ConsoleFeature(Feature, PageForBrowsers):
    """The page and its endpoints, on the port of the registry."""

    settings = ("console", "console_run_tools", "console_registries")
    listed = (
        ListedRoute("GET", CONSOLE, "the [console](console.md)", setting=_CONSOLE),
        ListedRoute("GET", GATEWAY_STATE, "for the console: the gateway", f"`{VIEW_GATEWAY}`", _CONSOLE),
        ListedRoute("GET", RIGHTS, "for the console: what the caller may do", setting=_CONSOLE),
        ListedRoute("GET", f"{AGENT_DETAILS}{{name}}", "for the console: one agent", "`view` of the agent", _CONSOLE),
        ListedRoute(
            "POST",
            f"{AGENT_DETAILS}{{name}}/tools/{{server}}/{{tool}}",
            "[runs a tool](console.md#run-a-tool)",
            "`run` of the agent",
            "`gateway.console` and `gateway.console_run_tools`",
        ),
    )

    @classmethod
    @override
    def why_off(cls, configuration: Configuration, path: str) -> str | None:
        if not (f"{path}/".startswith(CONSOLE) or is_console_api(path)) or configuration.only_agent is not None:
            return None
        return "the console is off; `gateway.console: true` in agents.yaml enables it"

    @override
    def routes(self, port: PortRoutes) -> Iterable[Route]:
        gateway, configuration = self._gateway, self._gateway.configuration
        if not port.registry or not configuration.serves_console:
            return
        from pallas_gateway.features.console import api, tool_runs  # noqa: PLC0415  imported only when enabled
        from pallas_gateway.features.console.files import console  # noqa: PLC0415

        runs = HostCheck(tool_runs.ToolRunsApi(gateway), configuration, body_of=error_body)
        yield Route(tool_runs.is_path, NotStored(runs))
        yield Route(is_console_api, HostCheck(get_only(gateway, partial(api.respond, gateway)), configuration))
        yield Route(lambda path: f"{path}/".startswith(CONSOLE), console(configuration))

    @override
    def redirect(self, port: PortRoutes) -> Response | None:
        configuration = self._gateway.configuration
        if not port.registry or not configuration.serves_console:
            return None
        from pallas_gateway.features.console.files import security_headers  # noqa: PLC0415  imported only when enabled

        headers = {**security_headers(configuration), "Vary": "Accept"}
        return RedirectResponse(CONSOLE[1:], headers=headers)  # relative: a proxy may add a prefix
