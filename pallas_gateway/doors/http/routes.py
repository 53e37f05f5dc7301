"""The table of all routes, which `pallas-gateway routes` prints and docs/use/routes.md shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pallas_gateway.core.feature import Feature, ListedRoute
from pallas_gateway.doors.api.app import operations
from pallas_gateway.doors.api.base import template
from pallas_gateway.doors.http import protected_resource
from pallas_gateway.identity.grants import VIEW_METRICS

_VIEW = "`view` of an agent"


_OTHERS = (
    ListedRoute(
        "POST",
        "/mcp",
        "[all agents](clients.md#all-agents-behind-one-url) over MCP; on an agent's own port that agent",
        _VIEW,
    ),
    ListedRoute(
        "POST", "/agents/{name}/mcp", "one agent over [MCP](clients.md)", "`view` of the agent; to call it, `run`"
    ),
    ListedRoute("GET", "/livez", "200 while the process runs"),
    ListedRoute("GET", "/readyz", "200 when every agent was tried; with `strict=1` only if none has failed"),
    ListedRoute("GET", "/metrics", "[metrics](../operate/metrics.md)", f"`{VIEW_METRICS}`"),
    ListedRoute(
        "GET",
        f"{protected_resource.WELL_KNOWN}/mcp",
        "how clients [sign in](sign-in.md), also with the path of an agent",
        setting="`gateway.auth.jwt`",
    ),
)


def others(features: Sequence[type[Feature]]) -> list[ListedRoute]:
    """Return the routes of a gateway with these features, without those of `/api/v1`."""
    return [*_OTHERS, *(route for feature in features for route in feature.listed)]


def of_api(features: Sequence[type[Feature]]) -> list[ListedRoute]:
    """Return the routes of `/api/v1`; those of agents and threads require the libraries of the database."""
    always = {one.id for one in operations(one for one in features if not one.needs_database)}
    return [
        ListedRoute(
            one.method,
            f"{template(one.path)}{_query(one.query.model_fields) if one.query is not None else ''}",
            one.summary,
            one.requires,
            "" if one.id in always else "`gateway.database`",
        )
        for one in operations(features)
    ]


def plain(markdown: str) -> str:
    """Return a sentence without links and marks of code."""
    return re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", markdown).replace("`", "")


def _query(names: Iterable[str]) -> str:
    listed = "&".join(f"{name}=" for name in names)
    return f"?{listed}" if listed else ""
