"""The registry: the agents and their URLs, as MCP `server.json` entries.

Format: https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json, wrapped per entry as the MCP
registry API does (`{"server": …, "_meta": …}`). `capabilities` at the top level of `server` is what Daedalus reads.
The documents are pure functions of the gateway's present state, built for every request.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pallas_gateway.doors.api.models import written
from pallas_gateway.identity.grants import Grants

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.config.model.agents import ModelCapabilities
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
OFFICIAL = "io.modelcontextprotocol.registry/official"
PUBLISHER = "io.modelcontextprotocol.registry/publisher-provided"
LONGEST_TEXT = 100  # the schema's limit for `title` and `description`


def entries(gateway: Gateway, viewer: Grants) -> list[dict[str, Any]]:
    """Return the entries of the agents that the viewer may view, in the order of the configuration."""
    return [entry(gateway, agent) for agent in viewer.viewed(gateway.agents).values()]


def entry(gateway: Gateway, agent: HostedAgent) -> dict[str, Any]:
    """Return the entry of an agent; failed agents have one, too."""
    published, updated = (written(time, "seconds") for time in gateway.times_of(agent))
    official = {"status": "active", "publishedAt": published, "updatedAt": updated, "isLatest": True}
    return {"server": _server(gateway, agent), "_meta": {OFFICIAL: official}}


def _server(gateway: Gateway, agent: HostedAgent) -> dict[str, Any]:
    title = agent.settings.shown_title(agent.name)
    description = agent.settings.description or title
    capabilities = _capabilities(gateway, agent)
    published: dict[str, Any] = {"agent": agent.name, "title": title, "description": description}
    if (model := gateway.model_of(agent)) is not None:
        published["model"] = model
    if capabilities is not None:
        published["capabilities"] = capabilities
    if gateway.configuration.deployment.gateway.database is not None:
        published["threads"] = gateway.addresses.absolute("/api/v1/")
    server: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": gateway.configuration.registry_name(agent.name),
        "title": clamped(title),
        "description": clamped(description),
        "version": gateway.configuration.deployment.version,
        "remotes": [_remote(gateway, agent)],
        "_meta": {PUBLISHER: published},
    }
    if icons := _icons(gateway, agent):
        server["icons"] = icons
    if capabilities is not None:
        server["capabilities"] = capabilities
    return server


def _remote(gateway: Gateway, agent: HostedAgent) -> dict[str, Any]:
    """Return the agent's URL, with the header for a token if it requires one."""
    remote: dict[str, Any] = {"type": "streamable-http", "url": gateway.addresses.public(agent.name)}
    auth = gateway.configuration.deployment.gateway.auth
    if auth is not None and not Grants.of(auth.anonymous).may_run(agent.name):
        header = {"name": "Authorization", "description": "Bearer token", "isRequired": True, "isSecret": True}
        remote["headers"] = [header]
    return remote


def _icons(gateway: Gateway, agent: HostedAgent) -> list[dict[str, Any]]:
    icons = []
    for icon in agent.settings.shown_icons():
        document: dict[str, Any] = {"src": gateway.addresses.absolute(icon.src)}
        if icon.sizes:
            document["sizes"] = list(icon.sizes)
        icons.append(document)
    return icons


def _capabilities(gateway: Gateway, agent: HostedAgent) -> dict[str, Any] | None:
    declared = gateway.configuration.capabilities_of(agent.name)
    if declared is None:
        return None
    return {
        **({"model": model} if (model := gateway.model_of(agent)) else {}),
        "vision": declared.vision,
        **({"documents": True} if _takes_documents(agent, declared) else {}),
        "context_window": declared.context_window,
        "max_output_tokens": declared.max_output_tokens,
    }


def _takes_documents(agent: HostedAgent, declared: ModelCapabilities) -> bool:
    return agent.model.documents if agent.model is not None else bool(declared.documents)


def clamped(text: str) -> str:
    """Return the text, cut to `LONGEST_TEXT` characters with an ellipsis."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1].rstrip() + "…"


def respond(request: Request, document: dict[str, Any]) -> Response:
    """Return the document with an `ETag`, or 304 if the client has it (RFC 9110, weak comparison)."""
    body = json.dumps(document).encode()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    # `Vary`: a filtered registry depends on the caller.
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Authorization"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
