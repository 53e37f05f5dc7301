"""`pallas-gateway export`: print the agents of `agents.yaml`, or of a gateway's database, for `apply`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pallas_gateway.cli.project import ConfigOption
from pallas_gateway.client.address import gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import problem, result
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
        _print_of_gateway(gateway_url(url), bearer, agent)
        return
    from pallas_gateway.client.agents.definitions import text_of  # noqa: PLC0415  other commands do not need it

    path = config_path(os.environ, config)
    agents = defined_in(text_of(path, MISSING)[1], str(path)).agents
    if agent is not None and agent not in agents:
        raise UsageError(f"{path} has no agent '{agent}'{did_you_mean(agent, agents)}.")
    result(rendered(agents if agent is None else {agent: agents[agent]}).removesuffix("\n"))


def _print_of_gateway(url: str, bearer: str | None, name: str | None) -> None:
    """Print one agent, or those of the database; exits with 1 if one is missing, because it may not be read."""
    from pallas_gateway.client.agents.agents_api import AgentsClient  # noqa: PLC0415  only for a gateway

    api = AgentsClient(url, bearer)
    if name is not None:
        result(api.get(name).text.removesuffix("\n"))
        return
    found = [agent for one in api.stored() if (agent := api.find(one)) is not None]
    whole = {agent.name: dict(agent.definition) for agent in found if agent.is_whole}
    hidden = [agent.name for agent in found if not agent.is_whole]
    if whole:
        result(rendered(whole).removesuffix("\n"))
    elif not hidden:
        problem("The database of this gateway has no agents that you may see.")
    if hidden:
        problem(f"Not exported, because you may not read their instructions: {', '.join(hidden)}.")
        raise typer.Exit(1)
