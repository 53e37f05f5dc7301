"""Hooks of fast-agent's loop, added to those that an agent already has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fast_agent.agents.tool_runner import ToolRunnerHooks

if TYPE_CHECKING:
    from fast_agent.agents.tool_runner import ToolRunner


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

    return ToolRunnerHooks(
        before_llm_call=both(existing.before_llm_call, ours.before_llm_call),
        after_llm_call=both(existing.after_llm_call, ours.after_llm_call),
        before_tool_call=both(existing.before_tool_call, ours.before_tool_call),
        after_tool_call=both(existing.after_tool_call, ours.after_tool_call),
        after_turn_complete=both(existing.after_turn_complete, ours.after_turn_complete),
    )


def answer_in_last_turn(runner: ToolRunner) -> None:
    """Make the last turn answer in the required JSON, without tools; otherwise it would take one more turn."""
    llm, params = getattr(runner.agent, "llm", None), runner.request_params
    if llm is None or params is None or runner.iteration < params.max_iterations:
        return
    if llm.resolve_structured_tool_policy(llm.get_request_params(params)) == "defer":
        params.structured_tool_policy = "no_tools"
        if params.metadata:  # a request without tools has no choice of tools
            params.metadata = {name: value for name, value in params.metadata.items() if name != "tool_choice"} or None
