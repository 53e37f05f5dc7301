"""Bedrock blocks the event loop.

Symptom: one slow answer of Bedrock stops every agent, `/livez` and SIGTERM.

Repair: the turn runs in a thread, whose sockets are shut down when the call ends. `streaming_timeout` bounds each read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_LLM = "fast_agent.llm.provider.bedrock.llm_bedrock:BedrockLLM"
CHANGE = Change(
    "bedrock-threads",
    REPAIR,
    ("fast-agent-mcp", "botocore"),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(f"{_LLM}._bedrock_completion", takes=("self", "message_param", "request_params"), by="in_threads"),
        Name(f"{_LLM}._get_bedrock_runtime_client", takes=("self",), by="kept_client"),
    ),
    relies_on=(Name("botocore.httpsession:URLLib3Session._pool_classes_by_scheme"),),
    gone_when="fast-agent calls Bedrock asynchronously, or in threads that a cancellation ends",
)


def in_threads(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Run each turn in a thread."""
    del holder
    from pallas_gateway.repairs.bedrock._turns import BedrockTurn, in_thread  # noqa: PLC0415  not before it is used

    @wraps(original)
    async def complete(self: Any, message: Any, request_params: Any = None, *more: Any, **options: Any) -> Any:
        turn = BedrockTurn(getattr(request_params, "streaming_timeout", None))
        return await in_thread(turn, original(self, message, request_params, *more, **options))

    return complete


def kept_client(original: Any, holder: Any) -> Callable[[Any], Any]:
    """Return the client that is kept for the profile and region; fast-agent makes one for each LLM object."""
    del original, holder
    from pallas_gateway.repairs.bedrock._client import client_of  # noqa: PLC0415  boto3 is optional

    return lambda self: client_of(self.aws_profile, self.aws_region)
