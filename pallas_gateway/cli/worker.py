"""One worker of `serve --workers N`: the program that the parent starts, not a command."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_gateway import composition
from pallas_gateway.cli.project import make_ready
from pallas_gateway.client.output import stdout_for_results_only
from pallas_gateway.errors import GatewayError
from pallas_gateway.process import process
from pallas_gateway.process.workers.channel import frame_of_call
from pallas_gateway.process.workers.start import read
from pallas_gateway.telemetry import logs, workers_metrics
from pallas_gateway.telemetry.log_relay import LogPipe

if TYPE_CHECKING:
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.process.workers.start import Start


def main() -> None:
    """Serve as the `Start` on stdin says; exits with the code of the error if that is not possible."""
    composition.use_changes()
    start = read(sys.stdin.buffer)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    with socket.socket(fileno=os.dup(start.channel)) as to_parent:
        try:
            _run(start)
        except GatewayError as error:  # also from an import, before the channel is open
            to_parent.setblocking(True)
            to_parent.sendall(frame_of_call("parent", "failed", str(error)))
            sys.exit(error.exit_code)


def _run(start: Start) -> None:
    workers_metrics.join(start.folder, start.worker)
    make_ready(start.configuration)
    configured_level = start.configuration.fastagent.logger_level
    logs.set_up(os.environ, configured_level=configured_level, parent=LogPipe(start.log, start.worker))
    logs.report_crashes()
    from pallas_gateway.telemetry import traces  # noqa: PLC0415  as in `_serve`

    with stdout_for_results_only(), traces.exporting(os.environ):
        process.expect_calls()
        process.run(_serve(start))


async def _serve(start: Start) -> None:
    # Imported here, so that an error of the installation is reported to the parent.
    from pallas_gateway.cli.serve import announcement, read_again  # noqa: PLC0415
    from pallas_gateway.process import server  # noqa: PLC0415
    from pallas_gateway.process.reload import Reloads  # noqa: PLC0415
    from pallas_gateway.process.workers.worker_side import ORPHAN_SECONDS, WorkerSide, end_after_parent  # noqa: PLC0415
    from pallas_gateway.runtime.runtime import FastAgentRuntime  # noqa: PLC0415

    stop, again, configuration = asyncio.Event(), start.rereading, start.configuration
    reread = partial(read_again, again.config, again.overrides, warn=False)
    reloads = Reloads(reread, watch=again.watch, after=process.set_aside_what_stays)

    def on_ready(gateway: Gateway) -> None:
        process.set_aside_what_stays()
        gateway.metrics.worker_restarts.inc(start.restarts)
        member.ready(gateway, announcement(gateway))

    async with (
        WorkerSide(start, stop, reloads.asked) as member,
        FastAgentRuntime(config_file=configuration.named_fastagent_file, folder=configuration.folder) as runtime,
    ):
        end_after_parent(start.log, lambda: member.drain_seconds + ORPHAN_SECONDS)
        await server.serve(configuration, runtime, stop=stop, on_ready=on_ready, reloads=reloads, shared=member.shared)
    if member.is_orphan:  # the parent is gone
        shutil.rmtree(start.folder, ignore_errors=True)
