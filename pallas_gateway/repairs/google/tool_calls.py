"""Gemini's parallel tool calls become one.

Symptom: of `search("one")` and `echo("x")` in one answer, fast-agent runs `search("x")`, without an error.

Repair: the open call is closed before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.google.llm_google_native"
_LLM = f"{_MODULE}:GoogleNativeLLM"
CHANGE = Change(
    "google-tool-calls",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_LLM}._handle_google_function_call_part", takes=("self", "state", "part")),),
    relies_on=(Name(f"{_LLM}._close_google_active_tool", takes=("self", "state")),),
    gone_when="fast-agent starts a new call for each part",
)


def changed(original: Callable[..., None], holder: Any) -> Callable[..., None]:
    """End a tool call before the next; fast-agent overwrites the arguments of the open one."""
    del holder

    @wraps(original)
    def handle(self: Any, state: Any, part: Any) -> None:
        if part.function_call is not None:
            self._close_google_active_tool(state)
        original(self, state, part)

    return handle
