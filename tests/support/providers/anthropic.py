"""Anthropic's Messages API, made of the types of its own library."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, override

from anthropic.types.beta import (
    BetaInputJSONDelta,
    BetaMessage,
    BetaMessageDeltaUsage,
    BetaOutputTokensDetails,
    BetaRawContentBlockDeltaEvent,
    BetaRawContentBlockStartEvent,
    BetaRawContentBlockStopEvent,
    BetaRawMessageDeltaEvent,
    BetaRawMessageStartEvent,
    BetaRawMessageStopEvent,
    BetaSignatureDelta,
    BetaTextBlock,
    BetaTextDelta,
    BetaThinkingBlock,
    BetaThinkingDelta,
    BetaToolUseBlock,
    BetaUsage,
)
from anthropic.types.beta.beta_raw_message_delta_event import Delta
from pydantic import BaseModel

from tests.support.providers.provider import ALL_KINDS, Streamed, split, texts_of
from tests.support.providers.tool_rounds import signature_of
from tests.support.scripted_llm import CallTools, Json, LlmRequest, Say, Turn, Usage, call_id, call_tools, say, text_of

if TYPE_CHECKING:
    from tests.support.provider_gateways import Served

_STOP: dict[str, Any] = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class AnthropicRequest(LlmRequest):
    @property
    @override
    def messages(self) -> list[Json]:
        return [message for message in self.body["messages"] if text_of(message)]

    @property
    @override
    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.body.get("tools") or []]

    @property
    @override
    def called(self) -> list[str]:
        return [block["name"] for block in self._blocks("tool_use")]

    @property
    @override
    def images(self) -> list[tuple[str, str]]:
        return [(block["source"]["media_type"], block["source"]["data"]) for block in self._blocks("image")]

    @property
    @override
    def documents(self) -> list[tuple[str | None, str]]:
        documents = self._blocks("document")
        assert all(one["source"]["media_type"] == "application/pdf" for one in documents)
        return [(one["title"], one["source"]["data"]) for one in documents]

    @property
    @override
    def tool_results(self) -> dict[str, str]:
        return {block["tool_use_id"]: text_of(block) for block in self._blocks("tool_result")}

    def _blocks(self, kind: str) -> list[Json]:
        contents = (message["content"] for message in self.body["messages"] if isinstance(message["content"], list))
        return [block for content in contents for block in content if block["type"] == kind]

    @property
    @override
    def bearer(self) -> str | None:
        return self.headers.get("x-api-key") or super().bearer


@dataclass(frozen=True)
class VertexRequest(AnthropicRequest):
    """A request at Google's Vertex AI, where the model is a part of the path."""

    @property
    @override
    def model(self) -> str:
        return self.path.rpartition("/")[2].partition(":")[0]


class Anthropic:
    content_type: ClassVar[str] = "text/event-stream"
    request_class: ClassVar[type[LlmRequest]] = AnthropicRequest
    kinds: ClassVar[frozenset[str]] = ALL_KINDS

    def is_turn(self, path: str) -> bool:
        return path == "/v1/messages"

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        usage = turn.usage if isinstance(turn, (Say, CallTools)) else Usage()
        message = _message(request, usage or Usage(0, 0))
        events = _event(BetaRawMessageStartEvent(type="message_start", message=message))
        events += b'event: ping\ndata: {"type": "ping"}\n\n'
        return events + (_start(0, BetaTextBlock(type="text", text="")) if texts_of(turn) else b"")

    def piece(self, text: str) -> bytes:
        return _delta(0, BetaTextDelta(type="text_delta", text=text))

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        events = _stop(0) if turn.text else b""
        if turn.thinking:
            events += _start(0, BetaThinkingBlock(type="thinking", thinking="", signature=""))
            events += _delta(0, BetaThinkingDelta(type="thinking_delta", thinking=turn.thinking))
            signed = BetaSignatureDelta(type="signature_delta", signature=signature_of(turn.thinking))
            events += _delta(0, signed) + _stop(0)
        for number, (name, arguments) in enumerate(turn.calls):
            index = number + bool(turn.text or turn.thinking)
            block = BetaToolUseBlock(type="tool_use", id=call_id(request, number), name=name, input={})
            events += _start(index, block)
            for part in ("", *split(arguments)):
                events += _delta(index, BetaInputJSONDelta(type="input_json_delta", partial_json=part))
            events += _stop(index)
        return events

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        del request
        usage = turn.usage or Usage(0, 0)
        end = BetaRawMessageDeltaEvent(
            type="message_delta",
            delta=Delta(stop_reason=_stop_reason(turn), stop_sequence=None),
            usage=BetaMessageDeltaUsage(output_tokens=usage.completion, output_tokens_details=_thinking(usage)),
        )
        text = _stop(0) if isinstance(turn, Say) else b""
        return text + _event(end) + _event(BetaRawMessageStopEvent(type="message_stop"))

    def error(self, message: str) -> bytes:
        return f"event: error\ndata: {json.dumps(self.refusal(529, message))}\n\n".encode()

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        message = _message(request, turn.usage or Usage(0, 0))
        text = turn.text if isinstance(turn, CallTools) else "".join(turn.pieces)
        message.content = [BetaTextBlock(type="text", text=text)] if text else []
        if isinstance(turn, CallTools) and turn.thinking:
            signature = signature_of(turn.thinking)
            message.content = [BetaThinkingBlock(type="thinking", thinking=turn.thinking, signature=signature)]
        if isinstance(turn, CallTools):
            message.content += [
                BetaToolUseBlock(type="tool_use", id=call_id(request, index), name=name, input=json.loads(arguments))
                for index, (name, arguments) in enumerate(turn.calls)
            ]
        message.stop_reason = _stop_reason(turn)
        return _dumped(message)

    def refusal(self, status: int, message: str) -> Json:
        return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": message}}


def _thinking(usage: Usage) -> BetaOutputTokensDetails:
    return BetaOutputTokensDetails(thinking_tokens=usage.reasoning or 0)


def _stop_reason(turn: Say | CallTools) -> Any:
    return "tool_use" if isinstance(turn, CallTools) else _STOP[turn.finish_reason]


def _message(request: LlmRequest, usage: Usage) -> BetaMessage:
    read, written = usage.cached or 0, usage.written or 0
    return BetaMessage(
        id=f"msg_{request.number}",
        type="message",
        role="assistant",
        model=request.model,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=BetaUsage(
            input_tokens=usage.prompt - read - written,
            cache_read_input_tokens=read,
            cache_creation_input_tokens=written,
            output_tokens=1,
        ),
    )


def _start(index: int, block: Any) -> bytes:
    return _event(BetaRawContentBlockStartEvent(type="content_block_start", index=index, content_block=block))


def _delta(index: int, delta: Any) -> bytes:
    return _event(BetaRawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta))


def _stop(index: int) -> bytes:
    return _event(BetaRawContentBlockStopEvent(type="content_block_stop", index=index))


def _event(event: Any) -> bytes:
    return f"event: {event.type}\ndata: {json.dumps(_as_sent(_dumped(event)))}\n\n".encode()


def _as_sent(value: Any) -> Any:
    """An object in the order in which the API writes it, not in that of the library's fields."""
    if not isinstance(value, dict):
        return value
    return {name: _as_sent(value[name]) for name in sorted(value, key=lambda name: (name != "type", name != "index"))}


def _dumped(value: BaseModel) -> Json:
    return value.model_dump(mode="json", exclude_unset=True)


_THINK_UNASKED = ("claude-opus-5", "claude-sonnet-5", "claude-haiku-5", "claude-fable-5")
_TAKE_TWO = ("claude-3", "claude-opus-4-0", "claude-opus-4-2", "claude-sonnet-4-0", "claude-sonnet-4-2")


def refused(body: Json) -> str | None:
    """The API's sentence about parameters that it refuses together, or because the model thinks."""
    if {"temperature", "top_p"} <= body.keys() and not body["model"].startswith(_TAKE_TWO):
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    return _refused_while_thinking(body)


def _refused_while_thinking(body: Json) -> str | None:
    unasked = "adaptive" if body["model"].startswith(_THINK_UNASKED) else "disabled"
    if body.get("thinking", {"type": unasked})["type"] == "disabled":
        return None
    if body.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled."
    if body.get("top_p", 1) < 0.95:
        return "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
    if "top_k" in body:
        return "`top_k` must be unset when thinking is enabled."
    if body.get("tool_choice", {}).get("type") in {"any", "tool"}:
        return "Thinking may not be enabled when tool_choice forces tool use."
    return None


class AnthropicVertex(Anthropic):
    """The same, as Google's Vertex AI serves it."""

    request_class: ClassVar[type[LlmRequest]] = VertexRequest

    @override
    def is_turn(self, path: str) -> bool:
        return path.endswith((":rawPredict", ":streamRawPredict"))


def strict(served: "Served", request: LlmRequest) -> Turn:
    """A model that thinks, and calls a tool if it may."""
    if (why := refused(request.body)) is not None:
        return served.llm.refuse(400, why)
    if request.tool_results or request.body.get("tool_choice") == {"type": "none"}:
        return say("Done.")
    return call_tools([("tools__echo", {"text": "Ann"})])
