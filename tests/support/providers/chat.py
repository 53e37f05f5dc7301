"""Chat completions as servers speak them that are only nearly OpenAI's; without a departure, use no dialect at all."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tests.support.providers.provider import ALL_KINDS, Streamed, split
from tests.support.scripted_llm import (
    CREATED,
    MODEL,
    CallTools,
    Json,
    LlmRequest,
    Say,
    Usage,
    call_id,
    completion_of,
)


@dataclass(frozen=True)
class Chat:
    """The `Dialect`, and what of it departs from OpenAI's.

    usage: in a chunk of its own (OpenAI), in the last one (DeepSeek, Moonshot), a growing one in each (vLLM), in
        Groq's place as well, nowhere, or, without a total, before a last chunk that has none and null for choices.
    calls_in: pieces (OpenAI), each in one chunk, all in one chunk (Ollama), or in pieces that repeat empty ids and
        names (Qwen).
    index: of the tool calls: counted, `missing` (Gemini), or 0 for all (Gemini).
    thought: reasoning, streamed before the answer in a field of its own.
    tools_end: the reason for the end of an answer with tool calls (Gemini: `stop`).
    """

    usage: Literal["own", "last", "each", "groq", "none", "early"] = "own"
    calls_in: Literal["pieces", "one", "all", "blanks"] = "pieces"
    index: Literal["counted", "missing", "zero"] = "counted"
    thought: str = ""
    thought_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    tools_end: Literal["tool_calls", "stop"] = "tool_calls"
    comments: bool = False
    content_type: ClassVar[str] = "text/event-stream"
    request_class: ClassVar[type[LlmRequest]] = LlmRequest
    kinds: ClassVar[frozenset[str]] = ALL_KINDS

    def is_turn(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        comment = b": OPENROUTER PROCESSING\n\n" if self.comments else b""
        thoughts: list[Json] = [{self.thought_field: part} for part in split(self.thought)]
        deltas: list[Json] = [{"role": "assistant", "content": ""}, *thoughts]
        return comment + b"".join(self._chunk(delta) for delta in deltas)

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        groups = [list(self._parts_of(turn, request, number)) for number in range(len(turn.calls))]
        if self.calls_in == "all":
            groups = [[part for group in groups for part in group]]
            return b"".join(self._chunk({"tool_calls": group}) for group in groups)
        return b"".join(self._chunk({"tool_calls": [part]}) for group in groups for part in group)

    def _parts_of(self, turn: CallTools, request: LlmRequest, number: int) -> Iterator[Json]:
        name, arguments = turn.calls[number]
        at: Json = {} if self.index == "missing" else {"index": number if self.index == "counted" else 0}
        head: Json = {**at, "id": call_id(request, number), "type": "function"}
        if self.calls_in in {"one", "all"}:
            yield {**head, "function": {"name": name, "arguments": arguments}}
            return
        yield {**head, "function": {"name": name, "arguments": ""}}
        blank: Json = {"id": "", "type": "function"} if self.calls_in == "blanks" else {}
        for part in split(arguments):
            nameless: Json = {"name": ""} if self.calls_in == "blanks" else {}
            yield {**at, **blank, "function": {**nameless, "arguments": part}}

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        reason = self.tools_end if isinstance(turn, CallTools) else turn.finish_reason
        usage = (turn.usage or Usage(0, 0)).as_json()
        more: Json = {}
        if self.usage in {"last", "each"}:
            more = {"usage": usage}
        elif self.usage == "groq":
            more = {"x_groq": {"id": "req_1", "usage": usage}}
        elif self.usage == "early":
            more = {"usage": {name: tokens for name, tokens in usage.items() if name != "total_tokens"}}
        last = self._chunk({}, reason, **more)
        if self.usage == "early":
            last += _event({**_ENVELOPE, "choices": None})
        if self.usage in {"own", "groq"}:
            last += _event({**_ENVELOPE, "choices": [], "usage": usage})
        return last + b"data: [DONE]\n\n"

    def error(self, message: str) -> bytes:
        return _event({"error": {"message": message, "code": 502}})

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        return completion_of(turn, request)

    def refusal(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": "scripted", "param": None, "code": None}}

    def _chunk(self, delta: Json, reason: str | None = None, **more: Json) -> bytes:
        growing: Json = {"usage": Usage(30, 1).as_json()} if self.usage == "each" else {}
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return _event({**_ENVELOPE, "choices": [choice], **growing, **more})


_ENVELOPE: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}


def _event(value: Json) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
