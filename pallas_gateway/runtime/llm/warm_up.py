"""Has a provider's library read an answer from memory, so that its schemas are made before the first call."""

from __future__ import annotations

import inspect
import json
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import httpx2

from pallas_gateway.runtime.llm.google import share_trust_store

if TYPE_CHECKING:
    from collections.abc import Sequence

type Event = dict[str, Any]
_NOWHERE = "http://localhost"
_NO_KEY = "none"
_reading = Lock()


def warm_up(llm_class: type[Any]) -> None:
    """Make the library of a fast-agent class read an answer, once for each library."""
    with _reading:  # agents start at the same time, each in a thread
        for each in inspect.getmro(llm_class):
            if (read := _READERS.get(each.__name__)) is not None:
                read()


@cache
def _responses() -> None:
    from openai import OpenAI  # noqa: PLC0415  not before an LLM is used

    client = OpenAI(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering(_RESPONSE))
    with client, client.responses.stream(model="any", input="Hi") as stream:
        stream.until_done()


@cache
def _chat_completions() -> None:
    from openai import OpenAI  # noqa: PLC0415

    message: Any = [{"role": "user", "content": "Hi"}]
    client = OpenAI(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering(_CHUNKS))
    with client, client.chat.completions.stream(model="any", messages=message) as stream:
        stream.until_done()


@cache
def _anthropic() -> None:
    from anthropic import Anthropic  # noqa: PLC0415

    message: Any = [{"role": "user", "content": "Hi"}]
    client = Anthropic(api_key=_NO_KEY, base_url=_NOWHERE, http_client=_answering(_MESSAGE))
    with client, client.beta.messages.stream(model="any", max_tokens=1, messages=message) as stream:
        stream.until_done()


@cache
def _google() -> None:
    from google import genai  # noqa: PLC0415

    options = genai.types.HttpOptions(base_url=_NOWHERE, httpx_client=_answering(_CANDIDATES))
    share_trust_store(options)
    client = genai.Client(api_key=_NO_KEY, http_options=options)
    function = genai.types.FunctionDeclaration(name="tool", parameters_json_schema={"type": "object"})
    tools: Any = [genai.types.Tool(function_declarations=[function])]
    config = genai.types.GenerateContentConfig(system_instruction="Hi", tools=tools)
    for _ in client.models.generate_content_stream(model="any", contents="Hi", config=config):
        pass
    client.close()


_READERS = {
    "ResponsesLLM": _responses,
    "OpenAILLM": _chat_completions,
    "AnthropicLLM": _anthropic,
    "GoogleNativeLLM": _google,
}


class _FromMemory(httpx2.BaseTransport):
    """Answers every request with the same server-sent events, without a network."""

    def __init__(self, events: Sequence[Event]) -> None:
        named = (f"event: {one['type']}\n" if "type" in one else "" for one in events)
        blocks = (f"{name}data: {json.dumps(one)}\n\n" for name, one in zip(named, events, strict=True))
        self._body = "".join(blocks).encode()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=self._body, request=request)


def _answering(events: Sequence[Event]) -> httpx2.Client:
    return httpx2.Client(transport=_FromMemory(events), trust_env=False)


_AT: Event = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
_PART: Event = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}
_ITEM: Event = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [_PART]}
_CALL: Event = {
    **{"id": "fc_1", "type": "function_call", "status": "completed"},
    **{"name": "tool", "arguments": "{}", "call_id": "call_1"},
}
_TOKENS: Event = {
    "input_tokens": 1,
    "output_tokens": 1,
    "total_tokens": 2,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
_WHOLE: Event = {
    **{"id": "resp_1", "object": "response", "created_at": 1, "model": "any", "status": "completed"},
    **{"output": [_ITEM, _CALL], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": _TOKENS},
}
_RESPONSE: Sequence[Event] = tuple(
    {**event, "sequence_number": number}
    for number, event in enumerate[Event](
        (
            {"type": "response.created", "response": {**_WHOLE, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "content": []}},
            {"type": "response.content_part.added", **_AT, "part": {**_PART, "text": ""}},
            {"type": "response.output_text.delta", **_AT, "delta": "Hi", "logprobs": []},
            {"type": "response.output_text.done", **_AT, "text": "Hi", "logprobs": []},
            {"type": "response.content_part.done", **_AT, "part": _PART},
            {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
            {"type": "response.output_item.added", "output_index": 1, "item": {**_CALL, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1, "delta": "{}"},
            {
                **{"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 1},
                **{"name": "tool", "arguments": "{}"},
            },
            {"type": "response.output_item.done", "output_index": 1, "item": _CALL},
            {"type": "response.completed", "response": _WHOLE},
        )
    )
)
_CHUNK: Event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "any"}
_TOOL: Event = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "tool", "arguments": "{}"}}
_CHUNKS: Sequence[Event] = (
    {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [_TOOL]}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {**_CHUNK, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
)
_USED: Event = {"input_tokens": 1, "output_tokens": 1}
_MESSAGE: Sequence[Event] = (
    {
        "type": "message_start",
        "message": {
            **{"id": "msg_1", "type": "message", "role": "assistant", "model": "any", "content": []},
            **{"stop_reason": None, "stop_sequence": None, "usage": _USED},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
    {
        **{"type": "content_block_start", "index": 1},
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "tool", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": _USED},
    {"type": "message_stop"},
)
_CANDIDATE: Event = {"index": 0, "content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}
_GOOGLE_TOKENS: Event = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
_CANDIDATES: Sequence[Event] = ({"candidates": [_CANDIDATE], "usageMetadata": _GOOGLE_TOKENS},)
