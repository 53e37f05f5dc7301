"""Listeners, TLS, signals and the order of start and stop. Knows nothing about agents.

Start: bind every port → open the gateway → accept connections → start the agents. Stop: refuse new calls, let running
ones end within the drain time, leave the agents, close.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.unknown_names import unknown_models
from pallas_gateway.core.feature import check
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.core.parts import ProcessParts
from pallas_gateway.doors.http.app import create_app
from pallas_gateway.doors.mcp.mcp_servers import McpServers
from pallas_gateway.errors import GatewayError
from pallas_gateway.process import certificates
from pallas_gateway.process.hypercorn_server import HypercornServer, check_tls
from pallas_gateway.process.reload import Reloader, Reloads, SwappableApp
from pallas_gateway.process.service_manager import ServiceManager
from pallas_gateway.process.sockets import bind, share
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.urls import Addresses, bypass_proxies

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.feature import Feature
    from pallas_gateway.limits import GatewayLimits
    from pallas_gateway.process.sockets import Listeners, Sharing
    from pallas_gateway.runtime.protocols import Runtime

_log = logging.getLogger("pallas.server")


class ServingError(GatewayError):
    """The listeners ended unexpectedly."""

    reason = "serving_failed"


@dataclass(frozen=True, slots=True)
class SharedListeners:
    """The listeners and calls that one of several processes shares with the others.

    Attributes:
        sockets: as `bind_public` has bound them.
        sharing: when to close them.
        parts: of the gateway, of which the parent has a share.
        is_first: the first of them does what one process does for all.
    """

    sockets: Sequence[socket.socket]
    sharing: Sharing
    parts: ProcessParts
    is_first: bool


async def serve(  # noqa: PLR0913  each is a signal or a callback
    configuration: Configuration,
    runtime: Runtime,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[Gateway], None] = lambda _: None,
    reloads: Reloads | None = None,
    shared: SharedListeners | None = None,
    limits: GatewayLimits | None = None,
    stdout: int = 1,
    features: Sequence[type[Feature]] = FEATURES,
) -> None:
    """Run the gateway until `stop` is set.

    Args:
        configuration: what to serve, and where.
        runtime: opened; starts the agents.
        stop: set by a signal or a test.
        on_ready: called once, when every agent has been ready or failed once.
        reloads: how to reload; None for never.
        shared: set in one of several processes that serve the same ports.
        limits: of the gateway, if not the usual ones.
        stdout: descriptor for an audit log.
        features: of the gateway.

    Raises:
        AuditLogError: another gateway writes the audit log, or the file has other content.
        BindError: a port is taken or not allowed; names it.
        ConfigurationError: a setting belongs to a feature that is not among `features`.
        TlsError: the certificate cannot be used.
        ServingError: the listeners ended unexpectedly; has the reason.
    """
    check(configuration, features)
    check_tls(configuration)
    with ExitStack() as sockets:
        listeners = share(shared.sockets, configuration, shared.sharing) if shared else bind(configuration, sockets)
        if not configuration.per_port:
            configuration = configuration.with_bound_port(next(iter(listeners.sockets)))
        bypass_proxies()
        parts = shared.parts if shared else ProcessParts(stdout=stdout)
        gateway = Gateway(configuration, Addresses(configuration), runtime, parts, limits, features)
        servers = McpServers(gateway)
        gateway.serve_by(servers)
        certificates.measure_end(configuration, gateway.metrics)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(gateway)
            service = await stack.enter_async_context(ServiceManager(os.environ, lambda: gateway.summary))
            entrance = SwappableApp(create_app(gateway, servers, listeners.routes))
            gateway.elsewhere.app = entrance
            listening = await stack.enter_async_context(_listening(entrance, listeners, gateway))
            await stack.enter_async_context(gateway.hosting(with_rounds=shared is None or shared.is_first))
            tasks = TaskOwner()
            stack.push_async_callback(tasks.cancel_all)  # also where Ctrl-C ends the start
            tasks.spawn(_announce(gateway, service, on_ready), name="announce", report=True)
            if shared is None or shared.is_first:
                tasks.spawn(_warn_of_prices(gateway), name="prices", report=True)
            reloads = reloads or Reloads(lambda: configuration)
            reloader = Reloader(gateway, servers, reloads, entrance, listening, service, configuration)
            tasks.spawn(reloader.run(), name="reloading", report=True)
            if reloads.watch:
                tasks.spawn(reloader.watch_files(), name="file watch", report=True)
            await _stopped(stop, listening.serving, tasks)
            await tasks.cancel_all()
            listening.hurry()
            await _drain(gateway, service)


@asynccontextmanager
async def _listening(entrance: SwappableApp, listeners: Listeners, gateway: Gateway) -> AsyncIterator[HypercornServer]:
    """Accept connections in the block, and after it until the last requests are answered."""
    limits, sharing = gateway.limits.connections, listeners.sharing
    accepting = HypercornServer(entrance, listeners, gateway.configuration, limits)
    async with accepting:
        try:
            yield accepting
        finally:
            if sharing is not None:
                await sharing.until_all_stopped()
            await entrance.wait_for_silence(limits.last_requests_seconds)
            if sharing is not None:
                accepting.refuse_connections()
                sharing.closed()


async def _stopped(stop: asyncio.Event, serving: asyncio.Task[None], tasks: TaskOwner) -> None:
    """Wait for `stop`; raise an error if the listeners end before."""
    stopping = tasks.spawn(stop.wait(), name="stop")
    awaited: set[asyncio.Future[Any]] = {stopping, serving}
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and not stop.is_set():
        error = None if serving.cancelled() else serving.exception()
        raise ServingError(f"the listeners ended: {error or 'without a reason'}") from error


async def _announce(gateway: Gateway, service: ServiceManager, on_ready: Callable[[Gateway], None]) -> None:
    await gateway.wait_until_tried()
    service.ready()
    on_ready(gateway)


async def _warn_of_prices(gateway: Gateway) -> None:
    """Log prices of models that no agent uses, once all agents have started."""
    await gateway.wait_until_tried()
    runtimes = [agent.runtime for agent in gateway.agents.values()]
    models = [runtime.model_names for runtime in runtimes if runtime is not None]
    if len(models) == len(runtimes):
        for one in unknown_models(gateway.configuration, frozenset[str]().union(*models)):
            # With the nearest name.
            _log.warning(
                "name in the configuration is not known",
                extra={"setting": one.path, "line": one.line, "problem": one.message},
            )


async def _drain(gateway: Gateway, service: ServiceManager) -> None:
    seconds = gateway.configuration.deployment.gateway.drain_seconds
    service.stopping()
    _log.info("stopping", extra={"drain_seconds": seconds, "calls": gateway.calls.started})
    if unfinished := await gateway.drain(seconds):
        _log.warning("drain time exceeded", extra={"calls": unfinished})
        await gateway.end_calls()


def listen_to_signals(stop: asyncio.Event, reload: asyncio.Event, on_interrupt: Callable[[], None]) -> None:
    """Set `stop` on the first SIGTERM or SIGINT, end the process on the second; set `reload` on SIGHUP.

    `on_interrupt` is called if the first one is a SIGINT.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            _log.warning("process ended by a second signal")
            os._exit(1)  # without clean-up, which may be what hangs
        stop.set()
        if number == signal.SIGINT:
            on_interrupt()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
