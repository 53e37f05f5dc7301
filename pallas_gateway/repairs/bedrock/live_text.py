"""Bedrock sends no live text.

Symptom: no `assistant_delta` for Bedrock models.

Repair: text is passed on as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.repairs.bedrock._turns import current_turn

CHANGE = Change(
    "bedrock-live-text",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(
            "fast_agent.llm.provider.bedrock.llm_bedrock:BedrockLLM._handle_stream_text_delta",
            takes=("self", "text", "model", "state"),
        ),
    ),
    gone_when="`_handle_stream_text_delta` notifies the listeners",
)


def changed(original: Callable[..., None], holder: Any) -> Callable[..., None]:
    """Notify the listeners of each text."""
    del holder
    from fast_agent.llm.stream_types import StreamChunk  # noqa: PLC0415  not before it is used

    @wraps(original)
    def handle(self: Any, text: str, *arguments: Any) -> None:
        original(self, text, *arguments)
        if not text:
            return
        chunk = StreamChunk(text=text)
        if (turn := current_turn()) is not None:
            turn.loop.call_soon_threadsafe(self._notify_stream_listeners, chunk)
        else:
            self._notify_stream_listeners(chunk)

    return handle
