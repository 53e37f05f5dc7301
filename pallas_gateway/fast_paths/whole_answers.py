"""Answers of chat completions that no caller reads live, requested as a whole by a setting of their provider.

With `stream_live_only`, fast-agent processes an answer that is returned as a whole as a stream of one chunk, so text,
tool calls, reasoning and usage are those of a streamed answer.
"""

from __future__ import annotations

from contextlib import aclosing
from copy import copy
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import httpx2
from pydantic import ValidationError
from pydantic_core import from_json

from pallas_gateway.calls.current import current_turn
from pallas_gateway.calls.provider_failures import incomplete, reported
from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name
from pallas_gateway.config.loading.fastagent_file import STREAM_LIVE_ONLY
from pallas_gateway.errors import CallFailedError

_LLM = "fast_agent.llm.provider.openai.llm_openai:OpenAILLM"
CHANGE = Change(
    "whole_answers",
    FAST_PATH,
    ("fast-agent-mcp", "openai"),
    when=Loaded(_LLM.partition(":")[0]),
    replaces=(Name(f"{_LLM}._create_openai_streaming_response", ("self", "client", "request", "capture_filename")),),
    relies_on=(
        Name(f"{_LLM}._prepare_non_streaming_request", ("arguments",)),
        Name("openai._resource:AsyncAPIResource._post"),
    ),
)


def changed(original: Any, _: Any) -> Any:
    """Use a client whose streams have one chunk, if the provider is set so and the caller reads no live text."""

    @wraps(original)
    async def create_response(self: Any, client: Any, request: Any, capture_filename: Any) -> Any:
        section = getattr(self.context.config, self.provider.config_name, None)
        if getattr(section, STREAM_LIVE_ONLY, None) is True and current_turn().reading_pause() is None:
            create = partial(_create, client, self._prepare_non_streaming_request)
            client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        return await original(self, client, request, capture_filename)

    return create_response


async def _create(client: Any, without_stream: Any, **arguments: Any) -> Any:
    if not arguments["stream"]:  # fast-agent asks again after an empty answer
        return await client.chat.completions.create(**arguments)

    def post(path: str, *, body: Any, options: Any, **_: Any) -> Any:
        # Read below: the library sends a request again whose answer is cut off while it reads it.
        return client.post(path, cast_to=httpx2.Response, body=body, options=options, stream=True)

    completions = copy(client.chat.completions)
    completions._post = post
    async with aclosing(await completions.create(**without_stream(arguments))) as response:
        return _stream_of(from_json(await response.aread()))


async def _stream_of(answer: Any) -> Any:
    """Yield a whole answer as one chunk."""
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415  not before an LLM is used

    match answer:
        case {"choices": [{"message": {**message}, **choice}, *_]}:
            calls: Any = message.get("tool_calls") or ()
            delta = {**message, "tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]}
            end = choice.get("finish_reason") or "stop"
        case {"error": {"message": str(why)}}:
            raise CallFailedError(reported(why), reason="llm_error")
        case _:
            raise incomplete()
    choices = [{"index": 0, **choice, "delta": delta, "finish_reason": end}]
    named = {"id": "", "created": 0, "model": "", **answer, "object": "chat.completion.chunk", "choices": choices}
    try:
        chunk = ChatCompletionChunk.model_validate(named)
    except ValidationError:
        chunk = ChatCompletionChunk.construct(**named)  # the library takes anything
    yield chunk
