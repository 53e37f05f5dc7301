"""The MCP servers of one gateway: one for each hosted agent, and the server of all agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from mcp_types import Icon

from pallas_gateway.doors.mcp.agent_server import AgentServer, ServerInfo
from pallas_gateway.doors.mcp.all_agents import AllAgentsServer
from pallas_gateway.doors.mcp.peer_calls import PeerCalls
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.doors.mcp.endpoint import McpEndpoint
    from pallas_gateway.doors.mcp.tasks import McpTasks


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


def _tasks(gateway: Gateway) -> McpTasks | None:
    if gateway.stored is None:
        return None
    from pallas_gateway.doors.mcp.tasks import McpTasks  # noqa: PLC0415  an extra of two hundred modules

    return McpTasks(gateway, gateway.stored.long_calls)
