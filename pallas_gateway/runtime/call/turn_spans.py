"""LLM turns as spans, with the attributes of the trace conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.call.messages import failure_reason, turn_of
from pallas_gateway.telemetry.traces import token_attributes

if TYPE_CHECKING:
    from fast_agent.agents.tool_runner import ToolRunner
    from fast_agent.types import PromptMessageExtended

    from pallas_gateway.calls.call import TurnUsage
    from pallas_gateway.telemetry.traces import CallSpans


class TurnSpans:
    """The spans of one call's LLM turns; a loop has at most one open span."""

    def __init__(self, spans: CallSpans) -> None:
        self._spans = spans
        self._turns_before: dict[ToolRunner, int] = {}

    def begin(self, runner: ToolRunner, *, agent: str) -> None:
        """Begin the span of a turn; `agent` is the name of the loop's agent in events."""
        llm = getattr(runner.agent, "llm", None)
        self._spans.begin_turn(runner, agent=agent, model=getattr(llm, "model_name", None) or "unknown")
        if self._spans.is_recorded(runner):
            self._turns_before[runner] = len(_turns(runner))

    def end(self, runner: ToolRunner, answer: PromptMessageExtended) -> None:
        """End the span with the model's answer, or with fast-agent's message of a failure."""
        attributes: dict[str, Any] = {}
        if self._spans.is_recorded(runner):
            if answer.stop_reason is not None:
                attributes["gen_ai.response.finish_reasons"] = [answer.stop_reason.value]
            for turn in _turns(runner)[self._turns_before.pop(runner, 0) :]:
                attributes.update(token_attributes(turn.usage.as_dict()))
        self._spans.end_turn(runner, attributes, error=failure_reason(answer))


def _turns(runner: ToolRunner) -> tuple[TurnUsage, ...]:
    accumulator = getattr(runner.agent, "usage_accumulator", None)
    return tuple(map(turn_of, accumulator.turns)) if accumulator else ()
