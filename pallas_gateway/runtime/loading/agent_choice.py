"""Chooses the agent of a `FastAgent` that an entry of `agents.yaml` serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fast_agent.core.validation import get_agent_dependencies

from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.errors import AgentStartError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fast_agent.core.agent_card_types import AgentCardData
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.runtime.protocols import AgentSpec


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
