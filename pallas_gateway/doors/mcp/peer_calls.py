"""Calls between agents of this gateway, in the process: the `Peers` of the gateway."""

from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.doors.mcp.tool_requests import McpToolRequest
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.identity.grants import EVERYTHING
from pallas_gateway.telemetry import traces
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import CallToolResult, Tool

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.doors.mcp.agent_server import AgentServer
    from pallas_gateway.doors.mcp.all_agents import AllAgentsServer
    from pallas_gateway.doors.mcp.mcp_servers import McpServers
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.grants import Grants
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.protocols import NestedRequest


class PeerCalls:
    """The hosted agents as downstreams of each other. A request uses the agents that are hosted when it begins."""

    def __init__(self, gateway: Gateway, servers: McpServers) -> None:
        self._gateway = gateway
        self._servers = servers

    def tools(self, peer: str, caller: Caller) -> Sequence[Tool] | None:
        grants = self._grants(caller)
        if peer == ALL_AGENTS:
            return self._servers.all_agents.tools_for_peers(grants)
        server = self._servers.by_agent.get(peer)
        return server.tools_for_peers if server is not None and grants.may_view(peer) else None

    async def call(self, peer: str, tool: str, arguments: dict[str, Any], nested: NestedRequest) -> CallToolResult:
        parent = nested.parent
        caller = self._caller(parent.call.caller, nested.bearer)
        server = self._server(peer, caller.grants)
        headers: dict[str, str] = {}
        traces.hand_on(headers)
        options = StreamOptions(progress=parent.options.progress)
        request = McpToolRequest(caller, headers, nested.sender, options, nested.asker, parent=parent)

        async def work() -> CallToolResult:
            return cast("CallToolResult", await server.call_tool(tool, arguments, request))  # a request without rounds

        # In an empty context, because the context of the parent has its credentials, log fields and settings.
        return await Context().run(self._gateway.turns_and_nested.spawn, work(), name=f"nested call of {peer}")

    def _server(self, peer: str, grants: Grants) -> AgentServer | AllAgentsServer:
        if peer == ALL_AGENTS:
            return self._servers.all_agents
        server = self._servers.by_agent.get(peer)
        if server is None or not grants.may_view(peer):
            raise AgentUnavailableError(f"agent '{peer}' is not hosted here any more")
        return server

    def _caller(self, caller: Caller, bearer: Secret | None) -> Caller:
        """Return the parent's caller, with the token for this hop."""
        authenticator = self._gateway.authenticator
        if bearer is not None and authenticator is not None and authenticator.is_own_key(bearer):
            bearer = None  # a key of this gateway in the peer's entry must not reach the peer's own downstreams
        return replace(caller, bearer=bearer, grants=self._grants(caller))

    def _grants(self, caller: Caller) -> Grants:
        auth = self._gateway.configuration.deployment.gateway.auth
        return caller.grants if auth is not None and auth.peer_grants == "strict" else EVERYTHING
