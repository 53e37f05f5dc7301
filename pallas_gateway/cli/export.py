"""`pallas-gateway export`: print the agents of `agents.yaml`, or of a gateway's database, for `apply`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pallas_gateway.cli.project import ConfigOption
from pallas_gateway.client.address import gateway_url
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.loading.environment import config_path
from pallas_gateway.config.loading.loader import MISSING
from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.config.yaml.definitions import defined_in
from pallas_gateway.config.yaml.editing import rendered

ExportUrlOption = Annotated[
    str | None, typer.Option("--url", help="Base URL of a gateway: the agents of its database instead of agents.yaml.")
]


def export(
    agent: Annotated[str | None, typer.Argument(help="One agent; without it, all.")] = None,
    config: ConfigOption = None,
    url: ExportUrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Print the definition of one or all agents as YAML for `apply`; placeholders are kept."""
    if url is not None:
        if config is not None:
            raise UsageError("--url and --config both say where the agents are; give one of them.")
        from pallas_gateway.client.agents.agents_api import AgentsApi  # noqa: PLC0415  as the next line
        from pallas_gateway.client.agents.exporting import print_definitions  # noqa: PLC0415  only for a gateway

        if not print_definitions(AgentsApi(gateway_url(url), bearer), agent):
            raise typer.Exit(1)
        return
    from pallas_gateway.client.definition_files import text_of  # noqa: PLC0415  other commands do not need it

    path = config_path(os.environ, config)
    agents = defined_in(text_of(path, MISSING)[1], str(path)).agents
    if agent is not None and agent not in agents:
        raise UsageError(f"{path} has no agent '{agent}'{did_you_mean(agent, agents)}.")
    result(rendered(agents if agent is None else {agent: agents[agent]}).removesuffix("\n"))
