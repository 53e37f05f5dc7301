"""The MCP servers of one gateway: one for each hosted agent, and the server of all agents; calls between agents."""

from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

from mcp_types import Icon

from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.doors.mcp.agent_server import AgentServer, ServerInfo
from pallas_gateway.doors.mcp.all_agents import AllAgentsServer
from pallas_gateway.doors.mcp.tool_requests import McpToolRequest
from pallas_gateway.errors import AgentUnavailableError
from pallas_gateway.identity.grants import EVERYTHING
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry import traces
from pallas_gateway.urls import ALL_AGENTS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from mcp_types import CallToolResult, Tool

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.doors.mcp.endpoint import McpEndpoint
    from pallas_gateway.doors.mcp.tasks import McpTasks
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.grants import Grants
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.protocols import NestedRequest


class McpServers:
    """The `AgentServers` of a gateway, which opens and closes them.

    Attributes:
        by_agent: the server of each hosted agent, in the order of the configuration; replaced by each reload.
        all_agents: the server of all agents.
        peers: the agents as downstreams of each other.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._serving = TaskOwner()
        self.by_agent: Mapping[str, AgentServer] = {}
        self._tasks = _tasks(gateway)
        deployment = gateway.configuration.deployment
        self.all_agents = AllAgentsServer(lambda: self.by_agent, deployment, gateway.sessions, self._tasks)
        self.peers = PeerCalls(gateway, self)

    async def __aenter__(self) -> Self:
        self._open(self.all_agents.endpoint, "server of all agents")
        self.serve(self._gateway.agents)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.by_agent.values():
            server.endpoint.close()
        self.all_agents.endpoint.close()
        await self._serving.__aexit__()

    def serve(self, agents: Mapping[str, HostedAgent]) -> None:
        """Serve these agents by their settings and those of the gateway, from the next request on."""
        self.all_agents.update(self._gateway.configuration.deployment)
        by_agent = {}
        for name, agent in agents.items():
            info = self._server_info(agent)
            if (server := self.by_agent.get(name)) is None:
                server = AgentServer(
                    agent,
                    server_info=info,
                    sessions=self._gateway.sessions,
                    check_health=self._gateway.check_health,
                    only_reads=self._gateway.only_reads,
                    tasks=self._tasks,
                )
                self._open(server.endpoint, f"server of {name}")
            else:
                server.update(info)
            by_agent[name] = server
        self.by_agent = by_agent

    def remove(self, name: str) -> Coroutine[Any, Any, None]:
        """Accept no more requests for an agent; return what ends after the last one."""
        leaving = self.by_agent[name]
        self.by_agent = {other: server for other, server in self.by_agent.items() if server is not leaving}
        return leaving.endpoint.finish()

    def _open(self, endpoint: McpEndpoint, name: str) -> None:
        self._serving.spawn(endpoint.run(), name=name, report=True)

    def _server_info(self, agent: HostedAgent) -> ServerInfo:
        deployment, absolute = self._gateway.configuration.deployment, self._gateway.addresses.absolute
        shown = agent.settings.shown_icons()
        icons = (Icon(src=absolute(icon.src), sizes=list(icon.sizes) or None) for icon in shown)
        offers_tasks = deployment.gateway.tasks is not None and agent.settings.tasks != "never"
        return ServerInfo(deployment.version, tuple(icons), deployment.gateway.tool_names, offers_tasks)


class PeerCalls:
    """The `Peers` of the gateway: its agents as downstreams of each other, in the process.

    A request uses the agents that are hosted when it begins.
    """

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


def _tasks(gateway: Gateway) -> McpTasks | None:
    if gateway.stored is None:
        return None
    from pallas_gateway.doors.mcp.tasks import McpTasks  # noqa: PLC0415  an extra of two hundred modules

    return McpTasks(gateway, gateway.stored.long_calls)
