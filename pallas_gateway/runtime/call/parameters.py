"""Applies a call's parameters to the agents of its instance, in the form of each provider.

They apply to the served agent. A workflow (chain, parallel, router, …) has no loop of its own and applies them to each
of its agents; agents that are used as tools keep their configuration, like a peer. Only the call's own instance and the
request parameters of its loops are changed, so other calls are not affected.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from fast_agent.agents.agent_types import AgentType
from fast_agent.agents.tool_runner import ToolRunnerHooks
from mcp_types import CallToolResult, ListToolsResult, TextContent

from pallas_gateway.calls.current import current_turn
from pallas_gateway.runtime import fast_agent_api
from pallas_gateway.runtime.call.provider_parameters import (
    ParameterMapping,
    parameter_mapping_of,
    seen_in,
    sent_max_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
        """The parameters for a `Reply` that no request has sent to its provider, and the values sent instead."""
        ignored = tuple(name for name in self._asked if name not in self._honoured)
        return {"ignored": ignored, "changed": self._changed}

    async def choose_model(self, agents: Mapping[str, Any], served: str) -> None:
        """Set the call's model; before the agents are connected, because that builds instructions again."""
        if self._parameters.model is not None:
            for agent in _concerned(agents, served):
                await fast_agent_api.use_model(agent, self._parameters.model)

    def apply(self, agents: Mapping[str, Any], served: str) -> None:
        """Apply the parameters to the agents, which are connected."""
        if not self._asked and not self._parameters.cleared and not self._parameters.tool_lists:
            return
        hooks = ToolRunnerHooks(before_llm_call=self._before_llm_call)
        for agent in _concerned(agents, served):
            if self._parameters.tool_lists:
                narrow_tools(agent, self._parameters.tool_lists)
            # After the observer's hooks, which give each loop its own request parameters.
            agent.tool_runner_hooks = composed(agent.tool_runner_hooks, hooks)

    async def _before_llm_call(self, runner: ToolRunner, messages: list[PromptMessageExtended]) -> None:
        del messages
        agent: Any = runner.agent
        if runner.request_params is None or "[" in agent.name:  # a clone, which works as another agent's tool
            return
        mapping = parameter_mapping_of(agent.llm)
        if id(agent.llm) not in self._watched:
            self._watched.add(id(agent.llm))
            mapping.watch(agent.llm, partial(self._saw, mapping))
        self._instruct(agent, runner.request_params)
        is_first = runner.iteration == 0 and runner.last_message is None
        fields = mapping.request_params(self._parameters, runner.request_params, is_first_turn=is_first)
        for name, value in fields.items():
            setattr(runner.request_params, name, value)
        answer_in_last_turn(runner)

    def _saw(self, mapping: ParameterMapping, request: Mapping[str, Any]) -> None:
        self._changed |= current_turn().changed
        self._honoured |= seen_in(request, self._parameters) | mapping.said_in_prompt(self._parameters)
        sent = sent_max_tokens(request)
        if sent != self._parameters.max_tokens and sent is not None and self._parameters.max_tokens is not None:
            self._changed["max_tokens"] = sent

    def _instruct(self, agent: Any, params: RequestParams) -> None:
        """Add the call's instruction as plain text; a template could read files."""
        whole = self._parameters.system_override or agent.instruction
        if self._parameters.system_append:
            whole = f"{whole}\n\n{self._parameters.system_append}"
        if whole != agent.instruction:
            agent.llm.instruction = whole
            params.system_prompt = whole  # some providers read this instead


def _concerned(agents: Mapping[str, Any], served: str) -> list[Any]:
    """The served agent, or for a workflow its agents."""
    whole = agents[served]
    found = [whole] if whole.agent_type not in _WORKFLOWS else [one for one in agents.values() if one is not whole]
    return [one for one in found if hasattr(one, "tool_runner_hooks") and getattr(one, "llm", None) is not None]


def narrow_tools(agent: Any, lists: Sequence[Collection[str]]) -> None:
    """Make the agent list and run only tools that are in all `lists`.

    A list has tools as `{server}/{tool}` or by the name that the model sees, and `{server}/*` for all of a server.
    """
    # On the instance: fast-agent's own filter is part of the configuration, which all calls share. Both methods are
    # replaced, because fast-agent runs tools that it does not list if a model guesses their names.
    list_tools, call_tool = agent.list_tools, agent.call_tool

    async def narrowed() -> ListToolsResult:
        tools = (await list_tools()).tools
        return ListToolsResult(tools=[one for one in tools if all(_is_on(agent, one.name, each) for each in lists)])

    async def call_if_listed(name: str, *arguments: Any, **options: Any) -> CallToolResult:
        listed = {_identity(agent, one.name): one.name for one in (await narrowed()).tools}
        if _identity(agent, name) not in listed:
            text = f"Tool '{name}' is not allowed in this call. Allowed are: {', '.join(listed.values()) or 'none'}."
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        result: CallToolResult = await call_tool(name, *arguments, **options)
        return result

    agent.list_tools, agent.call_tool = narrowed, call_if_listed


def _is_on(agent: Any, name: str, names: Collection[str]) -> bool:
    server, tool = _identity(agent, name)
    return name in names or (server is not None and (f"{server}/{tool}" in names or f"{server}/*" in names))


def _identity(agent: Any, name: str) -> tuple[str | None, str]:
    """The server of a tool, None if it has none, and the tool's name at the server."""
    aggregator = getattr(agent, "aggregator", None)
    if aggregator is None or name not in aggregator.tool_catalog().routable_tool_names():
        return None, name
    resolved = aggregator.resolve_tool_name(name)
    return resolved.server_name, resolved.local_name


def composed(existing: ToolRunnerHooks | None, ours: ToolRunnerHooks) -> ToolRunnerHooks:
    """Combine hooks; those that the agent already has run first."""
    if existing is None:
        return ours

    def both(one: Any, two: Any) -> Any:
        if one is None or two is None:
            return one or two

        async def run(runner: ToolRunner, payload: Any) -> None:
            await one(runner, payload)
            await two(runner, payload)

        return run

    names = [one.name for one in fields(ToolRunnerHooks)]
    return ToolRunnerHooks(**{name: both(getattr(existing, name), getattr(ours, name)) for name in names})


def answer_in_last_turn(runner: ToolRunner) -> None:
    """Make the last turn answer in the required JSON, without tools; otherwise it would take one more turn."""
    llm, params = getattr(runner.agent, "llm", None), runner.request_params
    if llm is None or params is None or runner.iteration < params.max_iterations:
        return
    if llm.resolve_structured_tool_policy(llm.get_request_params(params)) == "defer":
        params.structured_tool_policy = "no_tools"
        if params.metadata:  # a request without tools has no choice of tools
            params.metadata = {name: value for name, value in params.metadata.items() if name != "tool_choice"} or None
