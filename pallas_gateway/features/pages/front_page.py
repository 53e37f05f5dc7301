"""`GET /`: the agents, their states and addresses, as a page or as JSON.

The page shows the same as the registry and `/readyz`. It has no script and loads no other resource.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, JSONResponse

from pallas_gateway.doors.api.requests import weights
from pallas_gateway.doors.http.page_headers import page_headers, this_style
from pallas_gateway.features.pages.documentation import contents
from pallas_gateway.urls import WELL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pallas_gateway.core.feature import PortRoutes
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.identity.grants import Grants

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid;padding:.4rem .6rem;text-align:left;"
    "vertical-align:top}code{overflow-wrap:anywhere}"
)
_HEADERS = page_headers(this_style(_STYLE)) | {
    "Cache-Control": "no-cache",
    "Vary": "Accept, Authorization",  # the content depends on the caller
}


def respond(gateway: Gateway, routes: PortRoutes, request: Request, viewer: Grants, informed: Grants) -> Response:
    """Return the page, or its content as JSON for a client that accepts JSON and no HTML."""
    content = document(gateway, routes, viewer, informed)
    if wants_json(request):
        return JSONResponse(content, headers=_HEADERS)
    return HTMLResponse(_page(content), headers=_HEADERS)


def document(gateway: Gateway, routes: PortRoutes, viewer: Grants, informed: Grants) -> dict[str, Any]:
    """Return the agents of a port that the viewer may view, and the shared addresses; None for disabled ones.

    Agents have the reason for their state if `informed` may view them.
    """
    shown = [name for name in viewer.viewed(gateway.agents) if routes.agent in (None, name)]
    agents = [_agent(gateway, name, informed) for name in shown]
    configuration = gateway.configuration
    alone = configuration.only_agent is not None
    base = gateway.addresses.shared_base
    return {
        "registry": None if alone else f"{configuration.public_base_url}{WELL_KNOWN}",
        "all_agents": gateway.addresses.all_agents if agents else None,
        "openai_api": f"{base}/v1" if agents and configuration.deployment.gateway.openai_api else None,
        "threads_api": f"{base}/api/v1" if agents and gateway.stored is not None else None,
        "agents": agents,
    }


def _agent(gateway: Gateway, name: str, informed: Grants) -> dict[str, Any]:
    agent = gateway.agents[name]
    return {
        "name": name,
        "title": agent.settings.shown_title(name),
        "description": agent.settings.description,
        "state": agent.status.state.value,
        "reason": agent.status.reason if informed.may_view(name) else None,
        "url": gateway.addresses.public(name),
    }


def wants_json(request: Request) -> bool:
    """Return True for a client that accepts JSON and no HTML."""
    ranges = weights(request)
    return ranges.get("application/json", 0) > 0 and ranges.get("text/html", 0) == 0


def prefers_html(request: Request) -> bool:
    """Return True for a client that names HTML among what it accepts, as browsers do, and prefers it to text."""
    ranges = weights(request)
    return ranges.get("text/html", 0) > max(ranges.get(one, 0) for one in ("text/markdown", "text/plain"))


def _page(content: dict[str, Any]) -> str:
    labels = {
        "registry": "Registry",
        "all_agents": "All agents (MCP)",
        "openai_api": "OpenAI API",
        "threads_api": "Threads API",
    }
    addresses = "".join(
        f"<li>{label}: <code>{escape(content[key])}</code></li>" for key, label in labels.items() if content[key]
    )
    lists = "".join(f"<h3>{escape(reader)}</h3><ul>{_links(pages)}</ul>" for reader, pages in contents().items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Pallas Gateway</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>Pallas Gateway</h1><h2>Agents</h2>{_agents(content['agents'])}"
        f"<h2>Addresses</h2><ul>{addresses}</ul><h2>Documentation</h2>{lists}</body></html>\n"
    )


def _links(pages: Mapping[str, str]) -> str:
    return "".join(f'<li><a href="{escape(path[1:])}">{escape(title)}</a></li>' for path, title in pages.items())


def _agents(agents: list[dict[str, Any]]) -> str:
    if not agents:
        return "<p>This page shows the agents that a caller may view. A caller without a token may view none here.</p>"
    rows = "".join(
        f"<tr><td>{escape(one['title'])}<br><code>{escape(one['name'])}</code></td>"
        f"<td>{escape(': '.join(filter(None, (one['state'], one['reason']))))}</td>"
        f"<td><code>{escape(one['url'])}</code></td><td>{escape(one['description'] or '')}</td></tr>"
        for one in agents
    )
    return f"<table><tr><th>Agent<th>State<th>MCP URL<th>Description</tr>{rows}</table>"
