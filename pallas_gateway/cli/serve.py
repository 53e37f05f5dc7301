"""`pallas-gateway serve`: run the gateway; once every agent was tried, say which are up and where."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pallas_gateway.cli.address import DEFAULT_URL
from pallas_gateway.cli.exposure import warn_of_exposure
from pallas_gateway.cli.output import print_stop_hint, result, stdout_for_results_only, table
from pallas_gateway.cli.project import ConfigOption, load_project
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.serving import process
from pallas_gateway.telemetry import logs
from pallas_gateway.urls import WELL_KNOWN, for_this_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.hosting.gateway import Gateway

_log = logging.getLogger("pallas.cli")


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to bind, instead of gateway.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind, instead of gateway.port; 0 takes any.")] = None,
    public_url: Annotated[str | None, typer.Option(help="Base of every URL that clients see.")] = None,
    *,
    per_port: Annotated[bool, typer.Option("--per-port", help="Each agent at /mcp on its own port.")] = False,
    agent: Annotated[str | None, typer.Option(help="Serve this agent alone, at /mcp on its own port.")] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Reload when a file of the project changes.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that serve the same ports, each all agents.")] = 1,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; a second one does not wait for running calls. SIGHUP reloads."""
    asked_to_reload = asyncio.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked_to_reload.set())  # before anything is read; it would end the process
    overrides = Overrides(host=host, port=port, public_url=public_url, per_port=per_port or None, agent=agent)
    configuration = load_project(config, overrides)
    logs.set_up(os.environ, configured_level=configuration.fastagent.logger_level)
    logs.report_crashes()
    _warn(configuration)
    if workers > 1:
        from pallas_gateway.cli.workers import serve_with_workers  # noqa: PLC0415  `--help` should not cost that
        from pallas_gateway.workers.start import Rereading  # noqa: PLC0415

        serve_with_workers(configuration, workers, Rereading(config, overrides, watch=reload))
        return
    from pallas_gateway.telemetry import traces  # noqa: PLC0415  for the reason in `_serve`

    with stdout_for_results_only() as stdout, traces.exporting(os.environ):

        def announce(gateway: Gateway) -> None:
            process.set_aside_what_stays()
            with contextlib.redirect_stdout(stdout):
                _announce(gateway)
                stdout.flush()

        reread = Reread(partial(read_again, config, overrides), asked_to_reload, watch=reload)
        process.expect_calls()
        process.run(_serve(configuration, announce, reread))


@dataclass(frozen=True, slots=True)
class Reread:
    """What `Reloads` is made of, which is imported later: it brings fast-agent along."""

    read: Callable[[], Configuration]
    asked: asyncio.Event
    watch: bool


async def _serve(configuration: Configuration, on_ready: Callable[[Gateway], None], reread: Reread) -> None:
    # Imported here: fast-agent takes seconds, which `--help` and a bad file should not cost.
    from pallas_gateway.runtime.runtime import FastAgentRuntime  # noqa: PLC0415
    from pallas_gateway.serving import server  # noqa: PLC0415
    from pallas_gateway.serving.reload import Reloads  # noqa: PLC0415

    after = process.set_aside_what_stays
    stop, reloads = asyncio.Event(), Reloads(reread.read, reread.asked, watch=reread.watch, after=after)
    server.listen_to_signals(stop, reloads.asked, print_stop_hint)
    async with FastAgentRuntime(config_file=configuration.named_fastagent_file, folder=configuration.folder) as runtime:
        await server.serve(configuration, runtime, stop=stop, on_ready=on_ready, reloads=reloads)


def read_again(config: Path | None, overrides: Overrides, *, warn: bool = True) -> Configuration:
    """The project for a reload; its log level counts from here on, its variables are those of the start."""
    configuration = load_project(config, overrides)
    logs.set_levels(os.environ, configured_level=configuration.fastagent.logger_level)
    if warn:
        _warn(configuration)
    return configuration


def _warn(configuration: Configuration) -> None:
    for unset in configuration.fastagent.unset:
        if ".headers." in f".{unset.path}.":
            extra = {"variable": unset.variable, "key": unset.path, "file": unset.file, "line": unset.line}
            _log.warning("a downstream header names a variable that is not set", extra=extra)
    warn_of_exposure(configuration)


def announcement(gateway: Gateway) -> str:
    """What `serve` prints."""
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        _announce(gateway)
        return text.getvalue()


def _announce(gateway: Gateway) -> None:
    """The short table: agent, state, URL; why those are not up that are not; the registry and commands to try."""
    rows = [(agent.name, agent.status.state.value, gateway.addresses.public(agent.name)) for agent in _agents(gateway)]
    table("AGENT", "STATE", "URL", rows=rows)
    reasons = [f"{agent.name}: {agent.status.reason}" for agent in _agents(gateway) if agent.status.reason]
    if reasons:
        result("\n".join(["", *reasons]))
    is_whole = gateway.configuration.only_agent is None
    if is_whole:
        result(f"\nRegistry: {gateway.configuration.public_base_url}{WELL_KNOWN}")
    if gateway.addresses.all_agents is not None:
        result(f"At once:  {gateway.addresses.all_agents}")
    if gateway.configuration.deployment.gateway.openai_api:
        result(f"OpenAI:   {gateway.addresses.shared_base}/v1")
    if is_whole:
        _announce_command(gateway)


def _announce_command(gateway: Gateway) -> None:
    from pallas_gateway.agents.agent_state import State  # noqa: PLC0415  `--help` does not load it

    if (ready := next((a for a in _agents(gateway) if a.status.state is State.READY), None)) is not None:
        token = " --bearer TOKEN" if gateway.authenticator is not None else ""
        options = f"{_url_option(gateway)}{token}"
        result(f"Talk:     pallas-gateway chat {ready.name}{options}")
        result(f"Try:      pallas-gateway call {ready.name} 'Hello'{options}")


def _agents(gateway: Gateway) -> list[HostedAgent]:
    return list(gateway.agents.values())


def _url_option(gateway: Gateway) -> str:
    url = for_this_machine(gateway.configuration)
    return "" if url == DEFAULT_URL else f" --url {url}"
