"""Chunks of a streamed chat completion, made by pydantic's compiled validator and known by their class.

The OpenAI library makes objects of each chunk field by field, and fast-agent looks for `usage` and `choices` by
protocols, which look up every attribute. A chunk that is not as specified is left to the library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pallas_gateway.calls.current import running_call
from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

_LLM = "fast_agent.llm.provider.openai.llm_openai"
CHANGE = Change(
    "openai_chunks",
    FAST_PATH,
    ("openai", "pydantic", "fast-agent-mcp"),
    when=Loaded("openai"),
    replaces=(
        Name("openai:AsyncOpenAI._process_response_data", ("self", "data", "cast_to", "response")),
        Name(f"{_LLM}:_OpenAIUsageHolder", by="chunks_first"),
        Name(f"{_LLM}:_OpenAIChoicesHolder", by="chunks_first"),
    ),
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Validate chunks."""
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415  not before an LLM is used
    from pydantic import ValidationError  # noqa: PLC0415  as above

    @wraps(original)
    def process(self: Any, *, data: object, cast_to: Any, response: Any) -> Any:
        if cast_to is ChatCompletionChunk and running_call.get().turn is not None:  # not for clients of agents' code
            try:
                return ChatCompletionChunk.model_validate(data)
            except ValidationError:
                pass  # the library takes anything
        return original(self, data=data, cast_to=cast_to, response=response)

    return process


def chunks_first(protocol: Any, _: Any) -> tuple[Any, Any]:
    """`isinstance` compares with the class first."""
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415  not before an LLM is used

    return ChatCompletionChunk, protocol
