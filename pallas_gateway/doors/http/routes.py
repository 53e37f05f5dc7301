"""The table of all routes, which `pallas-gateway routes` prints and docs/use/routes.md shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_gateway.doors.api.app import operations
from pallas_gateway.doors.api.operations import template
from pallas_gateway.doors.http import protected_resource
from pallas_gateway.features.registry import registry_api
from pallas_gateway.identity.grants import VIEW_GATEWAY, VIEW_METRICS
from pallas_gateway.urls import AGENT_DETAILS, CONSOLE, GATEWAY_STATE, RIGHTS, SIGN_IN, WELL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

_VIEW, _RUN = "`view` of an agent", "`run` of the agent"
_CONSOLE, _OPENAI = "`gateway.console`", "`gateway.openai_api`"


@dataclass(frozen=True, slots=True)
class ListedRoute:
    """A route of the gateway's port.

    Attributes:
        method: in capitals.
        path: with `{name}` for what a client puts in.
        does: a sentence in Markdown.
        requires: who may use it where `gateway.auth` asks for tokens; empty for everybody.
        setting: the setting of agents.yaml that switches it on, in Markdown; empty for those that are always there.
    """

    method: str
    path: str
    does: str
    requires: str = ""
    setting: str = ""


OTHERS = (
    ListedRoute(
        "POST",
        "/mcp",
        "[all agents](clients.md#all-agents-behind-one-url) over MCP; on an agent's own port that agent",
        _VIEW,
    ),
    ListedRoute(
        "POST", "/agents/{name}/mcp", "one agent over [MCP](clients.md)", "`view` of the agent; to call it, `run`"
    ),
    ListedRoute("GET", "/", "the console for browsers, the front page as JSON for programs"),
    ListedRoute("GET", "/livez", "200 while the process runs"),
    ListedRoute("GET", "/readyz", "200 when every agent was tried; with `strict=1` only if none has failed"),
    ListedRoute("GET", "/metrics", "[metrics](../operate/metrics.md)", f"`{VIEW_METRICS}`"),
    ListedRoute("GET", WELL_KNOWN, "the [registry](clients.md) of the agents"),
    ListedRoute("GET", registry_api.PATH, "the part of an MCP registry's API that reads; also below `/v0`"),
    ListedRoute(
        "GET",
        f"{protected_resource.WELL_KNOWN}/mcp",
        "how clients [sign in](sign-in.md), also with the path of an agent",
        setting="`gateway.auth.jwt`",
    ),
    ListedRoute("POST", "/v1/chat/completions", "agents for [OpenAI clients](openai-api.md)", _RUN, _OPENAI),
    ListedRoute("POST", "/v1/responses", "the same, as [responses](openai-api.md#post-v1responses)", _RUN, _OPENAI),
    ListedRoute(
        "GET",
        "/v1/models",
        "the agents as models; below it each of them",
        "`view` of an agent; for one model `run`",
        _OPENAI,
    ),
    ListedRoute("GET", "/docs/", "these pages"),
    ListedRoute("GET", CONSOLE, "the [console](console.md)", setting=_CONSOLE),
    ListedRoute("GET", GATEWAY_STATE, "for the console: the gateway", f"`{VIEW_GATEWAY}`", _CONSOLE),
    ListedRoute("GET", RIGHTS, "for the console: what the caller may do", setting=_CONSOLE),
    ListedRoute("GET", f"{AGENT_DETAILS}{{name}}", "for the console: one agent", "`view` of the agent", _CONSOLE),
    ListedRoute(
        "POST",
        f"{AGENT_DETAILS}{{name}}/tools/{{server}}/{{tool}}",
        "[runs a tool](console.md#run-a-tool)",
        _RUN,
        "`gateway.console` and `gateway.console_run_tools`",
    ),
    ListedRoute(
        "GET",
        SIGN_IN,
        "how people [sign in](sign-in.md)",
        setting="`gateway.console`, or `gateway.auth.console_client_id`",
    ),
)


def of_api(*, has_database: bool = True) -> list[ListedRoute]:
    """Return the routes of `/api/v1`; those of agents and threads require the libraries of the database."""
    always = {one.id for one in operations(has_database=False)}
    return [
        ListedRoute(
            one.method,
            f"{template(one.path)}{_query(one.query.model_fields) if one.query is not None else ''}",
            one.summary,
            one.requires,
            "" if one.id in always else "`gateway.database`",
        )
        for one in operations(has_database=has_database)
    ]


def plain(markdown: str) -> str:
    """Return a sentence without links and marks of code."""
    return re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", markdown).replace("`", "")


def _query(names: Iterable[str]) -> str:
    listed = "&".join(f"{name}=" for name in names)
    return f"?{listed}" if listed else ""
