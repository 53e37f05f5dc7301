"""Connections of one call to programs, and to servers of the initialize era, whose listing is cached."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, override

import httpx2
from fast_agent.mcp.client_connection import MCPClientConnection
from fast_agent.mcp.mcp_connection_manager import ServerConnection
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_MODERN_VERSION

from pallas_gateway.runtime.downstreams.connections.answers import EVENT_BYTES
from pallas_gateway.runtime.downstreams.programs.program_transport import connection

if TYPE_CHECKING:
    from mcp.client import Transport

    from pallas_gateway.runtime.downstreams.listings.server_listing import ServerListing

_OWN_METHODS = ("message_handler", "sampling_callback", "elicitation_callback")


class PrimedConnection(MCPClientConnection):
    """A connection of one call to a server of the initialize era, or to a program."""

    def __init__(self, server: ServerConnection, listing: ServerListing) -> None:
        config = server.server_config
        super().__init__(
            _transport(server, listing),
            server._callback_runtime,
            read_timeout_seconds=config.read_timeout_seconds,
            cache=False,
            protocol_mode="legacy" if listing.discovered is None else "auto",
        )
        self._listing = listing
        if listing.discovered is not None:
            self.client.mode = LATEST_MODERN_VERSION
            self.client.prior_discover = listing.discovered

    @override
    async def __aenter__(self) -> MCPClientConnection:
        await super().__aenter__()
        self._listing.prime(self.client.session)
        return self


def _transport(server: ServerConnection, listing: ServerListing) -> Transport:
    if listing.program is not None:
        greeting = listing.program.discovery if listing.discovered is not None else None
        return connection(listing.program, partial(_mark_ended, server), greeting=greeting)
    if listing.http_client is None:
        raise TypeError("a listing without a way to its server")
    client = copy(listing.http_client)  # the same sockets
    # A load balancer may route a session to its server by a cookie, which is kept until the end of the session.
    client.cookies = httpx2.Cookies()
    url = server.server_config.url or ""
    return streamable_http_client(url, http_client=client, max_sse_event_size=EVENT_BYTES)


def _mark_ended(server: ServerConnection) -> None:
    """Have the next tool call of the call connect again."""
    server._error_occurred = True


def break_cycles(callbacks: Any) -> None:
    """Remove the methods that the callbacks of an ended connection have in their attributes."""
    for name in _OWN_METHODS:
        setattr(callbacks, name, None)
