"""From the configuration to what a runtime is told about one agent. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.runtime.ports import AgentPlan

if TYPE_CHECKING:
    from pallas_gateway.addresses import Addresses
    from pallas_gateway.config.configuration import Configuration


def agent_plan(configuration: Configuration, addresses: Addresses, name: str) -> AgentPlan:
    """What a runtime is told about one agent."""
    agent = configuration.deployment.agents[name]
    return AgentPlan(
        name=name,
        module=agent.module,
        max_iterations=agent.max_iterations,
        loop_repeat_threshold=agent.loop_repeat_threshold,
        max_relay_depth=configuration.deployment.gateway.max_relay_depth,
        model_capabilities=configuration.capabilities_of(name),
        models=agent.models,
        peers=addresses.peers(configuration.hosted_agents),
    )


def same(one: AgentPlan, other: AgentPlan) -> bool:
    """Whether two plans say the same, whoever is told of operations."""
    return replace(one, on_operation=other.on_operation) == other
