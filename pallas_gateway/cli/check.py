"""`pallas-gateway check`: load everything `serve` would load, bind nothing, report every problem at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from pallas_gateway.addresses import Addresses
from pallas_gateway.cli.output import problem, result
from pallas_gateway.cli.project import ConfigOption, load_project, named_config_file
from pallas_gateway.config.loader import Overrides
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.errors import AgentStartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.config.configuration import Configuration
    from pallas_gateway.config.fastagent_file import FastAgentFile
    from pallas_gateway.config.yaml_source import UnsetVariable
    from pallas_gateway.runtime.fast_agent_runtime import FastAgentRuntime

_MAY_BE_UNSET = ("api_key", "base_url")
"""Keys of a provider: without a value it is not used, or at its own address."""


def check(config: ConfigOption = None) -> None:
    """Load everything serve would load, and print every problem at once: exit 0 or 2."""
    try:
        configuration = load_project(config, Overrides())
    except ConfigurationError as error:
        problems = list(error.problems)
        if error.readable is not None:
            problems += _further_problems(error.readable, problems)
    else:
        problems = _further_problems(configuration, [])
    for one in sorted(problems, key=lambda one: (one.file, one.line or 0)):
        problem(str(one))
    if problems:
        raise typer.Exit(2)
    names = list(configuration.deployment.agents)
    result(f"{configuration.path} is fine: {len(names)} agent{'s'[: len(names) > 1]} ({', '.join(names)})")


def _further_problems(configuration: Configuration, known: Sequence[Problem]) -> list[Problem]:
    """Problems beyond those of `agents.yaml` itself: unset variables, and agents that would not start."""
    bad = {one.path for one in known}
    names = [name for name in configuration.deployment.agents if not bad & {f"agents.{name}", f"agents.{name}.module"}]
    logging.disable(logging.CRITICAL)  # what goes wrong is reported with file and line
    try:
        with contextlib.redirect_stdout(sys.stderr):  # agent modules may print
            agents = asyncio.run(_agent_problems(configuration, names))
    finally:
        logging.disable(logging.NOTSET)
    fastagent = configuration.fastagent
    return [*_unset_variables(fastagent.unset), *_url_problems(fastagent), *_tls_problems(configuration), *agents]


def _url_problems(fastagent: FastAgentFile) -> list[Problem]:
    """Addresses in fast-agent's file that nothing could be reached at; those with unset variables are told already."""
    servers = [
        (f"mcp.servers.{server.name}.url", server.url, server.line)
        for server in fastagent.servers.values()
        if server.transport != "stdio"
    ]
    providers = [(f"{name}.base_url", url, None) for name, url in fastagent.base_urls.items() if url is not None]
    unset = {one.path for one in fastagent.unset}
    return [
        Problem(str(fastagent.path), line, path, "must be an http:// or https:// URL with a host")
        for path, url, line in [*servers, *providers]
        if path not in unset and not _is_web_url(url or "")
    ]


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _tls_problems(configuration: Configuration) -> list[Problem]:
    from pallas_gateway.http_server import TlsError, check_tls  # noqa: PLC0415  as in `serve`

    path = "gateway.tls.certfile"
    try:
        check_tls(configuration)
    except TlsError as error:
        return [Problem(str(configuration.path), configuration.lines.get(path), path, str(error))]
    return []


def _unset_variables(unset: Sequence[UnsetVariable]) -> list[Problem]:
    return [
        Problem(
            str(one.file),
            one.line,
            one.path,
            f"environment variable {one.variable} is not set; set it, or write ${{{one.variable}:-default}}",
        )
        for one in unset
        if one.path.partition(".")[2] not in _MAY_BE_UNSET
    ]


async def _agent_problems(configuration: Configuration, names: Sequence[str]) -> list[Problem]:
    """Start agents as `serve` would, each for a moment."""
    from pallas_gateway.runtime.fast_agent_runtime import FastAgentRuntime  # noqa: PLC0415  as in `serve`

    async with FastAgentRuntime(config_file=named_config_file(configuration)) as runtime:
        found = [await _start_problem(configuration, runtime, name) for name in names]
    return [one for one in found if one is not None]


async def _start_problem(configuration: Configuration, runtime: FastAgentRuntime, name: str) -> Problem | None:
    from pallas_gateway.gateway import agent_plan  # noqa: PLC0415  as in `serve`

    try:
        async with runtime.start(agent_plan(configuration, Addresses(configuration), name)):
            return None
    except AgentStartError as error:
        path = f"agents.{name}.module"
        return Problem(str(configuration.path), configuration.lines.get(path), path, str(error))
