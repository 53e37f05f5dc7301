"""The `AgentSpec` of an agent, made of the configuration and the files that its `watch` matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.runtime.protocols import AgentSpec, Declared

if TYPE_CHECKING:
    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.urls import Addresses


def agent_spec(configuration: Configuration, addresses: Addresses, name: str) -> AgentSpec:
    """Return the spec of one agent."""
    agent = configuration.deployment.agents[name]
    return AgentSpec(
        name=name,
        module=agent.module,
        max_iterations=agent.max_iterations,
        loop_repeat_threshold=agent.loop_repeat_threshold,
        max_relay_depth=configuration.deployment.gateway.max_relay_depth,
        model_capabilities=configuration.capabilities_of(name),
        models=agent.models,
        agent=agent.agent,
        watch=configuration.watched_files(agent),
        peers=addresses.peers(configuration.hosted_agents),
        declared=None if agent.module is not None else _declared(configuration, agent),
        peer_servers=addresses.servers(agent.peers),
        approve=agent.approve,
        tool_limits=tuple(agent.tool_limits),
        ask_caller=agent.ask_caller,
        file_agents=tuple(configuration.file_agents),
    )


def _declared(configuration: Configuration, agent: AgentSettings) -> Declared:
    message_tool, *_ = configuration.deployment.gateway.tool_names
    return Declared(
        instruction=agent.instruction,
        instruction_file=configuration.beside(agent.instruction_file) if agent.instruction_file else None,
        card=configuration.beside(agent.card) if agent.card else None,
        model=agent.model,
        servers=agent.servers,
        tools=agent.tools,
        agents={name: message_tool.replace("{agent}", name) for name in agent.agents},
        human_input=agent.human_input,
    )
