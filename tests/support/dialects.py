"""A model that speaks three protocols: chat completions, OpenAI's responses and Anthropic's messages, all streamed.

It says what its script tells it to, the same in each, and keeps what it was asked.
"""

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from .asgi import Receive, Scope, Send, end_body, http_only, read_body, respond_json, send_part, start_response
from .listener import serve_app
from .provider_requests import to_provider

type Json = dict[str, Any]
ANSWER = "heard"


@dataclass(frozen=True)
class Asked:
    """One request: the protocol's last part of the path (`completions`, `responses`, `messages`), and its body."""

    protocol: str
    path: str
    body: Json

    @property
    def instruction(self) -> str:
        """The system prompt, wherever the protocol has it."""
        said = self.body.get("system") or self.body.get("instructions") or self.body.get("messages", [{}])[0]
        return json.dumps(said)


type Script = Callable[[Asked], str]


def _always_the_same(_: Asked) -> str:
    return ANSWER


class PolyglotLlm:
    """The model, an ASGI app that answers below any path; `base_url` is without a path."""

    def __init__(self, script: Script = _always_the_same) -> None:
        self.base_url = ""
        self.script = script
        self.asked: list[Asked] = []

    def at(self, place: str) -> list[Asked]:
        return [one for one in self.asked if one.path.startswith(f"/{place}/")]

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":  # lists of models, and pages that clients look at first
            await respond_json(send, 200, {"object": "list", "data": []})
        else:
            protocol = scope["path"].rsplit("/", 1)[-1]
            body = json.loads(await read_body(receive))
            self.asked.append(asked := Asked(protocol, scope["path"], body))
            to_provider(scope["path"], body)
            await _answer(send, _EVENTS[protocol](body, self.script(asked)))


@asynccontextmanager
async def polyglot_llm(script: Script = _always_the_same) -> AsyncGenerator[PolyglotLlm]:
    llm = PolyglotLlm(script)
    async with serve_app(llm) as listener:
        llm.base_url = listener.base_url
        yield llm


async def _answer(send: Send, events: Iterator[Json]) -> None:
    await start_response(send, 200, content_type="text/event-stream")
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        await send_part(send, f"{name}data: {json.dumps(event)}\n\n")
    await send_part(send, "data: [DONE]\n\n")
    await end_body(send)


def _completions(body: Json, text: str) -> Iterator[Json]:
    envelope = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    for delta, reason in (({"role": "assistant", "content": text}, None), ({}, "stop")):
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    yield {**envelope, "choices": [], "usage": usage}


def _messages(body: Json, text: str) -> Iterator[Json]:
    message = {"id": "m-1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _responses(body: Json, text: str) -> Iterator[Json]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "i-1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {
        "id": "r-1",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    at = {"item_id": "i-1", "output_index": 0, "content_index": 0}
    yield {"type": "response.created", "sequence_number": 0, "response": {**response, "status": "in_progress"}}
    begun = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": begun}
    empty = {**part, "text": ""}
    yield {"type": "response.content_part.added", "sequence_number": 2, **at, "part": empty}
    yield {"type": "response.output_text.delta", "sequence_number": 3, **at, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", "sequence_number": 4, **at, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", "sequence_number": 5, **at, "part": part}
    yield {"type": "response.output_item.done", "sequence_number": 6, "output_index": 0, "item": item}
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "sequence_number": 7, "response": whole}


_EVENTS = {"completions": _completions, "messages": _messages, "responses": _responses}
