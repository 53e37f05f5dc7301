"""Lists one downstream's tools on a connection of its own: for `check --online`, not for calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.calls.asking.asking import declaring
from pallas_gateway.runtime.downstreams.connections import connecting
from pallas_gateway.runtime.downstreams.connections.connection_manager import cut_off, faults_of, tools_of
from pallas_gateway.runtime.downstreams.listings.reading import listing_within
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.protocols import CANNOT_LIST
from pallas_gateway.runtime.scope import CallScope, connect_nothing, entered

if TYPE_CHECKING:
    from collections.abc import Collection

    from fast_agent.context import Context

    from pallas_gateway.calls.questions import Mode

LISTING_SECONDS = 20.0
"""The time that a call waits for the program of a stdio server."""


async def tool_names(
    server: str, agent: str, context: Context | None, modes: Collection[Mode] = ()
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of the tools that `server` offers to a caller without a token who can be asked in these modes.

    With why others are left out.

    Raises:
        ConnectionError: they could not be listed; the message has the reason.
    """
    aggregator = MCPAggregator([server], context=context, name=agent)
    cutting = asyncio.get_running_loop().call_later(LISTING_SECONDS, cut_off, aggregator)
    try:
        async with listing_within(LISTING_SECONDS):
            with entered(CallScope(connect=connect_nothing, questions=declaring(modes))):
                async with aggregator:
                    await connecting.attach(aggregator, server)
                    return frozenset(tools_of(aggregator, server)), faults_of(aggregator, server)
    except Exception as error:
        raise ConnectionError(one_line(error).removeprefix(CANNOT_LIST)) from error
    finally:
        cutting.cancel()
