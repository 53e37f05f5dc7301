"""Listeners, TLS, signals and the order of start and stop. Knows nothing about agents.

Start: bind every port → open the gateway → accept connections → start the agents. Stop: refuse new calls, let running
ones end within the drain time, leave the agents, close.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pallas_gateway.addresses import LOOPBACK, Addresses, keep_off_proxies
from pallas_gateway.errors import GatewayError
from pallas_gateway.gateway import Gateway
from pallas_gateway.http_server import BACKLOG, Listeners, check_tls
from pallas_gateway.listening import Entrance, Listening
from pallas_gateway.reloading import Reloader
from pallas_gateway.service_manager import ServiceManager
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.web.app import PortRoutes, create_app

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.config.configuration import Configuration
    from pallas_gateway.reloading import Reloads
    from pallas_gateway.runtime.ports import Runtime

_log = logging.getLogger("pallas.server")


class BindError(GatewayError):
    """A port cannot be had."""

    reason = "bind_failed"


class ServingError(GatewayError):
    """The listeners ended by themselves."""

    reason = "serving_failed"


async def serve(
    configuration: Configuration,
    runtime: Runtime,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[Gateway], None] = lambda _: None,
    reloads: Reloads | None = None,
) -> None:
    """Run the gateway until `stop` is set.

    Args:
        configuration: what to serve, and where.
        runtime: opened; starts the agents.
        stop: set by a signal or a test.
        on_ready: called once, when every agent has been ready or failed once.
        reloads: how it is told to reload; None if it never is.

    Raises:
        BindError: a port is taken or not allowed; names it.
        TlsError: the certificate cannot be used.
        ServingError: the listeners ended by themselves; says why.
    """
    check_tls(configuration)
    with ExitStack() as sockets:
        listeners = bind(configuration, sockets)
        if not configuration.per_port:
            configuration = configuration.with_bound_port(next(iter(listeners.sockets)))
        addresses = Addresses(configuration, listeners.nested, listeners.host)
        keep_off_proxies(addresses.internal_hosts)
        gateway = Gateway(configuration, addresses, runtime)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(gateway)
            service = await stack.enter_async_context(ServiceManager(os.environ, lambda: gateway.summary))
            entrance = Entrance(create_app(gateway, listeners.routes))
            listening = await stack.enter_async_context(Listening(entrance, listeners, configuration, sockets))
            await stack.enter_async_context(gateway.hosting())
            tasks = await stack.enter_async_context(TaskOwner())
            tasks.spawn(_announce(gateway, service, on_ready), name="announce", report=True)
            if reloads is not None:
                bind_more = partial(bind, present=listening.routes)
                reloader = Reloader(gateway, reloads, (entrance, listening), service, bind_more)
                tasks.spawn(reloader.run(), name="reloading", report=True)
                if reloads.watch:
                    tasks.spawn(reloader.ask_after_changes(), name="file watch", report=True)
            await _stopped(stop, listening, tasks)
            await tasks.cancel_all()
            await _drain(gateway, service)


async def _stopped(stop: asyncio.Event, listening: Listening, tasks: TaskOwner) -> None:
    """Until `stop` is set; a gateway that cannot serve any more ends with the reason instead of looking alive."""
    stopping = tasks.spawn(stop.wait(), name="stop")
    awaited: set[asyncio.Future[Any]] = {stopping, listening.failed}
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if listening.failed.done() and not stop.is_set():
        error = listening.failed.result()
        raise ServingError(f"the listeners ended: {error or 'without a reason'}") from error


async def _announce(gateway: Gateway, service: ServiceManager, on_ready: Callable[[Gateway], None]) -> None:
    await gateway.wait_until_tried()
    service.ready()
    on_ready(gateway)


async def _drain(gateway: Gateway, service: ServiceManager) -> None:
    seconds = gateway.configuration.deployment.gateway.drain_seconds
    service.stopping()
    _log.info("stopping", extra={"drain_seconds": seconds, "calls": len(gateway.running)})
    if unfinished := await gateway.drain(seconds):
        _log.warning("calls were still running at the end of the drain", extra={"calls": unfinished})
        await gateway.end_calls()


def bind(
    configuration: Configuration, sockets: ExitStack, *, present: Mapping[int, PortRoutes] = MappingProxyType({})
) -> Listeners:
    """Bind every port the configuration asks for; `sockets` closes them.

    Args:
        configuration: says which.
        sockets: takes those that are bound.
        present: the routes of ports that are bound already, which are kept where they are still wanted.

    Raises:
        BindError: names the address and why.
    """
    host = configuration.bind_host
    bound: dict[int, socket.socket] = {}
    routes: dict[int, PortRoutes] = {}
    for wanted, port_routes in _wanted_ports(configuration):
        port = _kept(wanted, port_routes, present)
        if port is None:
            listener = sockets.enter_context(_bind(host, wanted))
            port = listener.getsockname()[1]
            bound[port] = listener
        routes[port] = port_routes
    nested = next((port for port, port_routes in present.items() if port_routes.nested_only), None)
    if nested is None and configuration.deployment.gateway.tls is not None:
        listener = sockets.enter_context(_bind(LOOPBACK, 0))
        nested = listener.getsockname()[1]
        bound[nested] = listener
    if nested is not None:
        routes[nested] = PortRoutes(nested_only=True)
    return Listeners(bound, routes, nested, next((one.getsockname()[0] for one in bound.values()), host))


def _kept(wanted: int, routes: PortRoutes, present: Mapping[int, PortRoutes]) -> int | None:
    """The port that serves already what is wanted of it, or will; an ephemeral one (0) is known by what it serves."""
    if wanted:
        return wanted if wanted in present else None
    return next((port for port, others in present.items() if others == routes), None)


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
    # With its protocol number: asyncio switches Nagle's delay off only for sockets that say they are TCP.
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


def listen_to_signals(stop: asyncio.Event, reload: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT sets `stop`, the second ends the process at once; SIGHUP sets `reload`."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            _log.warning("stopped at once by a second signal, running calls are cut off")
            os._exit(1)  # without any clean-up: it may be what does not end
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
