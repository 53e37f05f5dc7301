"""OpenAI's Responses API, by server-sent events and by WebSocket; its events are checked by the library's own types."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, override

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.providers.provider import ALL_KINDS, Streamed, split, texts_of
from tests.support.providers.tool_rounds import signature_of
from tests.support.scripted_llm import CallTools, Json, LlmRequest, Say, Usage, base64_of_pdf, call_id, image_of

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True)
class ResponsesRequest(LlmRequest):
    @property
    @override
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream")) or self.body.get("type") == "response.create"

    @property
    @override
    def messages(self) -> list[Json]:
        items = (item for item in self.body["input"] if "role" in item)
        turns = [(item["role"], _text(item["content"])) for item in items]
        return [{"role": role, "content": text} for role, text in turns if text]

    @property
    @override
    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.body.get("tools") or []]

    @property
    @override
    def called(self) -> list[str]:
        return [item["name"] for item in self.body["input"] if item.get("type") == "function_call"]

    @property
    @override
    def images(self) -> list[tuple[str, str]]:
        return [image_of(part["image_url"]) for part in self._parts("input_image")]

    @property
    @override
    def documents(self) -> list[tuple[str | None, str]]:
        return [(part["filename"], base64_of_pdf(part["file_data"])) for part in self._parts("input_file")]

    def _parts(self, kind: str) -> list[Json]:
        contents = (item["content"] for item in self.body["input"] if isinstance(item.get("content"), list))
        return [part for content in contents for part in content if part["type"] == kind]

    @property
    @override
    def tool_results(self) -> dict[str, str]:
        outputs = [item for item in self.body["input"] if item.get("type") == "function_call_output"]
        return {item["call_id"]: _text(item["output"]) for item in outputs}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Responses:
    content_type: ClassVar[str] = "text/event-stream"
    request_class: ClassVar[type[LlmRequest]] = ResponsesRequest
    kinds: ClassVar[frozenset[str]] = ALL_KINDS

    def is_turn(self, path: str) -> bool:
        return path == "/v1/responses"

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        begun = _response(request, "in_progress", [], None)
        events: list[Json] = [{"type": "response.created", "response": begun}]
        if texts_of(turn):
            item = _message("", "in_progress", request)
            events.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}})
            events.append({"type": "response.content_part.added", **_AT, "part": item["content"][0]})
        return _sent(events)

    def piece(self, text: str) -> bytes:
        return _sent([{"type": "response.output_text.delta", **_AT, "delta": text, "logprobs": []}])

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        return _sent([*_reasoning_events(turn, request), *_tool_events(turn, request)])

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        events: list[Json] = []
        if texts_of(turn):
            item = _message("".join(texts_of(turn)), "completed", request)
            part = item["content"][0]
            events.append({"type": "response.output_text.done", **_AT, "text": part["text"], "logprobs": []})
            events.append({"type": "response.content_part.done", **_AT, "part": part})
            events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        whole = _whole(turn, request)
        kind = "incomplete" if whole["status"] == "incomplete" else "completed"
        return _sent([*events, {"type": f"response.{kind}", "response": whole}])

    def error(self, message: str) -> bytes:
        return _sent([{"type": "error", "code": "server_error", "message": message, "param": None}])

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        return _whole(turn, request)

    def refusal(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": "scripted", "param": None, "code": f"status_{status}"}}


_AT: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def _message(text: str, status: str, request: LlmRequest) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{request.number}", "type": "message", "role": "assistant", "status": status, "content": [part]}


def _reasoning(turn: CallTools, request: LlmRequest) -> list[Json]:
    if not turn.thinking:
        return []
    summary = [{"type": "summary_text", "text": turn.thinking}]
    sealed = signature_of(turn.thinking)
    return [{"id": f"rs_{request.number}", "type": "reasoning", "summary": summary, "encrypted_content": sealed}]


def _reasoning_events(turn: CallTools, request: LlmRequest) -> Iterator[Json]:
    for item in _reasoning(turn, request):
        begun = {**item, "summary": [], "encrypted_content": ""}
        yield {"type": "response.output_item.added", "output_index": 0, "item": begun}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}


def _tool_events(turn: CallTools, request: LlmRequest) -> Iterator[Json]:
    for number in range(len(turn.calls)):
        yield from _call_events(turn, request, number)


def _call(turn: CallTools, request: LlmRequest, number: int) -> Json:
    name, arguments = turn.calls[number]
    item = {"id": f"fc_{request.number}_{number}", "type": "function_call", "status": "completed", "name": name}
    return {**item, "arguments": arguments, "call_id": call_id(request, number)}


def _call_events(turn: CallTools, request: LlmRequest, number: int) -> Iterator[Json]:
    item = _call(turn, request, number)
    index = {"output_index": number + bool(turn.text or turn.thinking)}
    at = {**index, "item_id": item["id"]}
    begun = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", **index, "item": begun}
    for part in split(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": part}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, **done}
    yield {"type": "response.output_item.done", **index, "item": item}


def _whole(turn: Say | CallTools, request: LlmRequest) -> Json:
    text = "".join(texts_of(turn))
    output = [_message(text, "completed", request)] if text else []
    if isinstance(turn, CallTools):
        output += _reasoning(turn, request)
        output += [_call(turn, request, number) for number in range(len(turn.calls))]
    reason = _INCOMPLETE.get(turn.finish_reason) if isinstance(turn, Say) else None
    whole = _response(request, "incomplete" if reason else "completed", output, turn.usage)
    return {**whole, "incomplete_details": {"reason": reason}} if reason else whole


def _response(request: LlmRequest, status: str, output: list[Json], usage: Usage | None) -> Json:
    response: Json = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": request.model,
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return response if usage is None else {**response, "usage": _usage(usage)}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": usage.written or 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
    }


def _sent(events: list[Json]) -> bytes:
    # The numbers of a stream increase; no client of these tests looks at them.
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    for event in numbered:
        _checker().validate_python(event)
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in numbered)


@cache
def _checker() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)
