"""Ends connections to downstreams within a time limit.

The end of a session of the initialize era is a request to its server, which may hang: fast-agent waits for it as long
as the HTTP client does, also after a connection that took too long to open.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (MCPConnectionManager, "running_servers", ()),
    (MCPConnectionManager, "_lock", ()),
    (MCPConnectionManager, "disconnect_server", ("self", "server_name")),
    (MCPConnectionManager, "disconnect_all", ("self",)),
    (ServerConnection, "cancel_lifecycle", ("self",)),
)
_log = logging.getLogger("pallas.runtime")


class BoundedShutdown(MCPConnectionManager):
    """Connections that are closed when their server does not answer the end of its session.

    Attributes:
        end_seconds: Time limit for the end of a connection that a call waits for.
        end_all_seconds: Time limit for the ends of all connections of an agent of an instance; usually only the
            disposal waits for them.
    """

    end_seconds = 2.0
    end_all_seconds = 10.0

    async def disconnect_server(self, server_name: str) -> None:
        """End the connection to a server."""
        with self._cutting_off_after(self.end_seconds, server_name):
            await super().disconnect_server(server_name)

    async def disconnect_all(self) -> bool:
        """End all connections; a call that used none waits for nothing."""
        if not (self.running_servers or self._lock.locked()):
            return False
        with self._cutting_off_after(self.end_all_seconds, *self.running_servers):
            return await super().disconnect_all()

    @contextmanager
    def _cutting_off_after(self, seconds: float, *servers: str) -> Iterator[None]:
        cutting = asyncio.get_running_loop().call_later(seconds, self._cut_off, servers)
        try:
            yield
        finally:
            cutting.cancel()

    def _cut_off(self, servers: tuple[str, ...]) -> None:
        for name in servers:
            if (connection := self.running_servers.get(name)) is not None:
                extra = {"server": name}
                _log.warning("downstream session cut off", extra=extra)
                connection.cancel_lifecycle()
