"""The responses to refused requests, in the form of an OAuth 2.1 resource server.

Formats: RFC 6750 (`WWW-Authenticate: Bearer`) and RFC 9728 (`resource_metadata`), as the MCP authorization spec
requires.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from pallas_gateway.doors.http import protected_resource
from pallas_gateway.errors import RETRY_AFTER_SECONDS, STOPPING, TokenError, TokenRejectedError
from pallas_gateway.identity.caller import Caller
from pallas_gateway.telemetry.redaction import quoted, shortened

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.telemetry.rate_limit import Reason

REALM = "pallas-gateway"
NOTHING_HERE = "nothing here"
LONGEST_PATH = 200  # characters of a path in a 404
NOT_LOADED = "The agents of the database are not loaded yet; try again in a moment."


class RefusedError(Exception):
    """The access rules refuse the request with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def of_token(gateway: Gateway, error: TokenError, scope: Scope, *, agent: str | None = None) -> JSONResponse:
    """Return the response to a request whose token is not accepted, or cannot be verified now."""
    body = {"error": error.reason, "error_description": str(error)}
    if isinstance(error, TokenRejectedError):
        record(gateway, scope, "invalid_token", str(error))
        return _refused(gateway, HTTPStatus.UNAUTHORIZED, body, body, agent)
    record(gateway, scope, "verification_unavailable", str(error))
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def without_token(gateway: Gateway, scope: Scope, agent: str | None = None) -> JSONResponse:
    """Return 401 for a request without a required token, with the metadata of `agent`."""
    record(gateway, scope, "no_token", "a bearer token is needed")
    body = {"error": "unauthorized", "error_description": "a bearer token is needed"}
    return _refused(gateway, HTTPStatus.UNAUTHORIZED, body, {}, agent)


def record(
    gateway: Gateway, scope: Scope, reason: Reason, why: str, caller: Caller | None = None, **facts: str | None
) -> None:
    """Count, log and audit a refusal with the client's address; see `RefusalLog.record`.

    `facts` are for the audit log: the `agent`, the `grant` that is missing, the `call_id`.
    """
    client = str((scope.get("client") or ("unknown",))[0])
    gateway.refusals.record(reason, why, client=client, caller=caller.principal if caller else None)
    gateway.refused_requests.record(reason, caller or Caller(address=client), facts)


def insufficient(gateway: Gateway, grant: str, agent: str | None, otherwise: str = "") -> JSONResponse:
    """Return 403 with the missing grant, and with its scope if grants are scopes."""
    body = {"error": "insufficient_scope", "error_description": f"this needs the grant {grant}{otherwise}"}
    scope = protected_resource.scope_for(gateway, grant)
    return _refused(gateway, HTTPStatus.FORBIDDEN, body, {**body, **({"scope": scope} if scope else {})}, agent)


def draining() -> JSONResponse:
    """Return 503 for a call while the gateway drains."""
    return JSONResponse({"error": STOPPING}, status_code=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def not_found(scope: Scope, why: str) -> JSONResponse:
    """Return 404 as JSON."""
    return JSONResponse({"error": why, "path": shortened(scope["path"], LONGEST_PATH)}, status_code=404)


def absent(gateway: Gateway, scope: Scope, name: str | None) -> JSONResponse:
    """Return 404 for an agent that does not exist or is hidden; 503 while it may be one of the database.

    Names of files that the caller may not know are answered with 503 as well, which would show them otherwise.
    """
    if name is None or not gateway.lacks_stored_agents:
        return not_found(scope, no_agent(name))
    body = {"error": "threads_unavailable", "error_description": NOT_LOADED}
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def no_agent(name: str | None) -> str:
    """Return the error for a path without a hosted agent."""
    return f"no agent {quoted(name)}" if name else f"{NOTHING_HERE}; an agent is at /agents/NAME/mcp"


def _refused(
    gateway: Gateway, status: HTTPStatus, body: dict[str, str], parameters: dict[str, str], agent: str | None
) -> JSONResponse:
    shown = {"realm": REALM, **parameters}
    metadata = protected_resource.metadata_url(gateway, agent)
    if agent is not None and metadata is not None:
        scopes = protected_resource.scopes(gateway, agent)
        shown = {**({"scope": " ".join(scopes)} if scopes else {}), **shown, "resource_metadata": metadata}
    # The values need no escaping: they are sentences, grants and URLs of the gateway.
    value = ", ".join(f'{name}="{text}"' for name, text in shown.items())
    return JSONResponse(body, status_code=status, headers={"WWW-Authenticate": f"Bearer {value}"})
