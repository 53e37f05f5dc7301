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
from pallas_gateway.config.problems import Problem
from pallas_gateway.errors import AgentStartError
from pallas_gateway.gateway import agent_plan

if TYPE_CHECKING:
    from pallas_gateway.config.configuration import Configuration
    from pallas_gateway.runtime.fast_agent_runtime import FastAgentRuntime


def check(config: ConfigOption = None) -> None:
    """Load everything serve would load, and print every problem at once: exit 0 or 2."""
    configuration = load_project(config, Overrides())
    logging.disable(logging.CRITICAL)  # what goes wrong is reported below, with file and line
    with contextlib.redirect_stdout(sys.stderr):
        problems = [*_unset_variables(configuration), *asyncio.run(_agent_problems(configuration))]
    for one in problems:
        problem(str(one))
    if problems:
        raise typer.Exit(2)
    names = ", ".join(configuration.deployment.agents)
    result(f"{configuration.path}: fine ({len(configuration.deployment.agents)} agents: {names})")


def _unset_variables(configuration: Configuration) -> list[Problem]:
    return [
        Problem(str(one.file), one.line, one.path, f"environment variable {one.variable} is not set")
        for one in configuration.fastagent.unset
    ]


async def _agent_problems(configuration: Configuration) -> list[Problem]:
    """Start every agent as `serve` would, each for a moment."""
    from pallas_gateway.runtime.fast_agent_runtime import FastAgentRuntime  # noqa: PLC0415  as in `serve`

    async with FastAgentRuntime(config_file=named_config_file(configuration)) as runtime:
        found = [await _start_problem(configuration, runtime, name) for name in configuration.deployment.agents]
    return [one for one in found if one is not None]


async def _start_problem(configuration: Configuration, runtime: FastAgentRuntime, name: str) -> Problem | None:
    try:
        async with runtime.start(agent_plan(configuration, Addresses(configuration), name)):
            return None
    except AgentStartError as error:
        path = f"agents.{name}.module"
        return Problem(str(configuration.path), configuration.lines.get(path), path, str(error))
