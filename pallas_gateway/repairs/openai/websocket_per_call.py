"""The Responses API opens a WebSocket for each call.

Symptom: models of `responses` (all GPT-5), `codexresponses` and `xai` open a WebSocket in each call, at about four
times the CPU of server-sent events.

Repair: server-sent events are used unless `transport` in fastagent.config.yaml or `?transport=` of the model says
otherwise.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_PACKAGE = "fast_agent.llm.provider.openai"
_OPEN_A_SOCKET = ("auto", "websocket")
CHANGE = Change(
    "websocket-per-call",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(f"{_PACKAGE}.responses"),
    replaces=(
        Name(f"{_PACKAGE}.responses:ResponsesLLM._default_transport_setting", ("self",)),
        Name(f"{_PACKAGE}.xai_responses:XAIResponsesLLM._default_transport_setting", ("self",)),
    ),
    gone_when="fast-agent shares WebSockets between LLM objects",
)


def changed(original: Any, holder: Any) -> Any:
    """Use server-sent events by default."""
    del holder

    @wraps(original)
    def default_transport_setting(self: Any) -> str:
        chosen: str = original(self)
        return "sse" if chosen in _OPEN_A_SOCKET else chosen

    return default_transport_setting
