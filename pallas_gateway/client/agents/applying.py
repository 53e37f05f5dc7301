"""Definitions of a file, applied to the database of a running gateway.

Every definition is checked by the gateway before anything is shown or changed. Each agent is one change; the first that
fails ends the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pallas_gateway.client.agents.agents_api import CONFLICT, AgentsClient, DefinedAgent, NotRunningError, outcome
from pallas_gateway.client.agents.definitions import definition_in, is_wanted, malformed, placed, show_difference
from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.gateway_api import ApiRefusedError
from pallas_gateway.client.output import problem, result
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import AGENTS, DeclaredDefinitions, left_out_lines, same
from pallas_gateway.config.yaml.editing import rendered
from pallas_gateway.errors import GatewayError

NOTHING = "nothing was changed"


@dataclass(frozen=True, slots=True)
class AgentChange:
    """A wanted agent, and the one that is there."""

    name: str
    definition: Mapping[str, Any]
    present: DefinedAgent | None

    def show(self) -> None:
        """Print the difference."""
        before = rendered({self.name: dict(self.present.definition)}) if self.present is not None else ""
        show_difference(before, rendered({self.name: dict(self.definition)}), self.name)

    def make(self, api: AgentsClient) -> str:
        """Make the change; return what was done."""
        if self.present is None:
            return outcome(f"added {self.name}", api.create(self.name, self.definition))
        return outcome(f"changed {self.name}", api.replace(self.present, self.definition))


def apply_to(api: AgentsClient, wanted: DeclaredDefinitions, *, can_ask: bool, yes: bool, dry_run: bool) -> bool:
    """Apply definitions; return False if nothing was changed although something would change.

    Raises:
        ConfigurationError: the gateway refuses definitions; has all problems, at their places in the file.
        GatewayError: it refuses a change, or does not answer.
    """
    changes = ordered(planned(api, wanted))
    for line in left_out_lines(wanted):
        problem(line)
    if not changes:
        result(f"{api.url}: nothing changes")
        return True
    for one in changes:
        one.show()
    if dry_run:
        problem(f"{NOTHING}: --dry-run")
        return True
    question = f"Change {', '.join(one.name for one in changes)} at {api.url}?"
    if not yes and not is_wanted(question, can_ask=can_ask, nothing=NOTHING, yes_does="makes the changes"):
        return False
    make(api, wanted, changes)
    return True


def planned(api: AgentsClient, wanted: DeclaredDefinitions, *, new_only: bool = False) -> list[AgentChange]:
    """Return what has to change, as the gateway would store it, after it has checked everything.

    Raises:
        ConfigurationError: definitions are malformed, or the gateway refuses them.
        UsageError: with `new_only`, one of the agents is there already.
    """
    if problems := list(malformed(wanted, wanted.agents)):
        raise ConfigurationError(problems)
    present = {name: api.find(name) for name in wanted.agents}
    if new_only and (known := [name for name, agent in present.items() if agent is not None]):
        raise UsageError(f"{api.url} has {', '.join(known)} already; `apply --url` and `agents edit` change agents.")
    complete = wanted.completed({name: agent.definition for name, agent in present.items() if agent is not None})
    added = {name for name, agent in present.items() if agent is None}
    changes: list[AgentChange] = []
    for name, definition in complete.items():
        agent = present[name]
        if agent is not None and same(agent.definition, definition):
            continue
        checked, found = _checked(api, wanted, AgentChange(name, definition, agent), added)
        problems += found
        if agent is None or not same(agent.definition, checked.definition):
            changes.append(checked)
    if problems:
        problem(f"{NOTHING}; this would be wrong:")
        raise ConfigurationError(sorted(problems, key=lambda one: one.line or 0))
    return changes


def ordered(changes: Sequence[AgentChange]) -> list[AgentChange]:
    """Return the changes so that sub-agents come before the agents that name them."""
    by_name = {one.name: one for one in changes}
    uses = {one.name: [sub for sub in _sub_agents(one.definition) if sub in by_name] for one in changes}
    try:
        return [by_name[name] for name in TopologicalSorter(uses).static_order()]
    except CycleError:  # the gateway refuses the last of them
        return list(changes)


def make(api: AgentsClient, wanted: DeclaredDefinitions, changes: Sequence[AgentChange]) -> None:
    """Make the changes, and print each that was made, also if a later one fails.

    Raises:
        NotRunningError: all are stored, and some do not run.
    """
    done: list[str] = []
    failed: list[NotRunningError] = []
    try:
        for one in changes:
            try:
                done.append(one.make(api))
            except NotRunningError as error:
                failed.append(error)
            except ApiRefusedError as error:
                raise refusal(error, wanted, one.name) from error
    finally:
        if done:
            result(f"{api.url}: {'; '.join(done)}")
    if failed:
        raise NotRunningError("\n".join(map(str, failed)))


def refusal(error: ApiRefusedError, wanted: DeclaredDefinitions, name: str) -> GatewayError:
    """Return the error of a refused change for people: problems with their places, or who changed it meanwhile."""
    if error.problems:
        return ConfigurationError(placed(wanted, name, error.problems))
    if error.error == CONFLICT:
        return CommandError(f"Agent '{name}' was changed meanwhile; it stays as it is now. Apply again.")
    return error


def _checked(
    api: AgentsClient, wanted: DeclaredDefinitions, change: AgentChange, added: Iterable[str]
) -> tuple[AgentChange, list[Problem]]:
    """Return a change as it would be stored, and the problems that the gateway finds.

    What it says about sub-agents that the same file adds is not known before they are there.
    """
    try:
        if change.present is None:
            document = api.create(change.name, change.definition, dry_run=True)
        else:
            document = api.replace(change.present, change.definition, dry_run=True)
    except ApiRefusedError as error:
        if not error.problems:
            raise refusal(error, wanted, change.name) from error
        of_added = {f"{AGENTS}.{index}" for index, one in enumerate(_sub_agents(change.definition)) if one in added}
        problems = [one for one in error.problems if one[0] not in of_added]
        return change, placed(wanted, change.name, problems)
    return AgentChange(change.name, _as_stored(change.definition, document), change.present), []


def _as_stored(definition: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition with the values that the gateway would store for its keys."""
    stored = definition_in(document)
    names = {"params": "default_params"}
    return {names.get(key, key): stored.get(names.get(key, key), value) for key, value in definition.items()}


def _sub_agents(definition: Mapping[str, Any]) -> Sequence[str]:
    named = definition.get(AGENTS)
    return [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
