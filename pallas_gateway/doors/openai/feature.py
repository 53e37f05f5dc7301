"""The door for clients of OpenAI's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

from pallas_gateway.core.feature import Feature, ListedRoute, Route
from pallas_gateway.doors import openai
from pallas_gateway.doors.http.page_headers import NotStored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import PortRoutes

_RUN, _ON = "`run` of the agent", "`gateway.openai_api`"


class OpenAiDoor(Feature):
    """Agents as models below `/v1/`, on the main port."""

    settings = ("openai_api",)
    listed = (
        ListedRoute("POST", "/v1/chat/completions", "agents for [OpenAI clients](openai-api.md)", _RUN, _ON),
        ListedRoute("POST", "/v1/responses", "the same, as [responses](openai-api.md#post-v1responses)", _RUN, _ON),
        ListedRoute(
            "GET",
            "/v1/models",
            "the agents as models; below it each of them",
            "`view` of an agent; for one model `run`",
            _ON,
        ),
    )

    @classmethod
    @override
    def why_off(cls, configuration: Configuration, path: str) -> str | None:
        if not openai.is_path(path) or configuration.deployment.gateway.openai_api:
            return None
        return "the OpenAI API is off; `gateway.openai_api: true` in agents.yaml enables it"

    @override
    def routes(self, port: PortRoutes) -> Iterable[Route]:
        configuration = self._gateway.configuration
        if port.is_main(configuration) and configuration.deployment.gateway.openai_api:
            from pallas_gateway.doors.openai.api import OpenAiApi  # noqa: PLC0415  imported only when enabled

            yield Route(openai.is_path, NotStored(OpenAiApi(self._gateway)))
