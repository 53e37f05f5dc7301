"""The agents as OAuth protected resources (RFC 9728): their identifiers and metadata.

Metadata has the same form for agents that do not exist, so that it does not show which exist.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp.shared.auth import ProtectedResourceMetadata
from starlette.responses import JSONResponse, Response

from pallas_gateway.config.loading.cross_checks import AGENT_NAME
from pallas_gateway.identity.grants import RUN_AGENTS
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.urls import Addresses

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_MAX_AGE = {"Cache-Control": "max-age=3600", "Access-Control-Allow-Origin": "*"}
_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "*",
}
_SCOPE_CLAIMS = ("scope", "scp")


def is_metadata_path(path: str) -> bool:
    """Return True for the path of a metadata document."""
    return path.startswith(f"{WELL_KNOWN}/")


def audiences(addresses: Addresses, agent: str | None) -> tuple[str, ...]:
    """Return the audiences accepted at an agent, or at the gateway itself, in addition to the configured ones."""
    names = [addresses.configuration.public_base_url]
    if agent is not None:
        names.append(addresses.resource(agent))
    return tuple(form for name in names for form in (name, f"{name}/"))


def scopes(gateway: Gateway, agent: str) -> list[str]:
    """Return the scopes that a client should request; none if grants are not scopes."""
    auth = gateway.configuration.deployment.gateway.auth
    if auth is None or auth.jwt is None:
        return []
    if auth.jwt.scopes_supported or auth.jwt.grants_claim not in _SCOPE_CLAIMS:
        return list(auth.jwt.scopes_supported)
    return [RUN_AGENTS] if agent == ALL_AGENTS else [f"{RUN_AGENTS}:{agent}"]


def scope_for(gateway: Gateway, grant: str) -> str | None:
    """Return the scope to request for a missing grant; None if grants are not scopes."""
    auth = gateway.configuration.deployment.gateway.auth
    if auth is None or auth.jwt is None:
        return grant
    return " ".join(auth.jwt.scopes_supported) or (grant if auth.jwt.grants_claim in _SCOPE_CLAIMS else None)


def metadata_url(gateway: Gateway, agent: str | None) -> str | None:
    """Return the URL of an agent's metadata; None if it has none."""
    auth = gateway.configuration.deployment.gateway.auth
    if agent is None or auth is None or auth.jwt is None:
        return None
    if agent != ALL_AGENTS and not AGENT_NAME.fullmatch(agent):
        return None
    base, path = gateway.addresses.resource_parts(agent)
    return f"{base}{WELL_KNOWN}{path}"


def respond(gateway: Gateway, own_agent: str | None, path: str) -> Response:
    """Return the metadata document at `path`; `own_agent` is the agent of the port, None on the gateway's port."""
    auth = gateway.configuration.deployment.gateway.auth
    agent = _agent_of(gateway, own_agent, path)
    if auth is None or auth.jwt is None or agent is None:
        return JSONResponse({"error": "nothing here", "path": path}, status_code=404)
    servers = auth.jwt.authorization_servers or (auth.jwt.issuer,)
    # Validated from text: URL objects would append a slash, and clients compare issuers exactly.
    document = ProtectedResourceMetadata.model_validate(
        {
            "resource": gateway.addresses.resource(agent),
            "authorization_servers": list(servers),
            "scopes_supported": scopes(gateway, agent) or None,
            "bearer_methods_supported": ["header"],
        }
    )
    return Response(document.model_dump_json(exclude_none=True), media_type="application/json", headers=_MAX_AGE)


def with_preflight(metadata: ASGIApp) -> ASGIApp:
    """Return an app that also answers CORS preflights: pages of any origin may read metadata (RFC 9728)."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_preflight = scope["method"] == "OPTIONS"
        await (Response(status_code=204, headers=_PREFLIGHT) if is_preflight else metadata)(scope, receive, send)

    return app


def _agent_of(gateway: Gateway, own_agent: str | None, path: str) -> str | None:
    """Return the agent of a metadata path, or `ALL_AGENTS`.

    RFC 9728 puts the well-known part before the resource's whole path, so a prefix of `public_url` follows it, unless
    an ingress has removed the prefix.
    """
    resource = path.removeprefix(WELL_KNOWN).rstrip("/")
    prefix = urlsplit(gateway.configuration.public_base_url).path
    if prefix and resource.startswith(f"{prefix}/"):
        resource = resource.removeprefix(prefix)
    if own_agent is not None:
        return own_agent if resource == "/mcp" else None
    if resource == "/mcp":
        return ALL_AGENTS
    match = re.fullmatch(rf"/agents/({AGENT_NAME.pattern})/mcp", resource)
    return match[1] if match else None
