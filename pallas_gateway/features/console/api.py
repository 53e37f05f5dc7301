"""The console's own endpoints: details of agents and of the gateway that no other client needs.

`GET /api/agents/{name}` returns the model, the instruction and the examples of an agent, the tools of its downstreams,
and what the caller may do with it: `may_run`, `may_run_tools`, and with a database where it is defined (`source`),
`may_copy`, and for an agent of the database `may_edit`, `may_hand_over`, `may_delete` and `may_delete_threads`.
`GET /api/rights` returns who the caller is, whether it may create agents and list calls, and which agents it may view
and run.
`GET /api/gateway` returns the last reload, with its problems.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from pallas_gateway.config.loading.cross_checks import slug
from pallas_gateway.core.offers import PossibleOwners
from pallas_gateway.doors.http import refusals
from pallas_gateway.doors.http.access import caller_of, refusal, refusal_without
from pallas_gateway.identity.caller import CALLER_KEY
from pallas_gateway.identity.decision import Action, Decision, decide
from pallas_gateway.identity.grants import VIEW_CALLS, VIEW_GATEWAY
from pallas_gateway.telemetry.redaction import cleaned, cleaned_data
from pallas_gateway.urls import AGENT_DETAILS, GATEWAY_STATE, RIGHTS

if TYPE_CHECKING:
    from mcp_types import Tool
    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.protocols import ServerTools

_HEADERS = {"Cache-Control": "no-store"}
_SHOWN_OF_A_TOOL = {"name", "title", "description", "input_schema"}


async def respond(gateway: Gateway, request: Request) -> Response:
    """Answer a request for one of the endpoints.

    Raises:
        TokenError: as `caller_of`.
    """
    if request.scope["path"] == GATEWAY_STATE:
        return await _gateway(gateway, request)
    if request.scope["path"] == RIGHTS:
        caller = await caller_of(gateway, request.scope)
        if caller.authenticated and caller.owner is not None and (owners := gateway.find(PossibleOwners)) is not None:
            await owners.note_caller(caller.owner, caller.name)
        return JSONResponse(_rights(gateway, caller), headers=_HEADERS)
    return await _agent(gateway, request)


def agent_named(gateway: Gateway, asked: str) -> str:
    """Return the name of the agent that has this name or slug; what was asked for if there is none."""
    # Where each agent has a port of its own, the registry does not show its name, but its slug.
    return next((name for name in gateway.agents if asked in (name, slug(name))), asked)


async def _gateway(gateway: Gateway, request: Request) -> Response:
    if (refused := await refusal_without(VIEW_GATEWAY, gateway, request.scope)) is not None:
        return refused
    loaded_at = gateway.loaded_at.isoformat(timespec="seconds")
    return JSONResponse({"loaded_at": loaded_at, "problems": list(gateway.reload_problems)}, headers=_HEADERS)


async def _agent(gateway: Gateway, request: Request) -> Response:
    scope = request.scope
    name = agent_named(gateway, scope["path"].removeprefix(AGENT_DETAILS))
    caller = scope[CALLER_KEY] = await caller_of(gateway, scope)
    if (refused := refusal(gateway, scope, name, Action.VIEW, shown=None)) is not None:
        return refused
    if (agent := gateway.agents.get(name)) is None:
        return refusals.absent(gateway, scope, name)
    return JSONResponse(cleaned_data(_details(gateway, agent, caller)), headers=_HEADERS)


def _rights(gateway: Gateway, caller: Caller) -> dict[str, Any]:
    """Return what a caller may do, for all agents at once: the page asks once, and not once an agent."""
    return {
        "create_agents": _may_create(gateway, caller),
        "list_calls": caller.authenticated or caller.grants.has(VIEW_CALLS),
        "run": [*caller.grants.runnable(gateway.agents)],
        "view": [*caller.grants.viewed(gateway.agents)],
        "you": {"name": cleaned(caller.name), "id": caller.owner, "kind": caller.kind},
    }


def _may_create(gateway: Gateway, caller: Caller) -> bool:
    """Return True if the caller may create agents, and something is released for them."""
    is_on = _has_definitions(gateway) and bool(gateway.configuration.deployment.gateway.agents_may_use.models)
    return is_on and decide(caller, None, Action.CREATE, exists=False) is Decision.ALLOWED


def _has_definitions(gateway: Gateway) -> bool:
    return gateway.stored is not None and not gateway.configuration.per_port


def _details(gateway: Gateway, agent: HostedAgent, caller: Caller) -> dict[str, Any]:
    """Return the details of an agent that a caller may see; null for those that are unknown before its start."""
    runtime, may = agent.runtime, partial(_may, caller, agent.name)
    details: dict[str, Any] = {"name": agent.name, "model": gateway.model_of(agent), "servers": None}
    settings = gateway.configuration.deployment.gateway
    details |= {"may_run": may(Action.RUN), "may_run_tools": may(Action.RUN) and settings.console_run_tools}
    details |= {"examples": [*agent.settings.examples], "max_body_bytes": settings.max_body_bytes}
    if _has_definitions(gateway):
        details |= _of_definition(gateway, agent, caller)
    if runtime is not None:
        details["servers"] = [_server(one) for one in runtime.server_tools(caller)]
    if may(Action.READ_INSTRUCTION):
        details["instruction"] = cleaned(runtime.instruction) if runtime is not None else None
    return details


def _of_definition(gateway: Gateway, agent: HostedAgent, caller: Caller) -> dict[str, Any]:
    """Return where an agent is defined, and what the caller may do with its definition."""
    is_stored, may = agent.name in gateway.configuration.stored, partial(_may, caller, agent.name)
    has_owners = gateway.configuration.deployment.gateway.auth is not None  # otherwise all callers are one
    is_readable = agent.settings.is_instructed and may(Action.READ_INSTRUCTION)
    return {
        "source": "database" if is_stored else "file",
        "may_copy": is_readable and _may_create(gateway, caller),
        "may_edit": is_stored and may(Action.EDIT),
        "may_hand_over": is_stored and has_owners and may(Action.HAND_OVER),
        "may_delete": is_stored and may(Action.DELETE),
        "may_delete_threads": is_stored and may(Action.DELETE_THREADS),
    }


def _may(caller: Caller, agent: str, action: Action) -> bool:
    return decide(caller, agent, action, exists=True) is Decision.ALLOWED


def _server(server: ServerTools) -> dict[str, Any]:
    if server.tools is None:
        return {"name": server.name, "tools": None, "reason": server.why_unknown}
    return {"name": server.name, "tools": [_tool(one) for one in server.tools]}


def _tool(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True, include=_SHOWN_OF_A_TOOL)
