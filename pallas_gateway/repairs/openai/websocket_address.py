"""WebSockets of the Responses API go to another address.

Symptom: with `OPENAI_BASE_URL`, the WebSocket goes to OpenAI, with the key for the other address.

Repair: the WebSocket has the address of the requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_RESPONSES = "fast_agent.llm.provider.openai.responses"
CHANGE = Change(
    "websocket-address",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_RESPONSES),
    replaces=(Name(f"{_RESPONSES}:ResponsesLLM._base_responses_url", ("self",)),),
    relies_on=(Name(f"{_RESPONSES}:ResponsesLLM._base_url", ("self",)),),
    gone_when="`_base_responses_url` returns the address that `_base_url` and the client's variable give",
)


def changed(original: Callable[[Any], str], holder: Any) -> Callable[[Any], str]:
    """Return the address of the requests, if there is one."""
    del holder

    @wraps(original)
    def base_responses_url(self: Any) -> str:
        return self._base_url() or os.environ.get("OPENAI_BASE_URL") or original(self)

    return base_responses_url
