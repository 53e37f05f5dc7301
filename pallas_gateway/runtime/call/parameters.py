"""A call's parameters on their way to the model: onto the agents of one instance, in what each provider understands.

They go to the served agent. A workflow (chain, parallel, router, …) has no loop of its own and hands them to each agent
in it; agents that are used as tools work as they are configured, like a peer. Everything here is done to the call's own
instance and to the request parameters of its own loops, so the next call finds nothing of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fast_agent.agents.agent_types import AgentType
from fast_agent.agents.tool_runner import ToolRunnerHooks

from pallas_gateway.runtime.call.hooks import answer_in_last_turn, composed
from pallas_gateway.runtime.call.provider_parameters import ParameterMapping, parameter_mapping_of
from pallas_gateway.runtime.call.tool_narrowing import narrow_tools
from pallas_gateway.runtime.compat import engine
from pallas_gateway.runtime.llm.anthropic import has_stopped_thinking
from pallas_gateway.runtime.llm.requests import seen_in, sent_max_tokens, watch_requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fast_agent.agents.tool_runner import ToolRunner
    from fast_agent.types import PromptMessageExtended, RequestParams

    from pallas_gateway.calls.parameters import Parameters

_WORKFLOWS = frozenset(AgentType) - {AgentType.LLM, AgentType.BASIC, AgentType.CUSTOM, AgentType.A2A}


class AppliedParameters:
    """The parameters of one call, and which of them took effect."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._asked = parameters.given().keys()
        self._honoured = {"model", "tools_allowlist", "system_append", "system_override"} & self._asked
        self._changed: dict[str, Any] = {}
        self._watched: set[int] = set()

    def outcome(self) -> dict[str, Any]:
        """What a `Reply` says of them: those that no request has told its provider, and what was sent instead."""
        ignored = tuple(name for name in self._asked if name not in self._honoured)
        return {"ignored": ignored, "changed": self._changed}

    async def choose_model(self, agents: Mapping[str, Any], served: str) -> None:
        """Have the agents answer by the call's model; before they are connected, because it renews instructions."""
        if self._parameters.model is not None:
            for agent in _concerned(agents, served):
                await engine.use_model(agent, self._parameters.model)

    def apply(self, agents: Mapping[str, Any], served: str) -> None:
        """Have the agents, connected by now, ask their models so."""
        if not self._asked and not self._parameters.cleared and not self._parameters.tool_lists:
            return
        hooks = ToolRunnerHooks(before_llm_call=self._before_llm_call)
        for agent in _concerned(agents, served):
            if self._parameters.tool_lists:
                narrow_tools(agent, self._parameters.tool_lists)
            # After the observer's, which gives each loop request parameters of its own.
            agent.tool_runner_hooks = composed(agent.tool_runner_hooks, hooks)

    async def _before_llm_call(self, runner: ToolRunner, messages: list[PromptMessageExtended]) -> None:
        del messages
        agent: Any = runner.agent
        if runner.request_params is None or "[" in agent.name:  # a clone, at work as somebody's tool
            return
        mapping = parameter_mapping_of(agent.llm)
        self._watch(agent.llm, mapping)
        self._instruct(agent, runner.request_params)
        is_first = runner.iteration == 0 and runner.last_message is None
        fields = mapping.request_params(self._parameters, runner.request_params, is_first_turn=is_first)
        for name, value in fields.items():
            setattr(runner.request_params, name, value)
        answer_in_last_turn(runner)

    def _watch(self, llm: Any, mapping: ParameterMapping) -> None:
        """See what the provider's class makes of it: some drop what their model does not take."""
        if id(llm) in self._watched:
            return
        self._watched.add(id(llm))
        watch_requests(llm, partial(self._saw, llm, mapping))

    def _saw(self, llm: object, mapping: ParameterMapping, request: Mapping[str, Any]) -> None:
        if has_stopped_thinking(llm):
            self._changed["thinking"] = "off"
        self._honoured |= seen_in(request, self._parameters) | mapping.said_in_prompt(self._parameters)
        sent = sent_max_tokens(request)
        if sent != self._parameters.max_tokens and sent is not None and self._parameters.max_tokens is not None:
            self._changed["max_tokens"] = sent

    def _instruct(self, agent: Any, params: RequestParams) -> None:
        """Plain text, never a template: those may read files."""
        whole = self._parameters.system_override or agent.instruction
        if self._parameters.system_append:
            whole = f"{whole}\n\n{self._parameters.system_append}"
        if whole != agent.instruction:
            agent.llm.instruction = whole
            params.system_prompt = whole  # where some providers look instead


def _concerned(agents: Mapping[str, Any], served: str) -> list[Any]:
    """The served agent, for a workflow the agents in it."""
    whole = agents[served]
    found = [whole] if whole.agent_type not in _WORKFLOWS else [one for one in agents.values() if one is not whole]
    return [one for one in found if hasattr(one, "tool_runner_hooks") and getattr(one, "llm", None) is not None]
