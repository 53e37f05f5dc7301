"""The configuration of the file with the agents of the database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pallas_gateway.config.loading.configuration import StoredIdentity
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.features.definitions import rules
from pallas_gateway.features.definitions.definition import parsed, settings_of
from pallas_gateway.features.definitions.rules import taker_of, why_no_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.features.definitions.definition import Parsed
    from pallas_gateway.features.definitions.records import Snapshot, StoredAgent


@dataclass(slots=True)
class Known:
    """Agents that were checked before, by id: with a hundred, a change checks one, and makes the settings of one."""

    _parsed: dict[str, tuple[int, Parsed]] = field(default_factory=dict)
    _settings: dict[str, tuple[Mapping[str, Any], AgentSettings]] = field(default_factory=dict)

    def parsed(self, agent: StoredAgent) -> Parsed:
        known = self._parsed.get(agent.id)
        if known is None or known[0] != agent.version:
            known = self._parsed[agent.id] = (agent.version, parsed(dict(agent.definition)))
        return known[1]

    def settings(self, agent: StoredAgent, effective: Mapping[str, Any]) -> AgentSettings:
        """Return the settings of an agent whose definition, with what the floors add, is `effective`."""
        known = self._settings.get(agent.id)
        if known is None or known[0] != effective:
            known = self._settings[agent.id] = (effective, settings_of(effective))
        return known[1]

    def keep(self, ids: Collection[str]) -> None:
        """Forget all other agents."""
        for known in (self._parsed, self._settings):
            for id_ in known.keys() - ids:
                del known[id_]


def merged(configuration: Configuration, snapshot: Snapshot, known: Known | None = None) -> Configuration:
    """Return the configuration of a file with the agents of the database.

    An agent that may not run is there with the reason. One whose name belongs to an agent of the file is only among
    `claimed`. With agents on ports of their own there are none of the database.
    """
    if configuration.per_port:
        return configuration
    known = known or Known()
    of_file = configuration.deployment.agents
    takers = {one.name: taker_of(one.name, of_file) for one in snapshot.agents}
    stored = {one.name: one for one in snapshot.agents if takers[one.name] is None}
    refused = _refused(configuration, stored, known)
    settings = {name: _settings(configuration, one, refused.get(name), known) for name, one in stored.items()}
    known.keep({one.id for one in snapshot.agents})
    claimed = {
        one.name: _described(one, f"the name belongs to agent '{takers[one.name]}' of agents.yaml")
        for one in snapshot.agents
        if takers[one.name] is not None
    }
    deployment = configuration.deployment.model_copy(update={"agents": {**of_file, **settings}})
    described = {name: _described(one, refused.get(name)) for name, one in stored.items()}
    return replace(
        configuration,
        deployment=deployment,
        stored=MappingProxyType(described),
        claimed=MappingProxyType(claimed),
    )


def with_agent(configuration: Configuration, agent: StoredAgent) -> Configuration:
    """Return a configuration with one agent more, or with another definition of one; it has been checked."""
    settings = settings_of(rules.effective(agent.definition, configuration.deployment.gateway.agents_may_use))
    agents = {**configuration.deployment.agents, agent.name: settings}
    deployment = configuration.deployment.model_copy(update={"agents": agents})
    return replace(
        configuration, deployment=deployment, stored={**configuration.stored, agent.name: _described(agent, None)}
    )


def _refused(configuration: Configuration, stored: Mapping[str, StoredAgent], known: Known) -> dict[str, str]:
    """Return why agents may not run: their own reasons, else a sub-agent that may not run."""
    around = rules.Surroundings.of(configuration, {*configuration.deployment.agents, *stored}, is_stored=True)
    named = {name: tuple(one.definition.get("agents", ())) for name, one in stored.items()}
    reasons = {name: _why_refused(configuration, one, known.parsed(one), around, named) for name, one in stored.items()}
    refused = {name: why for name, why in reasons.items() if why is not None}
    waiting = [*refused]
    while waiting:
        down = waiting.pop()
        for name in (one for one, subs in named.items() if down in subs and one not in refused):
            refused[name] = f"its sub-agent '{down}' may not run"
            waiting.append(name)
    return refused


def _why_refused(
    configuration: Configuration,
    agent: StoredAgent,
    definition: Parsed,
    around: rules.Surroundings,
    named: Mapping[str, tuple[str, ...]],
) -> str | None:
    why = why_no_name(agent.name, configuration.deployment)
    found = [f"name: {why}"] if why is not None else []
    wrong = (
        *definition.problems,
        *rules.problems(agent.name, definition.definition, around),
        *rules.circle(agent.name, definition.definition, named, named[agent.name]),
    )
    return "; ".join([*found, *(f"{one.path}: {one.message}" for one in wrong)]) or None


def _settings(configuration: Configuration, agent: StoredAgent, refused: str | None, known: Known) -> AgentSettings:
    """Return the settings that an agent runs with; of one that may not run those that are shown."""
    if refused is None:
        floors = configuration.deployment.gateway.agents_may_use
        return known.settings(agent, rules.effective(agent.definition, floors))
    definition = known.parsed(agent).definition
    shown = {key: value for key, value in definition.items() if key != "agents"}  # they may be missing, or in a circle
    return known.settings(agent, {"instruction": "-", **shown})


def _described(agent: StoredAgent, refused: str | None) -> StoredIdentity:
    return StoredIdentity(
        agent.id, agent.version, agent.owner, refused, agent.created_at, agent.updated_at, agent.owner_name
    )
