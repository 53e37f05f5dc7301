"""Half an answer of Bedrock is a whole one.

Symptom: the beginning of an answer that a proxy has cut is returned.

Repair: as for [other providers](#half-an-answer-is-a-whole-one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.limits import AFTER_LAST_SECONDS
from pallas_gateway.repairs.bedrock._turns import current_turn

CHANGE = Change(
    "bedrock-half-answers",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(
            "fast_agent.llm.provider.bedrock.llm_bedrock:BedrockLLM._process_stream",
            takes=("self", "stream_response", "model"),
        ),
    ),
    gone_when="`BedrockLLM._process_stream` raises over such a stream",
)


def changed(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Fail without the last event."""
    del holder

    @wraps(original)
    async def process_stream(self: Any, stream_response: Any, model: str) -> Any:
        return await original(self, {**stream_response, "stream": whole(stream_response["stream"])}, model)

    return process_stream


def whole(stream: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; raise `CallFailedError` if its last one is missing."""
    from pallas_gateway.calls.provider_failures import ended_early  # noqa: PLC0415  imports HTTP clients

    is_whole = False
    try:
        for event in stream:
            if "messageStop" in event:
                is_whole = True
                if (turn := current_turn()) is not None:
                    turn.wait_at_most(AFTER_LAST_SECONDS)
            yield event
    except TimeoutError:
        if not is_whole:
            raise
    finally:
        stream.close()
    if not is_whole:
        raise ended_early()
