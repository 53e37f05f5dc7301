"""The definitions of agents of a running gateway as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.client.output import problem, result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.yaml.editing import rendered

if TYPE_CHECKING:
    from pallas_gateway.client.agents.agents_api import AgentsApi, DefinedAgent


def print_definitions(api: AgentsApi, name: str | None) -> bool:
    """Print one agent, or those of the database; return False if one is missing, because it may not be read."""
    if name is not None:
        result(text_of(api.get(name)).removesuffix("\n"))
        return True
    found = [agent for one in api.stored() if (agent := api.find(one)) is not None]
    whole = {agent.name: dict(agent.definition) for agent in found if agent.is_whole}
    hidden = [agent.name for agent in found if not agent.is_whole]
    if whole:
        result(rendered(whole).removesuffix("\n"))
    elif not hidden:
        problem("The database of this gateway has no agents that you may see.")
    if hidden:
        problem(f"Not exported, because you may not read their instructions: {', '.join(hidden)}.")
    return not hidden


def text_of(agent: DefinedAgent) -> str:
    """Return a definition as YAML.

    Raises:
        UsageError: the agent has none that the caller may read.
    """
    if not agent.is_whole:
        why = "you may not read its instruction" if agent.is_stored else "it is made of files of the gateway"
        raise UsageError(f"Agent '{agent.name}' has no definition to show: {why}.")
    return rendered({agent.name: dict(agent.definition)})
