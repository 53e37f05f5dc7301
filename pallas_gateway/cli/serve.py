"""`pallas-gateway serve`: run the gateway, and print the agents once each was tried."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pallas_gateway.cli.project import ConfigOption, load_project
from pallas_gateway.client.address import DEFAULT_URL
from pallas_gateway.client.output import print_announcement, print_stop_hint, stdout_for_results_only, table_lines
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.config.loading.unknown_names import unknown_names
from pallas_gateway.config.model.values import is_loopback
from pallas_gateway.process import process
from pallas_gateway.telemetry import logs
from pallas_gateway.urls import CONSOLE, WELL_KNOWN, for_this_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.core.gateway import Gateway

_log = logging.getLogger("pallas.cli")


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind, instead of gateway.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind, instead of gateway.port; 0 takes any.")] = None,
    public_url: Annotated[str | None, typer.Option(help="Base of every URL that clients see.")] = None,
    *,
    per_port: Annotated[bool, typer.Option("--per-port", help="Each agent at /mcp on its own port.")] = False,
    agent: Annotated[
        str | None, typer.Option(help="Serve this agent alone, at /mcp on its own port, on every interface.")
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Reload when a file of the project changes.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that serve the same ports, each all agents.")] = 1,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; a second one does not wait for running calls. SIGHUP reloads."""
    asked_to_reload = asyncio.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked_to_reload.set())  # first, because by default SIGHUP ends the process
    overrides = Overrides(host=host, port=port, public_url=public_url, per_port=per_port or None, agent=agent)
    configuration = load_project(config, overrides)
    logs.set_up(os.environ, configured_level=configuration.fastagent.logger_level)
    logs.report_crashes()
    _warn(configuration)
    if workers > 1:
        from pallas_gateway.cli.workers import serve_with_workers  # noqa: PLC0415  `--help` does not load it
        from pallas_gateway.process.workers.start import Rereading  # noqa: PLC0415

        serve_with_workers(configuration, workers, Rereading(config, overrides, watch=reload))
        return
    from pallas_gateway.telemetry import traces  # noqa: PLC0415  as in `_serve`

    with stdout_for_results_only() as stdout, traces.exporting(os.environ):

        def announce(gateway: Gateway) -> None:
            process.set_aside_what_stays()
            print_announcement(announcement(gateway), stdout)

        process.expect_calls()
        read = partial(read_again, config, overrides)
        try:
            descriptor = stdout.fileno()
        except OSError:  # replaced by an object without a descriptor
            descriptor = 1
        process.run(_serve(configuration, announce, read, asked_to_reload, descriptor, watch=reload))


async def _serve(
    configuration: Configuration,
    on_ready: Callable[[Gateway], None],
    read: Callable[[], Configuration],
    asked: asyncio.Event,
    stdout: int,
    *,
    watch: bool,
) -> None:
    # Imported here: fast-agent takes seconds, which `--help` and a bad configuration should not cost.
    from pallas_gateway.process import server  # noqa: PLC0415
    from pallas_gateway.process.reload import Reloads  # noqa: PLC0415
    from pallas_gateway.runtime.runtime import FastAgentRuntime  # noqa: PLC0415

    stop, reloads = asyncio.Event(), Reloads(read, asked, watch=watch, after=process.set_aside_what_stays)
    server.listen_to_signals(stop, asked, print_stop_hint)
    async with FastAgentRuntime(config_file=configuration.named_fastagent_file, folder=configuration.folder) as runtime:
        await server.serve(configuration, runtime, stop=stop, on_ready=on_ready, reloads=reloads, stdout=stdout)


def read_again(config: Path | None, overrides: Overrides, *, warn: bool = True) -> Configuration:
    """Load the project for a reload and apply its log level; environment variables are those of the start."""
    configuration = load_project(config, overrides)
    logs.set_levels(os.environ, configured_level=configuration.fastagent.logger_level)
    if warn:
        _warn(configuration)
    return configuration


def _warn(configuration: Configuration) -> None:
    for unset in configuration.fastagent.unset:
        if ".headers." in f".{unset.path}.":
            extra = {"variable": unset.variable, "key": unset.path, "file": unset.file, "line": unset.line}
            _log.warning("downstream header variable not set", extra=extra)
    for one in unknown_names(configuration):
        # With the nearest name.
        _log.warning(
            "name in the configuration is not known",
            extra={"setting": one.path, "line": one.line, "problem": one.message},
        )
    from pallas_gateway.cli.check_exposure import warn_of_exposure  # noqa: PLC0415  `--help` does not load it
    from pallas_gateway.process import certificates  # noqa: PLC0415

    warn_of_exposure(configuration)
    certificates.warn_of_end(configuration)


def announcement(gateway: Gateway) -> str:
    """Return what `serve` prints: agents with states and URLs, reasons of failures, the registry, commands to try."""
    from pallas_gateway.core.agent_state import State  # noqa: PLC0415  `--help` does not load it

    agents = list(gateway.agents.values())
    rows = [(one.name, one.status.state.value, gateway.addresses.public(one.name)) for one in agents]
    lines = table_lines("AGENT", "STATE", "URL", rows=rows)
    if reasons := [f"{one.name}: {one.status.reason}" for one in agents if one.status.reason]:
        lines += ["", *reasons]
    configuration = gateway.configuration
    if configuration.only_agent is None:
        lines += ["", f"Registry:   {configuration.public_base_url}{WELL_KNOWN}"]
    if gateway.addresses.all_agents is not None:
        lines.append(f"All agents: {gateway.addresses.all_agents}")
    if configuration.deployment.gateway.openai_api:
        lines.append(f"OpenAI:     {gateway.addresses.shared_base}/v1")
    if configuration.serves_console:
        is_local = is_loopback(configuration.bind_host) and configuration.deployment.gateway.public_url is None
        base = for_this_machine(configuration) if is_local else configuration.public_base_url
        lines.append(f"Console:    {base}{CONSOLE}")
    ready = next((one.name for one in agents if one.status.state is State.READY), None)
    if ready is not None and configuration.only_agent is None:
        lines += _commands(gateway, ready)
    return "".join(f"{line}\n" for line in lines)


def _commands(gateway: Gateway, agent: str) -> list[str]:
    """Return the lines with commands that reach the gateway."""
    configuration, lines = gateway.configuration, []
    # A sign-in requires the URL for which its tokens are issued.
    url = configuration.public_base_url if configuration.signs_in else for_this_machine(configuration)
    options = "" if url == DEFAULT_URL else f" --url {url}"
    if configuration.signs_in:
        lines.append(f"Sign in:    pallas-gateway login --url {url}")
    elif gateway.authenticator is not None:
        options += " --bearer TOKEN"
    return [
        *lines,
        f"Talk:       pallas-gateway chat {agent}{options}",
        f"Try:        pallas-gateway call {agent} 'Hello'{options}",
    ]
