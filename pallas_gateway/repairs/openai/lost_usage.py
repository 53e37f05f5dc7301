"""The tokens of a streamed answer are lost.

Symptom: the tokens of a turn are estimated where a server sends the usage before the last chunk, or without
`total_tokens`. Null for `choices` in the last chunk fails the turn.

Repair: a chunk without usage gets that of the chunks before it; null for `choices` is an empty list.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.repairs.openai._corrected import Corrected

_MODULE = "fast_agent.llm.provider.openai.llm_openai"
CHANGE = Change(
    "lost-usage",
    REPAIR,
    ("fast-agent-mcp", "openai"),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(f"{_MODULE}:OpenAILLM._process_stream", ("self", "stream", "model")),
        Name(f"{_MODULE}:_coerce_openai_usage", ("value",), by="with_total"),
    ),
    needs=("tool-calls",),
    gone_when="fast-agent counts the tokens of such streams",
)


def changed(original: Any, holder: Any) -> Any:
    """Have a stream corrected before it is read."""
    del holder

    @wraps(original)
    async def process_stream(self: Any, stream: Any, *arguments: Any, **options: Any) -> Any:
        return await original(self, Corrected(stream, _Usage().keep), *arguments, **options)

    return process_stream


def with_total(original: Any, holder: Any) -> Any:
    """Add the total to usage that has none."""
    del holder

    @wraps(original)
    def coerced(value: Any) -> Any:
        usage = original(value)
        if usage is not None and usage.total_tokens is None:
            usage.total_tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        return usage

    return coerced


class _Usage:
    """The usage of a streamed chat completion."""

    def __init__(self) -> None:
        self._latest: Any = None

    def keep(self, chunk: Any) -> None:
        """Correct a chunk in place."""
        if getattr(chunk, "choices", ()) is None:
            chunk.choices = []
        if (usage := getattr(chunk, "usage", None)) is not None:
            self._latest = usage
        elif self._latest is not None:
            chunk.usage = self._latest
