"""`pallas-gateway check`: load everything `serve` would load, bind nothing, report every problem at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING

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
    return [*_unset_variables(configuration.fastagent.unset), *agents]


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
