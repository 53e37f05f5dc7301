"""Corrects the tool calls of streamed chat completions to OpenAI's form.

In that form, each call has an index, which its pieces repeat, and the finish reason is `tool_calls`. Some compatible
servers send no index or 0 for every call, no ids, a new id with each piece, or the finish reason `stop`. fast-agent
then drops calls or merges them, without an error.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4


class ToolCalls:
    """The tool calls of one streamed answer."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._numbers: dict[int | None, int] = {}  # by the server's index, None for the latest call

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
