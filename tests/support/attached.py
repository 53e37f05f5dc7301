"""An aggregator of fast-agent that is connected to a server of a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fast_agent.config import MCPServerSettings, MCPSettings, Settings
from fast_agent.context import Context
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp_server_registry import ServerRegistry
from fastmcp import FastMCP

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.settings.hosting import prepare_servers
from tests.support.downstreams import Downstream, Era


@asynccontextmanager
async def attached_to(server: FastMCP, era: Era = "modern") -> AsyncIterator[tuple[MCPAggregator, Downstream]]:
    preparation.prepare()
    downstream = Downstream(server, stateless=era == "modern", era=era)
    async with downstream.serve():
        settings = Settings(mcp=MCPSettings(servers={"tools": MCPServerSettings(transport="http", url=downstream.url)}))
        prepare_servers(settings, {})
        context = Context(config=settings, server_registry=ServerRegistry(settings))
        with entered(CallScope(connect=_nothing)):
            async with MCPAggregator(["tools"], context=context, name="agent") as aggregator:
                await connecting.attach(aggregator, "tools")
                yield aggregator, downstream


async def _nothing(_: MCPAggregator) -> None:
    """Connect nothing; the test attaches."""
