"""Observes one call inside fast-agent: sends events, counts turns and tools, and halts loops.

Its hooks are added to every agent of the instance (clones for agents-as-tools copy them), its tool handler and
notification callback to every aggregator that connects. So single agents, chains and agents-as-tools are observed by
the same code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fast_agent.agents.tool_runner import ToolRunnerHooks
from fast_agent.constants import HUMAN_INPUT_TOOL_NAME
from fast_agent.mcp.helpers.content_helpers import get_text
from fast_agent.types import RequestParams
from fast_agent.types.llm_stop_reason import LlmStopReason
from mcp_types import LoggingMessageNotification, TextContent

from pallas_gateway.calls.assistant_stream import LOGGER, LONGEST_RESULT, relayed
from pallas_gateway.calls.call import CALL_META_KEY, ToolUse
from pallas_gateway.calls.events.events import (
    Emitter,
    FromPeer,
    StepBegan,
    TextDelta,
    ToolCall,
    ToolReported,
    ToolResult,
    ToolsEnded,
    TurnEnded,
)
from pallas_gateway.calls.loop_guard import LoopGuard, Reason, ToolOutcome, explanation
from pallas_gateway.calls.tool_results import make_legible
from pallas_gateway.runtime.call.journal import journal_of
from pallas_gateway.runtime.call.messages import STOPPED, STOPPED_AT_LIMIT, failure_reason, turn_of
from pallas_gateway.runtime.call.parameters import answer_in_last_turn, composed
from pallas_gateway.runtime.call.steps import StepRecorder
from pallas_gateway.runtime.call.tool_events import ToolEvents, explain_result, kind_of_failure
from pallas_gateway.runtime.call.turn_meter import was_asked
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.telemetry import traces
from pallas_gateway.telemetry.traces import token_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fast_agent.agents.tool_runner import ToolRunner
    from fast_agent.interfaces import AgentProtocol
    from fast_agent.llm.stream_types import StreamChunk
    from fast_agent.mcp.mcp_aggregator import MCPAggregator
    from fast_agent.types import PromptMessageExtended
    from mcp_types import CallToolRequest, CallToolResult

    from pallas_gateway.calls.call import Call, TurnUsage
    from pallas_gateway.calls.events.events import EventSink
    from pallas_gateway.calls.events.queue import StreamOptions
    from pallas_gateway.runtime.protocols import AgentSpec
    from pallas_gateway.telemetry.traces import CallSpans

_log = logging.getLogger("pallas.runtime")
_guard_log = logging.getLogger("pallas.loop_guard")
_LOGGED_RESULT = 500


@dataclass(slots=True, eq=False)
class _Loop:
    """One run of one agent's loop."""

    agent: Any
    emitter: Emitter
    guard: LoopGuard
    steps: int = 0
    iteration: int = 0
    spoken_in: int = 0  # the latest iteration with live text
    round_began: float = 0.0
    requests: Mapping[str, CallToolRequest] = field(default_factory=dict)
    uses: Mapping[str, ToolUse] = field(default_factory=dict)
    halted: tuple[Reason, ToolOutcome] | None = None


class Observer:
    """Observes one call; see the module."""

    def __init__(self, call: Call, sink: EventSink, options: StreamOptions, spec: AgentSpec, served: str) -> None:
        self._call = call
        self._sink = sink
        self._options = options
        self._spec = spec
        self._served = served
        self._loops: WeakKeyDictionary[ToolRunner, _Loop] = WeakKeyDictionary()
        self._speaking: dict[Any, _Loop] = {}  # the current loop of each LLM
        self._times_of: dict[str, tuple[float, float]] = {}
        self._tool_events: list[ToolEvents] = []
        self._spans = traces.CallSpans() if traces.are_on() else None
        self._turns = TurnSpans(self._spans) if self._spans is not None else None
        self.iterations = 0
        self.halted: list[str] = []
        self.stopped: Reason | None = None
        self.tool_uses: list[ToolUse] = []
        self._latest_text = ""
        self._latest_answers: list[str] = []  # of agents that were called after it
        self._failed_turns: dict[str, PromptMessageExtended] = {}
        self._steps = StepRecorder(call.step_log) if call.step_log is not None else None

    @property
    def latest_texts(self) -> list[str]:
        """The latest text of the agent, and what the agents that it has called since have answered."""
        return [*([self._latest_text] if self._latest_text else []), *self._latest_answers]

    @property
    def failed_turn(self) -> PromptMessageExtended | None:
        """The failed turn of an agent that has had no successful turn since."""
        return next(iter(self._failed_turns.values()), None)

    def watch_agents(self, agents: Iterable[AgentProtocol]) -> None:
        """Add the hooks to those of the agents."""
        hooks = ToolRunnerHooks(
            before_llm_call=self._before_llm_call,
            after_llm_call=self._after_llm_call,
            before_tool_call=self._before_tool_call,
            after_tool_call=self._after_tool_call,
            after_turn_complete=_say_if_partial,
        )
        for agent in agents:
            if hasattr(agent, "tool_runner_hooks"):
                agent.tool_runner_hooks = composed(agent.tool_runner_hooks, hooks)

    def watch_connections(self, aggregator: MCPAggregator) -> None:
        """Observe the tool calls of one aggregator and the notifications of its servers."""
        events = ToolEvents(self._sink, self._times_of, self._spans)
        self._tool_events.append(events)
        aggregator.set_tool_execution_handler(events)
        aggregator.server_notification_callback = self._on_notification  # type: ignore[assignment]  # declared as None

    def note_repeat(self, llm: object) -> None:
        """Report a step again, because the request of its model is repeated."""
        for loop in self._loops.values():
            if getattr(loop.agent, "llm", None) is llm:
                self._sink.put(StepBegan(loop.emitter.agent, loop.steps, "llm"))

    def reading_pause(self, llm: object) -> float | None:
        """Return the seconds between two reads of a streamed answer: 0 before its first live text, None without any."""
        if not self._options.deltas:
            return None
        loop = self._speaking.get(llm)
        has_text = loop is not None and loop.spoken_in == loop.iteration
        return self._options.text_seconds if has_text else 0.0

    @contextmanager
    def tool_used(self, call: ToolCall) -> Iterator[ToolUse]:
        """Note a tool that is run outside of a loop; the block sets whether it has succeeded."""
        use = ToolUse(call.shown, monotonic())
        self.tool_uses.append(use)
        yield use
        use.began, use.seconds = self._times_of.pop(call.id, (use.began, monotonic() - use.began))

    def abandon_tools(self) -> None:
        """Report the tool calls that the end of the call has cancelled; fast-agent does not."""
        for events in self._tool_events:
            events.abandon()

    def report(self, message: str) -> None:
        """Send a message of progress."""
        self._sink.put(ToolReported(message))

    def close_steps(self) -> None:
        """Store the tool calls that the end of the call has left without results."""
        if self._steps is not None:
            self._steps.close()

    def end_spans(self, reason: str = "cancelled") -> None:
        """End the spans that are still open, with this reason."""
        if self._spans is not None:
            self._spans.end_all(reason)

    async def _before_llm_call(self, runner: ToolRunner, messages: list[PromptMessageExtended]) -> None:
        del messages
        loop = self._loop_of(runner)
        journal = journal_of(runner.agent)
        if not (journal is not None and journal.plays) and await self._call.spending.why_ended() is not None:
            return  # the model is not asked
        loop.iteration += 1
        self.iterations += 1
        answer_in_last_turn(runner)
        if self._turns is not None and loop.halted is None:  # otherwise the model is not asked
            self._turns.begin(runner, agent=loop.emitter.agent)
        self._step(loop, "llm")
        if self._options.deltas:
            self._listen_live(loop)

    async def _after_llm_call(self, runner: ToolRunner, message: PromptMessageExtended) -> None:
        loop = self._loop_of(runner)
        if self._turns is not None:
            self._turns.end(runner, message)
        if loop.halted is not None:
            # fast-agent made this message from the last tool results instead of asking the model again.
            reason, outcome = loop.halted
            threshold = self._spec.loop_repeat_threshold
            text = explanation(reason, outcome, threshold if reason == "repeat" else 2 * threshold)
            message.content = [TextContent(type="text", text=text)]
            message.stop_reason = LlmStopReason.END_TURN
            return
        if not was_asked(message):
            return
        text = message.all_text()
        if not _is_tool(loop.agent):  # else a failure is a tool error
            self._note_turn(loop, message, text)
        calls = [_tool_call(loop.agent, id_, request) for id_, request in (message.tool_calls or {}).items()]
        if self._steps is not None and calls and not _is_tool(loop.agent):
            names = {one.id: one.shown for one in calls}
            self._steps.begin(loop, getattr(loop.agent, "llm", None), message, names)
        stop_reason = message.stop_reason.value if message.stop_reason else None
        self._sink.put(TurnEnded(loop.emitter, loop.iteration, text, calls, stop_reason))

    def _note_turn(self, loop: _Loop, message: PromptMessageExtended, text: str) -> None:
        """Record what a workflow would hide: the latest text, and a failed turn until the agent succeeds."""
        if failure_reason(message) is not None:
            self._failed_turns[loop.agent.name] = message
            return
        self._failed_turns.pop(loop.agent.name, None)
        if text:
            self._latest_text, self._latest_answers = text, []

    async def _before_tool_call(self, runner: ToolRunner, message: PromptMessageExtended) -> None:
        loop = self._loop_of(runner)
        loop.requests = dict(message.tool_calls or {})
        called = [_tool_call(loop.agent, id_, request) for id_, request in loop.requests.items()]
        loop.round_began = monotonic()
        loop.uses = {one.id: ToolUse(one.shown, loop.round_began) for one in called}
        self.tool_uses += loop.uses.values()
        self._step(loop, "tool")

    async def _after_tool_call(self, runner: ToolRunner, message: PromptMessageExtended) -> None:
        loop = self._loop_of(runner)
        whole_round = monotonic() - loop.round_began
        results: list[ToolResult] = []
        outcomes: list[ToolOutcome] = []
        answers: list[str] = []
        for id_, result in (message.tool_results or {}).items():
            request = loop.requests.get(id_)
            if request is None:
                continue
            call = _tool_call(loop.agent, id_, request)
            logged = _text(result)  # without the questions that `explain_result` adds for the model
            answers += _answer_of_agent(call, result)
            explain_result(call, result)
            make_legible(result)
            text = _text(result)
            use = loop.uses[id_]
            use.began, seconds = self._times_of.pop(id_, (loop.round_began, whole_round))
            use.seconds, use.ok, use.failure = seconds, not result.is_error, kind_of_failure(call, result)
            # Clients see no more of it, and an event may wait for a reader after the call has forgotten the result.
            results.append(ToolResult(call, bool(result.is_error), text[: LONGEST_RESULT + 1], seconds))
            everything = result.model_dump_json(exclude={"meta"})  # an image may change while the text does not
            outcomes.append(ToolOutcome(request.params.name, request.params.arguments or {}, everything, logged))
        if not _is_tool(loop.agent):
            self._latest_answers = answers or self._latest_answers
        if self._steps is not None:
            self._steps.end(loop, message.tool_results or {})
        self._sink.put(ToolsEnded(loop.emitter, loop.iteration, results))
        if outcomes and (reason := loop.guard.after(outcomes)) is not None:
            self._halt(runner, loop, reason, outcomes[-1])

    def _halt(self, runner: ToolRunner, loop: _Loop, reason: Reason, outcome: ToolOutcome) -> None:
        """End the loop with the results of the tools: fast-agent does not ask the model again."""
        loop.halted = (reason, outcome)
        self.halted.append(reason)
        if not _is_tool(loop.agent):  # else its caller may answer all the same
            self.stopped = reason
        if runner.request_params is not None:
            runner.request_params.tool_result_mode = "passthrough"
            runner.request_params.max_iterations += 1  # otherwise a limit that is reached in this round has precedence
        is_question = outcome.tool == HUMAN_INPUT_TOOL_NAME  # of these no text is logged, nor of the answers
        # The repeated tool rounds; `arguments` and `result` are empty for a question of the agent itself.
        _guard_log.warning(
            "loop halted",
            extra={
                "event": "loop_halt",
                "reason": reason,
                "agent": self._call.agent,
                "call_id": self._call.call_id,
                "conversation_id": self._call.conversation_id,
                "tool": outcome.tool,
                "arguments": {} if is_question else outcome.arguments,
                "result": "" if is_question else outcome.text[:_LOGGED_RESULT],
            },
        )

    def _loop_of(self, runner: ToolRunner) -> _Loop:
        loop = self._loops.get(runner)
        if loop is None:
            emitter = self._emitter(runner.agent)
            loop = _Loop(runner.agent, emitter, LoopGuard(self._spec.loop_repeat_threshold))
            self._loops[runner] = loop
            # A copy: workflows share one object between several loops, and a halt changes it.
            params = runner.request_params or RequestParams()
            follow_ups = self._spec.max_iterations - 1  # fast-agent counts the turns that follow the first
            asked = params.max_iterations if "max_iterations" in params.model_fields_set else follow_ups
            limit = min(asked, follow_ups)
            # Private: the loop's limit and result mode are read from here, and None means fast-agent's 9999 turns.
            runner._request_params = params.model_copy(update={"max_iterations": limit})
        return loop

    def _emitter(self, agent: object) -> Emitter:
        """The name for events: the hosted name for the served agent, else the agent's own without a clone's number."""
        name = str(getattr(agent, "name", ""))
        is_served = name == self._served
        shown = self._call.agent if is_served else name.partition("[")[0]
        return Emitter(shown, self._call.conversation_id, is_served=is_served)

    def _step(self, loop: _Loop, kind: Any) -> None:
        loop.steps += 1
        self._sink.put(StepBegan(loop.emitter.agent, loop.steps, kind))

    def _listen_live(self, loop: _Loop) -> None:
        llm = getattr(loop.agent, "llm", None)
        if llm is None:
            return

        def on_chunk(chunk: StreamChunk) -> None:
            if chunk.text and not chunk.is_reasoning:
                now = self._speaking[llm]
                now.spoken_in = now.iteration
                self._sink.put(TextDelta(now.emitter, now.iteration, chunk.text))

        if llm not in self._speaking:
            llm.add_stream_listener(on_chunk)
        self._speaking[llm] = loop

    async def _on_notification(self, server: str, notification: object) -> None:
        if not isinstance(notification, LoggingMessageNotification):
            return
        params = notification.params
        behind = current_scope.get().peer_call
        payload = relayed(params.logger, params.data, behind, max_depth=self._spec.max_relay_depth)
        if payload is not None:
            self._sink.put(FromPeer(payload))
        elif params.logger == LOGGER:
            _log.debug("peer's chunk not relayed", extra={"server": server})


async def _say_if_partial(_: ToolRunner, message: PromptMessageExtended) -> None:
    """Say in the answer of an agent that reached its limit that it is partial, for the user or the next agent."""
    if message.stop_reason is LlmStopReason.MAX_ITERATIONS:
        message.content = [*message.content, TextContent(type="text", text=STOPPED_AT_LIMIT)]


def _is_tool(agent: object) -> bool:
    """Return whether an agent is a clone, which another agent uses as a tool."""
    return "[" in str(getattr(agent, "name", ""))


def _tool_call(agent: Any, id_: str, request: CallToolRequest) -> ToolCall:
    """A tool call with the name of its downstream; None for tools of the agent itself."""
    name, arguments = request.params.name, dict(request.params.arguments or {})  # a tool may change its arguments
    aggregator: MCPAggregator | None = getattr(agent, "aggregator", None)
    if aggregator is None or name not in aggregator.tool_catalog().routable_tool_names():
        return ToolCall(id_, None, name, arguments)
    resolved = aggregator.resolve_tool_name(name)
    return ToolCall(id_, resolved.server_name, resolved.local_name, arguments)


def _answer_of_agent(call: ToolCall, result: CallToolResult) -> Iterator[str]:
    """Yield what a called agent has said, if it has."""
    if result.is_error or CALL_META_KEY not in (result.meta or {}):
        return
    texts = (text for block in result.content if (text := get_text(block)) and not text.startswith(STOPPED))
    if text := "\n".join(texts):
        yield f"{call.server}: {text[:LONGEST_RESULT]}"


def _text(result: CallToolResult) -> str:
    return "\n".join(text for block in result.content if (text := get_text(block)) is not None)


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
