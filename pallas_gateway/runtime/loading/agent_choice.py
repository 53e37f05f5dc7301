"""Chooses the agent of a `FastAgent` that an entry of `agents.yaml` serves, and shares a module between entries."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fast_agent.core.core_app import Core
from fast_agent.core.validation import get_agent_dependencies

from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.daemon_threads import begin
from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.failures import start_reason

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping

    from fast_agent.core.agent_card_types import AgentCardData
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.runtime.protocols import AgentSpec


class SharedModules:
    """Gives each start of a module's `FastAgent` its own settings and context; the agents are those of the module.

    The first start uses the module's own object, so that the module's code has the started object.
    """

    def __init__(self) -> None:
        self._arguments: WeakKeyDictionary[FastAgent, Namespace] = WeakKeyDictionary()  # before their first start

    async def for_start(self, fast: FastAgent, spec: AgentSpec) -> FastAgent:
        """The object to start: `fast` itself, or a copy for which fast-agent's settings are read again.

        An entry that chooses an agent gets that agent and those that it uses, without the servers of the others.

        Raises:
            AgentStartError: `no_agent`, or `start_failed` for settings that cannot be read.
        """
        served = served_agent(fast, spec)
        is_started = fast in self._arguments
        arguments = self._arguments.setdefault(fast, copy(fast.args))
        if not is_started and spec.agent is None:
            return fast
        try:
            another = await begin(partial(_copy, fast, arguments), name="agent-copy")
        except (Exception, SystemExit) as error:  # fast-agent exits if the file is not YAML
            raise AgentStartError(f"agent '{spec.name}' failed to start: {start_reason(error)}") from error
        if spec.agent is not None:
            parts = parts_of(fast.agents, served)
            another.agents = {name: data for name, data in fast.agents.items() if name in parts}
        return another


def _copy(fast: FastAgent, arguments: Namespace) -> FastAgent:
    another = copy(fast)
    another.args = copy(arguments)
    another.agents = dict(fast.agents)
    another._settings = another._load_instance_settings()
    another.app = Core(name=fast.name, settings=another._settings)
    return another


def served_agent(fast: FastAgent, spec: AgentSpec) -> str:
    """The agent that `spec` names, else the default one, the only one, or the only one that no other agent uses.

    Raises:
        AgentStartError: `no_agent`; names the candidates and the key that chooses.
    """
    candidates = [name for name, data in fast.agents.items() if not data.get("tool_only", False)]
    if not candidates:
        raise _none_served(spec, f"{_source(spec)} defines no agent to serve")
    if spec.agent is not None:
        return _named(spec, spec.agent, candidates)
    defaults = [name for name in candidates if fast.agents[name]["config"].default]
    if len(defaults) > 1:
        raise _none_served(spec, f"{_source(spec)} marks several agents as the default ({_listed(defaults)})", defaults)
    roots = defaults or [name for name in candidates if name not in _used(fast.agents)]
    if len(roots) == 1:
        return roots[0]
    why = f"{_source(spec)} defines several agents ({_listed(candidates)}) and marks none as the default"
    raise _none_served(spec, why, roots or candidates)


def parts_of(agents: Mapping[str, AgentCardData], served: str) -> set[str]:
    """The served agent and all agents that it uses directly or through others."""
    found: set[str] = set()
    pending = [served]
    while pending:
        name = pending.pop()
        if name in agents and name not in found:
            found.add(name)
            pending += get_agent_dependencies(agents[name])
    return found


def _used(agents: Mapping[str, AgentCardData]) -> set[str]:
    """Agents that another agent uses; an agent that only uses itself remains a root."""
    return {used for name, data in agents.items() for used in get_agent_dependencies(data) if used != name}


def _named(spec: AgentSpec, name: str, candidates: Collection[str]) -> str:
    if name in candidates:
        return name
    message = f"{_source(spec)} defines no agent '{name}'{did_you_mean(name, candidates)}; it has {_listed(candidates)}"
    raise AgentStartError(message, reason="no_agent", places=[("agent", message)])


def _none_served(spec: AgentSpec, why: str, candidates: Collection[str] = ()) -> AgentStartError:
    message = why
    if candidates:
        names = _listed(candidates, "or")
        message = f"{why}; choose one with `agents.{spec.name}.agent` in agents.yaml ({names})"
    key = "card" if spec.declared is not None else "module"
    return AgentStartError(message, reason="no_agent", places=[(key, message)])


def _source(spec: AgentSpec) -> str:
    if spec.declared is not None and spec.declared.card is not None:
        return f"card '{spec.declared.card}'"
    return f"module '{spec.module}'"


def _listed(names: Collection[str], last: str = "and") -> str:
    *others, final = sorted(names)
    return f"{', '.join(others)} {last} {final}" if others else final
