"""The end of a session waits for its server.

Symptom: a server of the initialize era that hangs when its session is deleted keeps the ending call in memory.

Repair: a connection that has not ended within 2 s (all of an agent: 10 s) is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager

_MANAGER = "fast_agent.mcp.mcp_connection_manager:MCPConnectionManager"
CHANGE = Change(
    "session-ends",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(
        Name(f"{_MANAGER}.disconnect_server", ("self", "server_name"), by="limit_end"),
        Name(f"{_MANAGER}.disconnect_all", ("self",), by="limit_ends"),
    ),
    relies_on=(
        Name(f"{_MANAGER}.running_servers"),
        Name("fast_agent.mcp.mcp_connection_manager:ServerConnection.cancel_lifecycle", ("self",)),
    ),
    gone_when="fast-agent ends connections within a limit of its own",
)
END_SECONDS = 2.0
"""Limit for the end of a connection that a call waits for."""
END_ALL_SECONDS = 10.0
"""Limit for all connections of an agent of an instance; usually only the disposal waits for them."""
_log = logging.getLogger("pallas.runtime")


def limit_end(
    original: Callable[[MCPConnectionManager, str], Awaitable[None]], _: object
) -> Callable[[MCPConnectionManager, str], Awaitable[None]]:
    """End the connection to a server within a limit."""

    @wraps(original)
    async def disconnect_server(self: MCPConnectionManager, server_name: str) -> None:
        with _cutting_off_after(END_SECONDS, self, (server_name,)):
            await original(self, server_name)

    return disconnect_server


def limit_ends(
    original: Callable[[MCPConnectionManager], Awaitable[bool]], _: object
) -> Callable[[MCPConnectionManager], Awaitable[bool]]:
    """End all connections within a limit."""

    @wraps(original)
    async def disconnect_all(self: MCPConnectionManager) -> bool:
        with _cutting_off_after(END_ALL_SECONDS, self, list(self.running_servers)):
            return await original(self)

    return disconnect_all


@contextmanager
def _cutting_off_after(seconds: float, manager: MCPConnectionManager, servers: Iterable[str]) -> Iterator[None]:
    cutting = asyncio.get_running_loop().call_later(seconds, _cut_off, manager, servers)
    try:
        yield
    finally:
        cutting.cancel()


def _cut_off(manager: MCPConnectionManager, servers: Iterable[str]) -> None:
    for name in servers:
        if (connection := manager.running_servers.get(name)) is not None:
            # It does not answer the end of its session.
            _log.warning("downstream session cut off", extra={"server": name})
            connection.cancel_lifecycle()
