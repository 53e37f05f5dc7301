"""Counts what each LLM turn of a call uses, and runs none after a budget has ended the call.

It stands where fast-agent runs a turn of any model: of a loop, a router, a plan, a clone. After the end of the call, a
turn is not sent to the model: its answer is a sentence, so that every kind of workflow comes to its own end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.helpers.content_helpers import get_text
from fast_agent.types import PromptMessageExtended
from fast_agent.types.llm_stop_reason import LlmStopReason
from mcp_types import TextContent

from pallas_gateway.calls.call import TurnUsage, Usage
from pallas_gateway.runtime.call.messages import failure_reason, model_shown, turn_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fast_agent.llm.usage_tracking import TurnUsage as FastAgentTurn

    from pallas_gateway.calls.call import Spent
    from pallas_gateway.calls.spending import Spending
    from pallas_gateway.runtime.call.journal import CallJournal

CHARACTERS_OF_A_TOKEN = 4
_NOT_ASKED = "pallas-not-asked"
"""The channel that marks the answer of a turn that was not sent to its model."""


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn that runs; `heard` is the number of characters that its model has streamed."""

    llm: Any
    arguments: Sequence[Any]
    first: int  # of its records in the accumulator of the model
    heard: int = 0

    def hear(self, chunk: Any) -> None:
        self.heard += len(chunk.text)


class TurnMeter:
    """The turns of one call: those that have ended are in `spent`; `journal` records them, if there is one."""

    def __init__(self, spending: Spending, spent: Spent) -> None:
        self.spending = spending
        self.journal: CallJournal | None = None
        self.tool_failures: dict[str, str] = {}  # kinds of the errors of tool calls, by their ids
        self.spent = spent
        self._running: list[_Turn] = []
        self._counted: list[FastAgentTurn] = []

    async def run(self, llm: Any, arguments: Sequence[Any], run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a turn and count it; `arguments` are those of its request. Without a budget left, return a sentence."""
        if (ended := await self.spending.why_ended()) is not None:
            text = TextContent(type="text", text=f"[Stopped: {ended.sentence}.]")
            return PromptMessageExtended(
                role="assistant", content=[text], channels={_NOT_ASKED: []}, stop_reason=LlmStopReason.END_TURN
            )
        turn = _Turn(llm, arguments, len(llm.usage_accumulator.turns))
        stop_listening = llm.add_stream_listener(turn.hear)
        self._running.append(turn)
        try:
            answer = await run()
        except BaseException:
            self._cut_off(turn)
            raise
        else:
            self._count(turn, answer)
            return answer
        finally:
            stop_listening()

    def cut_off(self) -> None:
        """Count the turns that run, because the call ends now: before the account of the call is made."""
        for turn in [*self._running]:
            self._cut_off(turn)

    def _cut_off(self, turn: _Turn) -> None:
        """Count a turn without an answer. Its provider bills what it has begun to send."""
        if turn not in self._running:
            return
        self._running.remove(turn)
        if not self._add_records(turn) and turn.heard:
            self._add_estimate(turn, turn.heard)

    def _count(self, turn: _Turn, answer: Any) -> None:
        if turn not in self._running:
            return
        self._running.remove(turn)
        message = answer[1] if isinstance(answer, tuple) else answer
        has_failed = not isinstance(message, PromptMessageExtended) or failure_reason(message) is not None
        heard = turn.heard if has_failed else _characters([message])
        if not self._add_records(turn, heard) and (heard or not has_failed):
            self._add_estimate(turn, heard)

    def _add_records(self, turn: _Turn, heard: int = 0) -> bool:
        """Add what the provider has reported of a turn; return False if it was nothing."""
        has_usage = False
        for record in turn.llm.usage_accumulator.turns[turn.first :]:
            if record in self._counted:  # copied from another agent meanwhile
                continue
            self._counted.append(record)
            if record.prompt.total is None and record.prompt.uncached is None and record.completion.total is None:
                continue
            has_usage = True
            self.spending.add(turn_of(record, _tokens(heard) if record.completion.total is None else None), self.spent)
        return has_usage

    def _add_estimate(self, turn: _Turn, heard: int) -> None:
        messages, tools = turn.arguments[0], next((one for one in turn.arguments[2:] if isinstance(one, list)), ())
        sent = _characters(messages) + len(turn.llm.instruction or "")
        sent += sum(len(tool.model_dump_json(include={"name", "description", "input_schema"})) for tool in tools)
        usage = Usage(_tokens(sent), _tokens(heard), estimated=True)
        provider = getattr(turn.llm.provider, "config_name", None)
        used = TurnUsage(model_shown(turn.llm.model_name or "unknown"), usage, provider=provider)
        self.spending.add(used, self.spent)


def was_asked(answer: PromptMessageExtended) -> bool:
    """Return False for the answer of a turn that was not sent to its model."""
    return _NOT_ASKED not in (answer.channels or {})


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_OF_A_TOKEN)


def _characters(messages: Sequence[PromptMessageExtended]) -> int:
    """Count the characters of texts, tool calls and tool results."""
    count = 0
    for message in messages:
        results = (message.tool_results or {}).values()
        blocks = [*message.content, *(block for result in results for block in result.content)]
        count += sum(len(get_text(block) or "") for block in blocks)
        for call in (message.tool_calls or {}).values():
            count += len(call.params.name) + len(json.dumps(call.params.arguments or {}))
    return count
