"""Bedrock's `converse` and `converse-stream`. The shapes are those of boto3's service description.

The stream is AWS's binary event stream: https://docs.aws.amazon.com/lexv2/latest/dg/event-stream-encoding.html
"""

import json
from binascii import crc32
from dataclasses import dataclass
from struct import pack
from typing import ClassVar, override
from urllib.parse import unquote

from tests.support.providers.provider import Streamed, split
from tests.support.scripted_llm import CallTools, Json, LlmRequest, Say, Usage, call_id

_STOP = {"stop": "end_turn", "length": "max_tokens", "content_filter": "content_filtered"}
_STRING = 7
ERRORS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


@dataclass(frozen=True)
class BedrockRequest(LlmRequest):
    @property
    @override
    def model(self) -> str:
        return unquote(self.path.split("/")[2])

    @property
    @override
    def is_streamed(self) -> bool:
        return self.path.endswith("/converse-stream")

    @property
    @override
    def messages(self) -> list[Json]:
        turns = [(one["role"], "".join(b.get("text", "") for b in one["content"])) for one in self.body["messages"]]
        return [{"role": role, "content": text} for role, text in turns if text]

    @property
    @override
    def tools(self) -> list[str]:
        return [tool["toolSpec"]["name"] for tool in (self.body.get("toolConfig") or {}).get("tools", [])]

    @property
    @override
    def called(self) -> list[str]:
        return [one["name"] for one in self._blocks("toolUse")]

    @property
    @override
    def images(self) -> list[tuple[str, str]]:
        return [(f"image/{one['format']}", one["source"]["bytes"]) for one in self._blocks("image")]

    @property
    @override
    def documents(self) -> list[tuple[str | None, str]]:
        return [(one["name"], one["source"]["bytes"]) for one in self._blocks("document")]

    @property
    @override
    def tool_results(self) -> dict[str, str]:
        results = self._blocks("toolResult")
        return {one["toolUseId"]: "".join(part.get("text", "") for part in one["content"]) for one in results}

    def _blocks(self, kind: str) -> list[Json]:
        blocks = (block for message in self.body["messages"] for block in message["content"])
        return [block[kind] for block in blocks if kind in block]


class Bedrock:
    content_type: ClassVar[str] = "application/vnd.amazon.eventstream"
    request_class: ClassVar[type[LlmRequest]] = BedrockRequest
    kinds: ClassVar[frozenset[str]] = frozenset({"cached", "written"})

    def is_turn(self, path: str) -> bool:
        return path.startswith("/model/") and path.endswith(("/converse", "/converse-stream"))

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        del turn, request
        return _event("messageStart", {"role": "assistant"})

    def piece(self, text: str) -> bytes:
        return _event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}})

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        events = _event("contentBlockStop", {"contentBlockIndex": 0}) if turn.text else b""
        for number, (name, arguments) in enumerate(turn.calls):
            index = {"contentBlockIndex": number + bool(turn.text)}
            start = {"toolUse": {"toolUseId": call_id(request, number), "name": name}}
            events += _event("contentBlockStart", {**index, "start": start})
            for part in split(arguments):
                events += _event("contentBlockDelta", {**index, "delta": {"toolUse": {"input": part}}})
            events += _event("contentBlockStop", index)
        return events

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        del request
        events = _event("contentBlockStop", {"contentBlockIndex": 0}) if isinstance(turn, Say) else b""
        events += _event("messageStop", {"stopReason": _stop_reason(turn)})
        return events + _event("metadata", {"usage": _usage(turn.usage), "metrics": {"latencyMs": 1}})

    def error(self, message: str) -> bytes:
        return encode(
            {":message-type": "exception", ":exception-type": "modelStreamErrorException"}, {"message": message}
        )

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        text = turn.text if isinstance(turn, CallTools) else "".join(turn.pieces)
        content: list[Json] = [{"text": text}] if text else []
        if isinstance(turn, CallTools):
            content += [
                {"toolUse": {"toolUseId": call_id(request, index), "name": name, "input": json.loads(arguments)}}
                for index, (name, arguments) in enumerate(turn.calls)
            ]
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": _stop_reason(turn),
            "usage": _usage(turn.usage),
            "metrics": {"latencyMs": 1},
        }

    def refusal(self, status: int, message: str) -> Json:
        """AWS's error object, with the type that the real service sends in a header."""
        return {"__type": ERRORS.get(status, "InternalServerException"), "message": message}


def _stop_reason(turn: Say | CallTools) -> str:
    return "tool_use" if isinstance(turn, CallTools) else _STOP[turn.finish_reason]


def _usage(usage: Usage | None) -> Json:
    """Input tokens exclude those that came from and went into the cache."""
    usage = usage or Usage(0, 0)
    read, written = usage.cached or 0, usage.written or 0
    return {
        "inputTokens": usage.prompt - read - written,
        "outputTokens": usage.completion,
        "totalTokens": usage.prompt + usage.completion,
        "cacheReadInputTokens": read,
        "cacheWriteInputTokens": written,
    }


def _event(kind: str, payload: Json) -> bytes:
    return encode({":message-type": "event", ":event-type": kind}, payload)


def encode(headers: dict[str, str], payload: Json) -> bytes:
    head = b"".join(_header(name, value) for name, value in {**headers, ":content-type": "application/json"}.items())
    body = json.dumps(payload).encode()
    prelude = pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + pack("!I", crc32(prelude)) + head + body
    return message + pack("!I", crc32(message))


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return pack("!B", len(key)) + key + pack("!BH", _STRING, len(text)) + text
