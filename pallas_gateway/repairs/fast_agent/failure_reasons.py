"""Reasons hold addresses, Python and statistics.

Symptom: a failed call is reported as `Error code: 429 - {'error': {'message': …}}`, `Request timed out.` (for a refused
connection), `peer closed connection without sending complete message body (incomplete chunked read)`, `Didn't receive a
`response.completed` event.`, `AssertionError` (Anthropic, for an empty body), `The configured OpenAI API key was
rejected` (for xAI, DeepSeek and others as well), or with `(received_close_code=1011; …; frames=[response.created | …])`
of a WebSocket.

Reproduction: each of these with a server that answers 429 or 401, refuses the connection, cuts it off, or closes the
WebSocket. `build_stream_failure_response` (`llm/provider/error_utils.py`) prints the exception of the provider's
library, `ResponsesLLM._responses_completion_sse` (`openai/responses.py`) raises a `ProviderKeyError` of its own, and
`WebSocketResponsesStream._close_diagnostics` (`openai/responses_websocket.py`) makes the statistics.

Repair: `calls/provider_failures.py` finds the status, the message in the body, or the cause of a failed connection in
the chain of exceptions, and writes one sentence. `runtime/llm/attempts.py` raises it for what fast-agent raises; here
it replaces what fast-agent returns, also as the text of the turn. Of the statistics only `received_close_reason` is
kept, which is the provider's own text.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from mcp_types import TextContent

from pallas_gateway.calls.provider_failures import COULD_NOT_ANSWER, sentence, why_failed
from pallas_gateway.changes.change import REPAIR, Change, EachModule, Loaded

_PACKAGE = "fast_agent.llm.provider"
_ERROR_CHANNEL = "fast-agent-error"
CHANGE = Change(
    "failure-reasons",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_PACKAGE),
    replaces=(EachModule(_PACKAGE, "build_stream_failure_response", ("provider", "error", "model_name")),),
    gone_when=(
        "fast-agent's errors carry status, provider's message and cause as attributes, and its failure responses name"
        " nothing else"
    ),
)


def changed(original: Any, holder: Any) -> Any:
    """Report failures in the words of `provider_failures`."""
    del holder
    if hasattr(original, "__wrapped__"):
        return original  # imported from a module in which it is replaced

    @wraps(original)
    def explained(provider: Any, error: Any, model_name: str) -> Any:
        answer = original(provider, error, model_name)
        name = getattr(provider, "config_name", provider)
        text = sentence(name, model_name, why_failed(error) or str(getattr(error, "message", None) or error))
        answer.channels[_ERROR_CHANNEL] = [TextContent(type="text", text=text)]
        answer.content = [TextContent(type="text", text=f"{COULD_NOT_ANSWER}: {text}")]  # read by agents and clients
        return answer

    return explained
