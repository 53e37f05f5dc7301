"""The sockets of the gateway: binds its ports, with the routes of each, and closes them."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.core.feature import PortRoutes
from pallas_gateway.errors import RETRY_AFTER_SECONDS, GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.tasks import TaskOwner

BACKLOG = 1024
CLOSE_SECONDS = 2.0
"""Time limit for open connections to close once all requests have been answered."""
_STOPPING = (
    f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_SECONDS}\r\n"
    "Connection: close\r\nContent-Length: 0\r\n\r\n"
).encode()


class BindError(GatewayError):
    """A port cannot be bound."""

    reason = "bind_failed"


class PortsError(GatewayError):
    """The ports changed, which requires a restart."""

    reason = "ports_change"


class Sharing(Protocol):
    """The other processes that accept on the same sockets. A process closes them when none of the others serves."""

    async def until_all_stopped(self) -> None:
        """Report that all calls here have ended; return once all calls of all processes have."""

    def closed(self) -> None:
        """Report that this process accepts no more connections."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Bound sockets with their routes.

    Attributes:
        sockets: by port.
        routes: by port.
        sharing: set where other processes accept on the same sockets.
    """

    sockets: Mapping[int, socket.socket]
    routes: Mapping[int, PortRoutes]
    sharing: Sharing | None = None


def bind(configuration: Configuration, sockets: ExitStack) -> Listeners:
    """Bind every port the configuration asks for, for this process alone; `sockets` closes them.

    Raises:
        BindError: names the address and why.
    """
    return share(bind_public(configuration, sockets), configuration)


def bind_public(configuration: Configuration, sockets: ExitStack) -> list[socket.socket]:
    """Bind the ports for clients, in the order of the configuration.

    Raises:
        BindError: names the address and why.
    """
    host = configuration.bind_host
    return [sockets.enter_context(_bind(host, port)) for port, _ in _wanted_ports(configuration)]


def share(public: Sequence[socket.socket], configuration: Configuration, sharing: Sharing | None = None) -> Listeners:
    """Return the listeners of a process on the sockets that `bind_public` has bound."""
    bound = {listener.getsockname()[1]: listener for listener in public}
    routes = dict(zip(bound, (routes for _, routes in _wanted_ports(configuration)), strict=True))
    return Listeners(bound, routes, sharing)


def check_ports(present: Configuration, wanted: Configuration) -> None:
    """Check that two configurations have the same routes on the same ports.

    Raises:
        PortsError: they have others.
    """
    if dict(_wanted_ports(present)) != dict(_wanted_ports(wanted)):
        raise PortsError("ports change, which needs a restart")


def _wanted_ports(configuration: Configuration) -> list[tuple[int, PortRoutes]]:
    agents = configuration.deployment.agents
    if configuration.only_agent is not None:
        return [(agents[configuration.only_agent].port or 0, PortRoutes(agent=configuration.only_agent))]
    if not configuration.per_port:
        return [(configuration.gateway_port, PortRoutes(agents_by_path=True, registry=True))]
    registry = (configuration.gateway_port, PortRoutes(registry=True))
    return [registry, *((agent.port or 0, PortRoutes(agent=name)) for name, agent in agents.items())]


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol number: asyncio disables Nagle's delay only for sockets that name TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(
            BACKLOG
        )  # now, not when serving begins: two that only bind the port would not notice each other
    except OSError as error:
        listener.close()
        hint = "; choose another with --port or gateway.port" if error.errno == errno.EADDRINUSE else ""
        raise BindError(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}") from error
    listener.setblocking(False)
    return listener


def close_listener(listener: socket.socket, tasks: TaskOwner, *, encrypted: bool) -> None:
    """Close a listening socket; answer connections that wait to be accepted with 503.

    A proxy may send a refused call to another replica, but not one whose connection was dropped. There is no `await`,
    so that few connections arrive between the last accepted and the first refused one.
    """
    late = _queued(listener)
    with suppress(OSError):  # not listening any more
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in late:
        if encrypted:
            connection.close()
        else:
            tasks.spawn(_turn_away(connection), name="late connection", report=True)


def _queued(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait."""
    found = []
    while True:
        try:
            found.append(listener.accept()[0])
        except OSError:
            return found


async def _turn_away(connection: socket.socket) -> None:
    """Answer 503, then let the client close: closing with unread data would reset the connection."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(_STOPPING)
            writer.write_eof()
            async with asyncio.timeout(CLOSE_SECONDS / 2):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.close()
