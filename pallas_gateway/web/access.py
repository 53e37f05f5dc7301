"""Who a request comes from and whether it may go on; `web/refusals.py` has the answers to those that may not.

Without `gateway.auth` everybody may do everything, and this only notes which token a request brought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from pallas_gateway.agent_server.all_agents import agent_of
from pallas_gateway.calls.credentials import NESTED_CALL_HEADER
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.identity.errors import TokenRejectedError, VerificationUnavailableError
from pallas_gateway.identity.grants import EVERYTHING, RUN_AGENTS, VIEW_METRICS, Grants
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.urls import ALL_AGENTS
from pallas_gateway.web import agent_routes, bodies, protected_resource, refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import JSONResponse, Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.calls.call import Call
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.identity.secret import Secret


class AccessGate:
    """Lets a request for an agent through with its caller in the scope (`CALLER_KEY`), or refuses it.

    401 without a valid token, for agents that are not there as well; 404 for an agent the caller may not view, as if it
    were not there; 403 for a call the caller may not make; 503 while tokens cannot be verified.
    """

    def __init__(
        self, app: ASGIApp, gateway: Gateway, named: Callable[[str], str | None], *, shows_metadata: bool = True
    ) -> None:
        """Guard `app`.

        Args:
            app: what stands behind the gate.
            gateway: whose authentication counts.
            named: says which agent a path is for.
            shows_metadata: refusals point to the agent's metadata. Not on a port where an agent is at another address
                than one that is not there: the difference would tell which are.
        """
        self._app = app
        self._gateway = gateway
        self._named = named
        self._shows_metadata = shows_metadata

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        agent = self._named(scope["path"])
        try:
            caller = await caller_of(self._gateway, scope, agent=agent)
        except (TokenRejectedError, VerificationUnavailableError) as error:
            await refusals.of_token(self._gateway, error, scope, agent=self._shown(agent))(scope, receive, send)
            return
        scope[CALLER_KEY] = caller
        refused = refusal(self._gateway, scope, agent, Action.VIEW, shown=self._shown(agent))
        if refused is None and agent is not None and _may_only_view(self._gateway, caller, agent):
            limit = self._gateway.configuration.deployment.gateway.max_body_bytes
            body, receive = await bodies.read(receive, limit)
            if bodies.is_call(body):
                refused = refusal(self._gateway, scope, agent, Action.RUN, shown=agent)
        await (refused or self._app)(scope, receive, send)

    def _shown(self, agent: str | None) -> str | None:
        return agent if self._shows_metadata else None


class AllAgentsGate:
    """The same for the endpoint of all agents at once.

    401 without a token where one is needed, 403 for a token without a grant for any agent. A call of an agent that may
    be viewed only is 403; one of an agent that may not even be viewed goes on, to be told that there is no such tool.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        """Guard `app` by the authentication of `gateway`."""
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        try:
            caller = await caller_of(self._gateway, scope, agent=ALL_AGENTS)
        except (TokenRejectedError, VerificationUnavailableError) as error:
            await refusals.of_token(self._gateway, error, scope, agent=ALL_AGENTS)(scope, receive, send)
            return
        scope[CALLER_KEY] = caller
        hosted = self._gateway.servers
        if all(map(caller.grants.may_run, hosted)):
            await self._app(scope, receive, send)
        elif any(map(caller.grants.may_view, hosted)):
            limit = self._gateway.configuration.deployment.gateway.max_body_bytes
            body, rest = await bodies.read(receive, limit)
            refused = self._call_refusal(caller, body, scope)
            await (refused or self._app)(scope, rest, send)
        else:
            await self._without_grant(caller, scope)(scope, receive, send)

    def _call_refusal(self, caller: Caller, body: bytes, scope: Scope) -> Response | None:
        if not bodies.is_call(body):
            return None
        agent = agent_of(bodies.called_tool(body) or "") or ""
        exists = agent in self._gateway.servers
        match decide(caller, agent, Action.RUN, exists=exists):
            case Decision.TOKEN_NEEDED:
                return refusals.without_token(self._gateway, scope, ALL_AGENTS)
            case Decision.NO_GRANT:
                self._gateway.refuse_call(agent, caller)
                return refusals.insufficient(self._gateway, f"{RUN_AGENTS}:{agent}", ALL_AGENTS)
            case Decision.HIDDEN if exists:
                refusals.note(self._gateway, scope, "no_grant", f"the token has no grant for agent '{agent}'", caller)
        return None

    def _without_grant(self, caller: Caller, scope: Scope) -> Response:
        if not caller.authenticated:
            return refusals.without_token(self._gateway, scope, ALL_AGENTS)
        refusals.note(self._gateway, scope, "no_grant", "the token has no grant for any agent", caller)
        return refusals.insufficient(self._gateway, RUN_AGENTS, ALL_AGENTS)


async def caller_of(gateway: Gateway, scope: Scope, *, agent: str | None = None) -> Caller:
    """Whom a request comes from.

    A nested call comes from the caller of the call that made it, with the token that this hop brought.

    Args:
        gateway: whose authentication counts.
        scope: the request.
        agent: the agent it is for (`ALL_AGENTS` for all at once), None for the gateway itself.

    Raises:
        TokenRejectedError: it brought a token that is not accepted here.
        VerificationUnavailableError: its token cannot be judged now.
    """
    headers = Headers(scope=scope)
    bearer = bearer_of(headers.get("authorization"))
    parent = gateway.running.parent_of(headers.get(NESTED_CALL_HEADER))
    if parent is not None:
        return _nested_caller(gateway, parent, bearer)
    if gateway.authenticator is None:
        return Caller(bearer=bearer)
    if len(headers.getlist("authorization")) > 1:
        raise TokenRejectedError("the request has more than one Authorization header")
    audiences = protected_resource.audiences(gateway.addresses, agent)
    return await gateway.authenticator.identify(bearer, audiences=audiences)


def _nested_caller(gateway: Gateway, parent: Call, bearer: Secret | None) -> Caller:
    auth = gateway.configuration.deployment.gateway.auth
    is_strict = auth is not None and auth.peer_grants == "strict"
    grants = parent.caller.grants if is_strict else EVERYTHING
    if bearer is not None and gateway.authenticator is not None and gateway.authenticator.is_own_key(bearer):
        bearer = None  # a key of this gateway, written into the peer's entry: it must not travel on
    caller = parent.caller
    return Caller(caller.name, bearer, grants, authenticated=caller.authenticated, owner=caller.owner)


def refusal(gateway: Gateway, scope: Scope, agent: str | None, action: Action, *, shown: str | None) -> Response | None:
    """Return the response to a request that may not go on, None if it may; refusals are counted and logged.

    Args:
        gateway: hosts the agents.
        scope: the request, with its caller.
        agent: that the request names, None if it names none.
        action: what the request does with the agent.
        shown: the agent whose metadata the response points to, None for a response that must not name one.
    """
    caller, exists = scope[CALLER_KEY], agent in gateway.servers
    match decide(caller, agent, action, exists=exists):
        case Decision.TOKEN_NEEDED:
            return refusals.without_token(gateway, scope, shown)
        case Decision.HIDDEN:
            why = f"the token has no grant for agent '{agent}'" if exists else "there is no such agent"
            refusals.note(gateway, scope, "no_grant", why, caller)
            return agent_routes.not_found(scope, agent_routes.no_agent(agent))
        case Decision.NO_GRANT if agent is not None:
            gateway.refuse_call(agent, caller)
            return refusals.insufficient(gateway, f"{RUN_AGENTS}:{agent}", shown)
    return None


def _may_only_view(gateway: Gateway, caller: Caller, agent: str) -> bool:
    return decide(caller, agent, Action.RUN, exists=agent in gateway.servers) is not Decision.ALLOWED


async def viewer_of(gateway: Gateway, scope: Scope) -> Grants:
    """What the one who asks may see in the registry.

    Raises:
        TokenRejectedError, VerificationUnavailableError: as `caller_of`; not with an open registry.
    """
    auth = gateway.configuration.deployment.gateway.auth
    if auth is None or auth.registry == "open":
        return EVERYTHING
    return (await caller_of(gateway, scope)).grants


async def metrics_refusal(gateway: Gateway, scope: Scope) -> JSONResponse | None:
    """Why the metrics are not shown, None if they are.

    Raises:
        TokenRejectedError, VerificationUnavailableError: as `caller_of`.
    """
    caller = await caller_of(gateway, scope)
    if caller.grants.may_view_metrics:
        return None
    if not caller.authenticated:
        return refusals.without_token(gateway, scope, None)
    refusals.note(gateway, scope, "insufficient_scope", "the token may not view the metrics", caller)
    return refusals.insufficient(gateway, VIEW_METRICS, None)
