"""What an agent of the database may use: `gateway.agents_may_use` with the models, tools and agents that are known.

A form needs it to offer them; the rules that decide are those of `pallas_gateway.features.definitions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.config.loading.cross_checks import TOOL_SEPARATOR
from pallas_gateway.features.definitions.rules import WILDCARDS, is_released
from pallas_gateway.identity.grants import CREATE_AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_types import Tool

    from pallas_gateway.config.model.agents_may_use import AgentsMayUseSettings
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.runtime.protocols import ServerTools

type Json = dict[str, Any]

_UNKNOWN = "No agent that runs uses this server."


def concerns(caller: Caller) -> bool:
    """Return True for a caller that may create agents, or edit one."""
    grants = caller.grants
    return grants.has(CREATE_AGENTS) or bool(grants.edited)


def document(gateway: Gateway, caller: Caller) -> Json:
    """Return what definitions by `caller` may use; tools are null for a server whose tools are not known."""
    floors = gateway.configuration.deployment.gateway.agents_may_use
    default = gateway.configuration.fastagent.default_model
    most = {"maxIterations": floors.most.max_iterations, "callTimeoutSeconds": floors.most.call_timeout_seconds}
    most["maxTokensPerCall"] = floors.most.max_tokens_per_call
    return {
        "mayCreate": caller.grants.has(CREATE_AGENTS),
        "models": _models(gateway, floors),
        "modelPatterns": [*floors.models],
        "defaultModel": default if default is not None and is_released(default, floors.models) else None,
        "servers": [*_servers(gateway, caller, floors)],
        "agents": [*_agents(gateway, caller, floors)],
        "approve": [*floors.approve],
        "most": {key: value for key, value in most.items() if value is not None},
    }


def _models(gateway: Gateway, floors: AgentsMayUseSettings) -> list[str]:
    """Return the released models that are known by name."""
    names = [one for one in floors.models if not any(wildcard in one for wildcard in (*WILDCARDS, "["))]
    names += [gateway.configuration.fastagent.default_model or ""]
    for agent in gateway.agents.values():
        names += [agent.settings.model or "", *agent.settings.models]
    return [name for name in dict.fromkeys(names) if name and is_released(name, floors.models)]


def _servers(gateway: Gateway, caller: Caller, floors: AgentsMayUseSettings) -> Iterator[Json]:
    configured, known = gateway.configuration.fastagent.servers, _known_tools(gateway, caller)
    for name, release in floors.servers.items():
        if name not in configured or (configured[name].forward_inbound_auth and not release.forwards):
            continue
        entry: Json = {"name": name, "globs": [*release.tools]}
        found = known.get(name)
        if found is None or found.tools is None:
            yield {**entry, "tools": None, "reason": found.why_unknown if found is not None else _UNKNOWN}
        else:
            released = (tool for tool in found.tools if is_released(tool.name, release.tools))
            yield {**entry, "tools": [_tool(one) for one in released]}


def _known_tools(gateway: Gateway, caller: Caller) -> Mapping[str, ServerTools]:
    """Return the servers that running agents use, each with the most tools that one of them knows."""
    found: dict[str, ServerTools] = {}
    for agent in gateway.agents.values():
        for server in agent.runtime.server_tools(caller) if agent.runtime is not None else ():
            before = found.get(server.name)
            if before is None or len(server.tools or ()) > len(before.tools or ()):
                found[server.name] = server
    return found


def _tool(tool: Tool) -> Json:
    return {"name": tool.name, **({"description": tool.description} if tool.description else {})}


def _agents(gateway: Gateway, caller: Caller, floors: AgentsMayUseSettings) -> Iterator[Json]:
    servers = gateway.configuration.fastagent.servers
    for name, agent in gateway.agents.items():
        can_be_named = "." not in name and TOOL_SEPARATOR not in name and name not in servers
        if can_be_named and is_released(name, floors.agents) and caller.grants.may_run(name):
            about = {"description": agent.settings.description} if agent.settings.description else {}
            yield {"name": name, "title": agent.settings.shown_title(name), **about}
