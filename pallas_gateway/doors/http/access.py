"""The caller of a request, and its access; `doors/http/refusals.py` has the responses to refused requests.

Without `gateway.auth` every caller has all grants, and only the request's token is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from pallas_gateway.doors.http import bodies, protected_resource, refusals
from pallas_gateway.doors.mcp.all_agents import agent_of
from pallas_gateway.doors.mcp.envelope import McpRequest
from pallas_gateway.errors import TokenError, TokenRejectedError
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.decision import Action, Decision, decide, decide_on_all
from pallas_gateway.identity.grants import EVERYTHING, NOTHING, RUN_AGENTS, VIEW_AGENTS, Grants
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.json_size import TOO_MANY_VALUES
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import Scope

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent


@dataclass(frozen=True, slots=True)
class RequestedEndpoint:
    """The address of an MCP request.

    Attributes:
        name: the agent of the address, `ALL_AGENTS`, or None for a path without an agent.
        shown: the agent whose metadata refusals link; None where that would show which agents exist.
        absent: returns why the agent is not served at this address, None if it is.
    """

    name: str | None
    shown: str | None
    absent: Callable[[], str | None] = lambda: None


async def admitted(gateway: Gateway, endpoint: RequestedEndpoint, http: Request) -> McpRequest | Response:
    """Return an accepted request, with its caller in the scope (`CALLER_KEY`), or the response that refuses it.

    401 without a valid token, also for agents that do not exist; 404 for an agent that the caller may not view, as if
    it did not exist; 403 for a call that the caller may not make; 503 while tokens cannot be verified, and for calls
    while the gateway drains. Other requests are answered during a drain: clients list tools to
    understand a result, and cancel calls.
    """
    scope = http.scope
    try:
        scope[CALLER_KEY] = await caller_of(gateway, scope, agent=endpoint.name)
    except TokenError as error:
        return refusals.of_token(gateway, error, scope, agent=endpoint.shown)
    if (refused := _refusal_to_view(gateway, endpoint, scope) or _refusal_by_headers(http)) is not None:
        return refused
    body = await bodies.read(http, gateway.configuration.deployment.gateway.max_body_bytes)
    if body is None:
        return refusals.draining() if gateway.calls.draining else Response("Request body too large", 413)
    request = McpRequest(http, body)
    if (refused := _refusal_to_run(gateway, endpoint.name, request)) is not None:
        return refused
    if gateway.calls.draining and request.calls_agent:
        return refusals.draining()
    return Response(TOO_MANY_VALUES, 413) if request.has_too_many_values else request


def _refusal_to_view(gateway: Gateway, endpoint: RequestedEndpoint, scope: Scope) -> Response | None:
    if endpoint.name == ALL_AGENTS:
        match decide_on_all(caller := scope[CALLER_KEY], gateway.agents):
            case Decision.TOKEN_NEEDED:
                return refusals.without_token(gateway, scope, ALL_AGENTS)
            case Decision.NO_GRANT:
                refusals.record(gateway, scope, "no_grant", "the token has no grant for any agent", caller)
                return refusals.insufficient(gateway, RUN_AGENTS, ALL_AGENTS)
    elif (refused := refusal(gateway, scope, endpoint.name, Action.VIEW, shown=endpoint.shown)) is not None:
        return refused
    absent = endpoint.absent()
    if absent is None and endpoint.name != ALL_AGENTS and endpoint.name not in gateway.agents:
        return refusals.absent(gateway, scope, endpoint.name)
    return refusals.not_found(scope, absent) if absent is not None else None


def _refusal_by_headers(http: Request) -> Response | None:
    if http.method != "POST":
        # Without sessions, GET has no stream to open and DELETE no session to end; the spec requires 405.
        message = {"error": f"{http.method} is not used here: this MCP server keeps no sessions. Use POST."}
        return JSONResponse(message, status_code=405, headers={"Allow": "POST"})
    if not bodies.is_json(http.headers):
        return JSONResponse({"error": "Send the body as application/json (Content-Type)."}, status_code=415)
    return None


def _refusal_to_run(gateway: Gateway, name: str | None, request: McpRequest) -> Response | None:
    """Refuse a call of an agent that the caller may only view; the body is parsed for such callers only."""
    scope, hosted = request.http.scope, gateway.agents
    caller: Caller = scope[CALLER_KEY]
    if name != ALL_AGENTS:
        may_run = decide(caller, name, Action.RUN, exists=name in hosted) is Decision.ALLOWED
        return None if may_run or not request.calls_agent else refusal(gateway, scope, name, Action.RUN, shown=name)
    if all(map(caller.grants.may_run, hosted)) or not request.calls_agent:
        return None
    agent = agent_of(request.tool or "", hosted) or ""
    match decide(caller, agent, Action.RUN, exists=agent in hosted):
        case Decision.TOKEN_NEEDED:
            return refusals.without_token(gateway, scope, ALL_AGENTS)
        case Decision.NO_GRANT:
            gateway.refuse_call(agent, caller)
            return refusals.insufficient(gateway, f"{RUN_AGENTS}:{agent}", ALL_AGENTS)
        case Decision.HIDDEN if agent in hosted:  # passed on: the server answers that it has no such tool
            why = f"the token has no grant for agent '{agent}'"
            refusals.record(gateway, scope, "no_grant", why, caller, agent=agent, grant=f"{RUN_AGENTS}:{agent}")
    return None


async def caller_of(gateway: Gateway, scope: Scope, *, agent: str | None = None) -> Caller:
    """Return the caller of a request, with its rights on the agents of the database.

    Args:
        gateway: has the authentication.
        scope: the request.
        agent: the requested agent (`ALL_AGENTS` for all), None for the gateway itself.

    Raises:
        TokenError: the request's token is not accepted, or cannot be verified now.
    """
    headers = Headers(scope=scope)
    bearer, client = bearer_of(headers.get("authorization")), scope.get("client")
    address = str(client[0]) if client else None
    if gateway.authenticator is None:
        return Caller(bearer=bearer, address=address)
    if len(headers.getlist("authorization")) > 1:
        raise TokenRejectedError("the request has more than one Authorization header")
    audiences = protected_resource.audiences(gateway.addresses, agent)
    caller = replace(await gateway.authenticator.identify(bearer, audiences=audiences), address=address)
    return caller.among(gateway.configuration.stored_owners)


def refusal(gateway: Gateway, scope: Scope, agent: str | None, action: Action, *, shown: str | None) -> Response | None:
    """Return the refusal of a request, None if it is allowed; refusals are counted and logged.

    Args:
        gateway: hosts the agents.
        scope: the request, with its caller.
        agent: the requested agent, None if the request names none.
        action: the use of the agent.
        shown: the agent whose metadata the response links, None for a response that must not name one.
    """
    caller, exists = scope[CALLER_KEY], agent in gateway.agents
    match decide(caller, agent, action, exists=exists):
        case Decision.TOKEN_NEEDED:
            return refusals.without_token(gateway, scope, shown)
        case Decision.HIDDEN:
            why = f"the token has no grant for agent '{agent}'" if exists else "there is no such agent"
            grant = f"{VIEW_AGENTS if action is Action.VIEW else RUN_AGENTS}:{agent}"
            facts = {"agent": agent, "grant": grant} if exists else {}  # other names are the client's
            refusals.record(gateway, scope, "no_grant", why, caller, **facts)
            return refusals.absent(gateway, scope, agent)
        case Decision.NO_GRANT if agent is not None:
            gateway.refuse_call(agent, caller)
            return refusals.insufficient(gateway, f"{RUN_AGENTS}:{agent}", shown)
    return None


def agent_for(gateway: Gateway, scope: Scope, name: str, action: Action, *, shown: str | None) -> HostedAgent | None:
    """Return the agent that the caller of a scope may use; None if it knows of no such agent.

    Raises:
        RefusedError: 401, 403, or 503 while the agents of the database are not known.
    """
    refused = refusal(gateway, scope, name, action, shown=shown)
    if refused is None and name not in gateway.agents:
        refused = refusals.absent(gateway, scope, name)
    if refused is not None and refused.status_code != HTTPStatus.NOT_FOUND:
        raise refusals.RefusedError(refused)
    return gateway.agents[name] if refused is None else None


async def viewer_of(gateway: Gateway, scope: Scope) -> Grants:
    """Return the grants that decide which agents a caller sees in the registry.

    Raises:
        TokenError: as `caller_of`; not with an open registry.
    """
    auth = gateway.configuration.deployment.gateway.auth
    if auth is None or auth.registry == "open":
        return EVERYTHING
    return (await caller_of(gateway, scope)).grants


async def informed_of(gateway: Gateway, scope: Scope) -> Grants:
    """Return the caller's own grants, which decide who sees the reason why an agent is not up.

    With a token that is not accepted there are no grants, because public probes and pages answer such requests, too.
    """
    try:
        return (await caller_of(gateway, scope)).grants
    except TokenError:
        return NOTHING


async def refusal_without(grant: str, gateway: Gateway, scope: Scope) -> JSONResponse | None:
    """Return the refusal of a request that requires a grant other than those for agents; None if the caller has it.

    Raises:
        TokenError: as `caller_of`.
    """
    caller = await caller_of(gateway, scope)
    if caller.grants.has(grant):
        return None
    if not caller.authenticated:
        return refusals.without_token(gateway, scope, None)
    refusals.record(gateway, scope, "insufficient_scope", f"the token has no grant {grant}", caller, grant=grant)
    return refusals.insufficient(gateway, grant, None)
