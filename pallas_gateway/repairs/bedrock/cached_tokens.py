"""Bedrock counts no cached tokens.

Symptom: `cache_read` and `cache_write` are 0 for Bedrock models.

Repair: the usage keeps both counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.bedrock.llm_bedrock"
_LLM = f"{_MODULE}:BedrockLLM"
CHANGE = Change(
    "bedrock-cached-tokens",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(f"{_LLM}._bedrock_stream_response", takes=("self", "model", "state"), by="of_streams"),
        Name(f"{_LLM}._process_non_streaming_response", takes=("self", "response", "model"), by="of_responses"),
        Name(f"{_MODULE}:usage_from_bedrock", takes=("usage", "model"), by="disjoint"),
    ),
    gone_when="`usage_from_bedrock` fills `cache_read` and `cache_write`",
)
_CACHED = {"cache_read": "cacheReadInputTokens", "cache_write": "cacheWriteInputTokens"}


def of_streams(original: Callable[..., dict[str, Any]], holder: Any) -> Callable[..., dict[str, Any]]:
    """Keep cached tokens of a streamed answer."""
    del holder

    @wraps(original)
    def stream_response(self: Any, model: str, state: Any) -> dict[str, Any]:
        return _with_cached(original(self, model, state), state.usage)

    return stream_response


def of_responses(original: Callable[..., dict[str, Any]], holder: Any) -> Callable[..., dict[str, Any]]:
    """Keep cached tokens of an answer without a stream."""
    del holder

    @wraps(original)
    def non_streaming_response(self: Any, response: Any, model: str) -> dict[str, Any]:
        return _with_cached(original(self, response, model), response.get("usage", {}))

    return non_streaming_response


def _with_cached(processed: dict[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = {name: usage.get(sent) or 0 for name, sent in _CACHED.items()}
    return {**processed, "usage": {**processed["usage"], **cached}}


def disjoint(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Add cached tokens to the total; Bedrock counts them apart from its input tokens."""
    del holder
    from fast_agent.llm.usage_tracking import PromptTokenUsage  # noqa: PLC0415  not before it is used

    @wraps(original)
    def usage_from_bedrock(usage: Mapping[str, Any], *, model: str) -> Any:
        turn = original(usage, model=model)
        read, written, uncached = usage.get("cache_read", 0), usage.get("cache_write", 0), turn.prompt.total or 0
        total = uncached + read + written
        prompt = PromptTokenUsage(total=total, uncached=uncached, cache_read=read, cache_write=written)
        return turn.model_copy(update={"prompt": prompt})

    return usage_from_bedrock
