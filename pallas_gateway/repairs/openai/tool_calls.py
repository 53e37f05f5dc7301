"""Tool calls of servers that are nearly OpenAI's are merged or lost.

Symptom: Gemini's address for OpenAI clients and other servers stream tool calls without an index or id, or with equal
or changing ones. fast-agent then runs one of several calls, or none.

Repair: the calls are numbered by their names and ids.
"""

from __future__ import annotations

from functools import wraps
from typing import Any
from uuid import uuid4

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.repairs.openai._corrected import Corrected

_MODULE = "fast_agent.llm.provider.openai.llm_openai"
CHANGE = Change(
    "tool-calls",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:OpenAILLM._process_stream", ("self", "stream", "model")),),
    needs=("half-answers",),
    gone_when="`_handle_tool_delta` and `_record_manual_tool_call_delta` tell such calls apart",
)


def changed(original: Any, holder: Any) -> Any:
    """Have a stream corrected before it is read."""
    del holder

    @wraps(original)
    async def process_stream(self: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
        return await original(self, Corrected(stream, ToolCalls().settle_chunk), *arguments, **options)

    return process_stream


class ToolCalls:
    """Corrects the tool calls of a streamed chat completion to OpenAI's form.

    In that form, each call has an index, which its pieces repeat, and the finish reason is `tool_calls`.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._numbers: dict[int | None, int] = {}  # by the server's index, None for the latest call

    def settle_chunk(self, chunk: Any) -> None:
        """Correct a chunk in place."""
        if choices := getattr(chunk, "choices", None):
            self.settle(choices[0])

    def settle(self, choice: Any) -> None:
        """Correct a chunk's first choice in place."""
        for piece in choice.delta.tool_calls or ():
            self._settle(piece)
        if choice.finish_reason == "stop" and self._ids:
            choice.finish_reason = "tool_calls"

    def _settle(self, piece: Any) -> None:
        index = piece.index
        if self._begins(index, piece.id, getattr(piece.function, "name", None)):
            self._numbers[index] = self._numbers[None] = len(self._ids)
            piece.id = piece.id or f"call_{uuid4().hex}"
            self._ids.append(piece.id)
        else:
            piece.id = None
        piece.index = self._numbers[index]

    def _begins(self, index: int | None, call_id: str | None, name: str | None) -> bool:
        number = self._numbers.get(index)
        if number is None:
            return True
        if not name:
            return False  # a new call has a name; a new id alone is no new call
        return call_id != self._ids[number] if call_id else index is None
