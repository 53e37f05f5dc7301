"""Gemini on Vertex AI refuses every agent with tools.

Symptom: each call fails: "include_server_side_tool_invocations parameter is only supported in Gemini Developer API
mode".

Repair: the flag is not sent to Vertex AI.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.google.llm_google_native"
_LLM = f"{_MODULE}:GoogleNativeLLM"
CHANGE = Change(
    "google-vertex-tools",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_LLM}._google_generate_content_config", takes=("self", "request_params")),),
    relies_on=(Name(f"{_LLM}._vertex_cfg", takes=("self",)),),
    gone_when="fast-agent sets `include_server_side_tool_invocations` for the Gemini API only",
)


def changed(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Remove the flag at Vertex AI."""
    del holder

    @wraps(original)
    def config_of(self: Any, *arguments: Any, **options: Any) -> Any:
        config = original(self, *arguments, **options)
        if config.tool_config is not None and self._vertex_cfg()[0]:
            config.tool_config.include_server_side_tool_invocations = None
        return config

    return config_of
