"""`serve --workers N`, the parent: binds the ports, starts the workers, prints for them, passes signals on."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

from pallas_gateway.cli.project import load_project
from pallas_gateway.client.output import print_announcement, print_stop_hint
from pallas_gateway.composition.in_parent import IN_PARENT
from pallas_gateway.config.loading.configuration import Configuration, applicable
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.errors import GatewayError
from pallas_gateway.process import certificates, process
from pallas_gateway.process.service_manager import ServiceManager
from pallas_gateway.process.sockets import bind_public, check_ports
from pallas_gateway.process.workers.manager import WorkerManager
from pallas_gateway.process.workers.start import Plan, Rereading, Start, shared_folder

SHORTEST_HANG_SECONDS = 20.0
"""Workers report every 5 s, and less often on a busy machine."""
LONGEST_PLACE = 60
"""Bytes of the path of the temporary folder, in which the paths of sockets are 39 longer: systems allow 103."""
_NOT_FOR_WORKERS = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("start_worker.py")))
_log = logging.getLogger("pallas.workers")


def serve_with_workers(configuration: Configuration, count: int, rereading: Rereading) -> None:
    """Run the gateway in `count` worker processes until a signal.

    Raises:
        BindError: a port is taken or not allowed; names it.
        WorkersError: workers cannot start; says why.
    """
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > LONGEST_PLACE:
        place = "/tmp"  # noqa: S108  the folder itself is made for this process alone
    with shared_folder(place) as (folder, lock), ExitStack() as stack:
        sockets = bind_public(configuration, stack)
        if not configuration.per_port:
            configuration = configuration.with_bound_port(sockets[0].getsockname()[1])
        start = Start(
            configuration=configuration,
            rereading=rereading,
            worker=0,
            listeners=tuple(listener.fileno() for listener in sockets),
            channel=-1,
            log=-1,
            folder=folder,
            restarts=0,
            state_key=secrets.token_bytes(32),
            workers=count,
            lock=lock,
        )
        process.run(_run(Plan(count, COMMAND, _environ, start, sockets)))


def _environ() -> dict[str, str]:
    """Return the environment of a worker that starts now, with the variables that `.env` has by then."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_WORKERS}


async def _run(plan: Plan) -> None:
    stop = asyncio.Event()
    async with ServiceManager(os.environ, lambda: fleet.summary) as service, AsyncExitStack() as stack:
        in_parent = [stack.enter_context(opened(plan.start.configuration)) for opened in IN_PARENT]

        def on_ready(announcement: str) -> None:
            service.ready()
            print_announcement(announcement, sys.stdout)

        watchdog = service.watchdog_seconds
        hang_seconds = max(watchdog, SHORTEST_HANG_SECONDS) if watchdog is not None else None
        fleet = WorkerManager(plan, in_parent, on_ready=on_ready, on_stop=service.stopping, hang_seconds=hang_seconds)
        fleet.reread = partial(_reread, fleet, plan.start.rereading)
        _handle_signals(fleet, stop, service, plan.start)
        await fleet.run(stop)


def _handle_signals(fleet: WorkerManager, stop: asyncio.Event, service: ServiceManager, start: Start) -> None:
    """Stop all workers on SIGTERM and SIGINT, at once on the second; reload on SIGHUP."""
    loop, folder, rereading = asyncio.get_running_loop(), start.folder, start.rereading

    def on_stop(number: signal.Signals) -> None:
        if stop.is_set():
            _log.warning("workers killed by a second signal")
            fleet.kill()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)  # as a single process does
        stop.set()
        if number == signal.SIGINT:
            print_stop_hint()

    def on_hangup() -> None:
        service.reloading()
        _reread(fleet, rereading)
        if fleet.problems:
            fleet.note_not_reloaded()
        else:
            fleet.reload()
        if fleet.was_complete:  # else `on_ready` reports it
            service.ready()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop, number)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)


def _reread(fleet: WorkerManager, rereading: Rereading) -> None:
    """Use the present files for the limits and for workers that start from now on, or note why they cannot be used."""
    fleet.problems = ()
    try:
        fleet.use(_usable(fleet.configuration, load_project(rereading.config, rereading.overrides)))
    except ConfigurationError as error:
        fleet.problems = [str(problem) for problem in error.problems]
    except GatewayError as error:
        fleet.problems = [str(error)]
    if fleet.problems:
        _log.error("configuration rejected", extra={"problems": fleet.problems, "serves": "the configuration before"})


def _usable(present: Configuration, wanted: Configuration) -> Configuration:
    from pallas_gateway.process.hypercorn_server import check_tls  # noqa: PLC0415  takes half a second

    configuration, _ = applicable(present, wanted)
    check_ports(present, configuration)
    check_tls(configuration)
    certificates.warn_of_end(configuration)
    return configuration
