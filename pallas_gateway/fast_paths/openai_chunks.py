"""Chunks of a streamed chat completion, made by pydantic's compiled validator.

The OpenAI library makes objects of each chunk field by field, in Python. What is no chunk as specified is left to it.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change(
    "openai_chunks",
    FAST_PATH,
    ("openai", "pydantic"),
    when=Loaded("openai"),
    replaces=(Name("openai:AsyncOpenAI._process_response_data", ("self", "data", "cast_to", "response")),),
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Validate chunks."""
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415  not before an LLM is used
    from pydantic import ValidationError  # noqa: PLC0415  as above

    @wraps(original)
    def process(self: Any, *, data: object, cast_to: Any, response: Any) -> Any:
        if cast_to is ChatCompletionChunk:
            try:
                return ChatCompletionChunk.model_validate(data)
            except ValidationError:
                pass  # the library takes anything
        return original(self, data=data, cast_to=cast_to, response=response)

    return process
